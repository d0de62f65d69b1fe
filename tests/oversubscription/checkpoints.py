"""Commands, on jobs whose memory only the driver can move."""

import re
import subprocess
import sys

from support import *


def suspended_by_checkpoint(build):
    with box(build) as machine:
        job, other = machine.job("--name", "train", "--memory", "96MiB"), machine.job("--name", "other", "--memory", "96MiB")
        for holder in (job, other):
            holder.done("alloc 8 8")
            holder.done("step")
        job.done("graph")
        job.done("work")
        before = machine.free_mib()
        said = commanded(machine, "suspend", "train")
        expect(re.match(r"train \(job 1\) is suspended; ", said), said)
        equal(row(machine, "train")["state"], "suspended")
        expect(machine.free_mib() >= before + 64, f"its memory is free: {before} MiB before, {machine.free_mib()} MiB now")
        job.send("stop")
        other.done("step")
        equal(other.ask("check"), "right")
        expect(not job.has_answered(), "its program waits")
        expect("goes on" in commanded(machine, "resume", "train"), "it is resumed")
        expect(job.answer().startswith("steps "), "the program goes on")
        job.done("replay")
        equal(job.ask("check"), "right")
        equal(row(machine, "train")["state"], "running")
        equal([job.end(), other.end()], ["sluice: this job is suspended: its GPU memory is on the host, and its CUDA calls wait "
                                         "until `sluice resume 1`\n", ""])


def resumed_by_a_broker_started_anew(build):
    """Its processes cannot answer that broker before they are back: their calls of the driver do not return."""
    with box(build, remembering=True) as machine:
        job = machine.job("--name", "train", "--memory", "96MiB")
        job.done("alloc 8 8")
        job.done("step")
        commanded(machine, "suspend", "train")
        job.send("step")
        machine.kill_broker()
        machine.start_broker(remembering=True)
        wait_until("its process has come back to the broker", lambda: row(machine, "train")["processes"])
        expect("goes on" in commanded(machine, "resume", "train"), "it is resumed")
        equal(job.answer(), "done", "the program goes on")
        equal(job.ask("check"), "right")
        equal(row(machine, "train")["state"], "running")


def moved_by_checkpoint(build):
    with box(build, gpus=2) as machine:
        job = machine.job("--name", "train", "--memory", "96MiB", "--gpu", "0")
        job.done("alloc 8 8")
        job.done("step")
        job.done("graph")
        used = [device["used_bytes"] for device in machine.devices()]
        expect(used[0] > 64 * MIB > used[1], f"it is on the first: {used}")
        expect("goes on on GPU 1" in commanded(machine, "move", "train", "--gpu", "1"), "it is moved")
        used = [device["used_bytes"] for device in machine.devices()]
        expect(used[1] > 64 * MIB > used[0], f"it is on the second: {used}")
        equal(row(machine, "train")["gpus"][0]["uuid"], machine.status()["gpus"][1]["uuid"])
        job.done("step")
        job.done("replay")
        equal(job.ask("check"), "right")
        job.done("alloc 8 1")
        equal(job.ask("check"), "right")
        refused = machine.sluice("move", "train", "--gpu", "7")
        equal(refused.returncode, 1)
        equal(job.end(), "")
        wait_until("nothing is promised", lambda: [g["promised_bytes"] for g in machine.status()["gpus"]] == [0, 0])


def moved_by_uuid(build):
    """GPUs are named by UUID, also to a broker that was started anew; a whole-GPU job is never moved, and is told what to do instead."""
    with box(build, gpus=2, remembering=True) as machine:
        uuids = [gpu["uuid"] for gpu in machine.status()["gpus"]]
        job = machine.job("--name", "train", "--memory", "96MiB", "--gpu", uuids[0])
        job.done("alloc 8 8")
        job.done("step")

        def there(index):
            used = [device["used_bytes"] for device in machine.devices()]
            expect(used[index] > 64 * MIB > used[1 - index], f"it is on GPU {index}: {used}")
            equal(row(machine, "train")["gpus"][0]["uuid"], uuids[index])
            job.done("step")
            equal(job.ask("check"), "right")

        commanded(machine, "move", "train", "--gpu", uuids[1])
        there(1)
        machine.kill_broker()
        machine.start_broker(remembering=True)
        wait_until("it is registered again", lambda: row(machine, "train")["unregistered"] == 0 and
                   len(row(machine, "train")["processes"]) == 1)
        equal([gpu["uuid"] for gpu in machine.status()["gpus"]], uuids)
        equal(row(machine, "train")["gpus"][0]["uuid"], uuids[1], "the new broker knows where it is")
        commanded(machine, "move", "train", "--gpu", uuids[0])
        there(0)
        whole = machine.job("--name", "whole", "--class", "exclusive", "--gpu", uuids[1])
        for gpu in uuids:
            refused = machine.sluice("move", "whole", "--gpu", gpu)
            equal((refused.returncode, refused.stdout), (1, ""))
            equal(refused.stderr, "sluice: job whole (tenant 2) has its GPUs as a whole and is never moved; end it instead\n")
        refused = machine.sluice("move", "train", "--gpu", uuids[1])
        equal(refused.returncode, 1)
        expect("that GPU is used whole" in refused.stderr, refused.stderr)
        refused = machine.sluice("move", "train", "--gpu", "GPU-00000000-0000-4000-8000-000000000009")
        equal(refused.returncode, 1)
        there(0)
        whole.end()
        equal(job.end(), "")


def children_of_the_moved(build):
    """A program that is started by a moved job is on the GPU where the job is now."""
    child = CUDA + "say(cuda.cuInit(0), context(0))"
    parent = CUDA + f"""
import subprocess
say(cuda.cuInit(0), context(0))
sys.stdin.readline()
subprocess.run([sys.executable, "-c", {child!r}])
"""
    with box(build, gpus=2) as machine:
        job = machine.launch([str(machine.build / "bin" / "sluice"), "run", "--socket", str(machine.socket), "--name", "train",
                              "--memory", "96MiB", "--gpu", "0", "--", sys.executable, "-c", parent], stdin=subprocess.PIPE)
        equal(job.stdout.readline(), "0 0\n")
        commanded(machine, "move", "train", "--gpu", "1")
        before = machine.devices()[1]["used_bytes"]
        equal(job.communicate("go\n", timeout=PATIENCE_S), ("0 0\n", ""))
        expect(before > 0, "it was moved")


def drained(build):
    with box(build) as machine:
        stays = machine.job("--memory", "64MiB")
        stays.done("alloc 8 2")
        commanded(machine, "drain", "--gpu", "0")
        waiting = machine.job("--memory", "64MiB", begin=False)
        expect("(Drain)" in line_of(waiting), "it waits")
        stays.done("step")
        equal(stays.ask("check"), "right")
        commanded(machine, "undrain", "--gpu", "0")
        waiting.begin()
        waiting.end()
        stays.end()


CASES = [suspended_by_checkpoint, resumed_by_a_broker_started_anew, moved_by_checkpoint, moved_by_uuid, children_of_the_moved, drained]
