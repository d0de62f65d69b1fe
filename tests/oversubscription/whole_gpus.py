"""Whole GPUs over shared jobs, and memory that is not free before the device shows it."""

import os
import pathlib
import re
import signal
import subprocess
import sys

from support import *


def rank_lost(build):
    """A rank of a whole-GPU job that is killed: the others go on, or end, as configured. One that ends by itself is not lost."""
    rank = CUDA + """
say(cuda.cuInit(0), context(0))
sys.stdin.readline()
say("here")
sys.stdin.readline()
"""
    parent = f"""
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", {rank!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
print(*[rank.stdout.readline().strip() for rank in ranks], *[rank.pid for rank in ranks], flush=True)
for line in sys.stdin:
    rank = ranks[int(line)]
    rank.stdin.write("\\n")
    rank.stdin.flush()
    print(rank.stdout.readline().strip(), flush=True)
print(*[rank.wait() for rank in ranks])
"""
    for rule in ("keep", "end"):
        with box(build, config=f'[scheduler]\nrank_loss = "{rule}"\n') as machine:
            job = machine.launch([str(machine.build / "bin" / "sluice"), "run", "--socket", str(machine.socket), "--name", "gang",
                                  "--class", "exclusive", "--", sys.executable, "-c", parent], stdin=subprocess.PIPE)
            words = job.stdout.readline().split()
            equal(words[:6], ["0"] * 6)
            pids = [int(word) for word in words[6:]]

            def ask(index):
                job.stdin.write(f"{index}\n")
                job.stdin.flush()
                return job.stdout.readline().strip()

            equal(ask(0), "here")
            ask(0)  # it ends by itself
            wait_until("it has ended", lambda: len(row(machine, "gang")["processes"]) == 2)
            expect("event=rank_lost" not in machine.broker_log(), "it was not lost")
            os.kill(pids[1], signal.SIGKILL)
            wait_until("that is told", lambda: "event=rank_lost" in machine.broker_log())
            if rule == "keep":
                equal(ask(2), "here")
                expect("the others go on and keep the GPUs" in machine.broker_log(), "it is said how")
                ask(2)
            else:
                wait_until("nobody is left", lambda: machine.tenants() == [])
            out, _ = job.communicate(timeout=PATIENCE_S)
            codes = ["0", str(-signal.SIGKILL), "0"] if rule == "keep" else []
            equal(out.split(), codes, "how the ranks ended")


def gang_alone(build):
    """A whole-GPU job: the shared ones are put away, it runs alone, they come back with what they had."""
    config = OVERSOLD + '[scheduler]\nexclusive = "suspend"\n'
    with box(build, memory="128MiB", config=config, gpus=2) as machine:
        shared = [machine.job("--name", f"shared{i}", "--memory", "64MiB", "--gpu", str(i % 2), *(["--swap"] if i < 2 else []))
                  for i in range(3)]
        for job in shared:
            job.done("alloc 8 4")
            job.done("work")
        gang = machine.job("--name", "gang", "--class", "exclusive", "--gpus", "2", begin=False)
        expect("(Drain)" in line_of(gang), "it waits until they are away")
        gang.begin()
        equal([row(machine, f"shared{i}")["state"] for i in range(3)], ["suspended"] * 3)
        gang.done("alloc 10 10")
        for _ in range(20):
            gang.done("step")
        equal(gang.ask("check"), "right")
        gang.end()
        for i, job in enumerate(shared):
            wait_until("it is back", lambda: row(machine, f"shared{i}")["state"] == "running", PATIENCE_S)
            job.send("stop")
            expect(re.match(r"steps [1-9]", job.answer()), "it has worked")
            equal(job.ask("check"), "right")
        log = machine.broker_log()
        alone = log[log.index("event=admitted", log.index("event=queued")):log.index("event=ended tenant=4 name=gang")]
        expect("name=gang" in alone.splitlines()[0], alone[:200])
        opened = set(re.findall(r"event=lease_opened tenant=(\d+)", alone))
        equal(opened, {"4"}, "whose leases were opened while it lived")
        before = log[:log.index("event=admitted", log.index("event=queued"))]
        for tenant in "123":
            words = re.findall(rf"event=lease_(opened|closed) tenant={tenant} ", before)
            expect(not words or words[-1] == "closed", f"job {tenant} could still submit work: {words}")
        for job in shared:
            equal(job.end(), "")


def moved_for_exclusive(build):
    """A whole-GPU job over two shared ones: who fits on the other GPU goes on there, who does not is put away."""
    with box(build, memory="128MiB", config=OVERSOLD + '[scheduler]\nexclusive = "move"\n[class.batch]\nplacement = "pack"\n',
             gpus=2) as machine:
        there = machine.job("--name", "there", "--memory", "64MiB", "--gpu", "1")
        fits, stays = (machine.job("--name", name, "--memory", "60MiB", "--gpus", "1") for name in ("fits", "stays"))
        uuids = [gpu["uuid"] for gpu in machine.status()["gpus"]]

        def gpu_of(name):
            return uuids.index(row(machine, name)["gpus"][0]["uuid"])

        # The fullest GPU that has room: the second has it for one of them.
        equal(sorted(gpu_of(name) for name in ("fits", "stays")), [0, 1])
        names = {gpu_of("fits"): "fits", gpu_of("stays"): "stays"}
        jobs = {"fits": fits, "stays": stays, "there": there}
        for job in jobs.values():
            job.done("alloc 8 4")
            job.done("work")
        there.send("stop")
        expect(there.answer().startswith("steps "), "it has worked")
        equal(there.end(), "")
        del jobs["there"]
        pinned = machine.job("--name", "pinned", "--memory", "60MiB", "--gpu", "0")
        jobs["pinned"] = pinned
        pinned.done("alloc 8 4")
        pinned.done("work")
        gang = machine.job("--name", "gang", "--class", "exclusive", "--gpu", "0", begin=False)
        gang.begin()
        mover, other = names[0], names[1]
        equal((gpu_of(mover), gpu_of(other)), (1, 1), "who was on the first is on the second")
        equal({name: row(machine, name)["state"] for name in (other, "pinned")}, {other: "running", "pinned": "suspended"})
        jobs[mover].send("stop")
        expect(re.match(r"steps [1-9]", jobs[mover].answer()), "it works beside the exclusive job")
        equal(jobs[mover].ask("check"), "right")
        jobs[mover].done("step")
        equal(row(machine, "pinned")["state"], "suspended")
        gang.done("alloc 10 10")
        gang.done("step")
        equal(gang.ask("check"), "right")
        gang.end()
        wait_until("who was put away is back", lambda: row(machine, "pinned")["state"] == "running", PATIENCE_S)
        for name in (other, "pinned"):
            jobs[name].send("stop")
            expect(re.match(r"steps [1-9]", jobs[name].answer()), "it has worked")
        equal(gpu_of(mover), 1, "it stays where it is")
        for job in jobs.values():
            equal(job.ask("check"), "right")
            equal(job.end(), "")
        wait_until("nothing is promised", lambda: [g["promised_bytes"] for g in machine.status()["gpus"]] == [0, 0])


def helper_of(machine):
    """The program by which the broker asks the devices."""
    children = pathlib.Path(f"/proc/{machine.broker.pid}/task/{machine.broker.pid}/children").read_text().split()
    found = [int(pid) for pid in children if b"--watch" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    equal(len(found), 1, "helpers that watch")
    return found[0]


def freed_when_the_device_shows_it(build):
    """The memory of a job that was killed is nobody's before the device says that it is free, and not for ever."""
    with box(build, memory="128MiB") as machine:
        wait_until("the device is known", lambda: "event=device_used" in machine.broker_log())
        for answers in (True, False):
            full = machine.job("--memory", "120MiB", "--name", "full")
            full.done("alloc 16 6")
            waits = machine.job("--memory", "120MiB", "--name", "next", begin=False)
            expect("(Resources)" in line_of(waits), "it waits")
            asked = machine.broker_log().count("event=device_used")
            helper = helper_of(machine)
            os.kill(helper, signal.SIGSTOP)  # nobody says what the device has
            full.kill()
            wait_until("its job is over", lambda: [t["name"] for t in machine.tenants()] == ["next"])
            equal([t["state"] for t in machine.tenants()], ["queued"])
            expect(not waits.has_answered(), "its memory is not given away yet")
            expect(machine.broker_log().count("event=device_used") <= asked + 1, "nothing was said since")
            if answers:
                os.kill(helper, signal.SIGCONT)
                waits.begin()
                expect("event=memory_kept" not in machine.broker_log(), "it came back")
            else:
                waits.begin()
                expect(re.search(rf"event=memory_kept gpu=GPU-\S+ bytes={100 * MIB} ms=[5-9]\d\d\d ", machine.broker_log()), "that is said")
                os.kill(helper, signal.SIGCONT)
            waits.done("alloc 16 6")
            equal(waits.ask("check"), "right")
            waits.end()
            wait_until("nobody is left", lambda: machine.tenants() == [])


CASES = [rank_lost, gang_alone, moved_for_exclusive, freed_when_the_device_shows_it]
