"""Memory that the shim moves."""

import re
import signal
import time

from support import *

SUSPENDED = ("sluice: this job is suspended: its GPU memory is on the host, and its CUDA calls wait until `sluice resume "
             "1`\n")


def suspended_and_resumed(build):
    with box(build) as machine:
        job = machine.job("--name", "train", "--memory", "160MiB", "--swap")
        job.done("alloc 16 8")
        job.done("alloc 2 2")
        job.done("step")
        job.done("graph")
        free = machine.free_mib()
        for _ in range(3):
            said = commanded(machine, "suspend", "train")
            expect(re.match(r"train \(job 1\) is suspended; 132 MiB moved in \d+\.\d s\n$", said), said)
            part = row(machine, "train")["gpus"][0]
            equal((row(machine, "train")["state"], part["swapped_bytes"]), ("suspended", 132 * MIB))
            equal(machine.free_mib(), free + 132, "the device itself has it back")
            fixed = part["not_movable"]
            equal((row(machine, "train")["stays"], fixed["bytes"], fixed["other_bytes"]), ("", part["held_bytes"] - 132 * MIB, 0))
            equal(fixed["contexts_bytes"] // MIB, CONTEXT_MIB, f"what is left is the context, and code: {part}")
            job.send("check")
            expect("132 MiB moved in " in commanded(machine, "resume", "1"), "it is back")
            equal(job.answer(), "right")
            equal((row(machine, "train")["state"], machine.free_mib()), ("running", free))
            job.done("step")
            job.done("replay")
        equal(job.ask("check"), "right")
        expect("event=moved tenant=1 name=train" in machine.broker_log(), "the log tells of each move")
        equal(job.end(), SUSPENDED * 3)
        wait_until("all is given back", lambda: machine.free_mib() == 256)


def a_refused_suspend_says_nothing_to_the_job(build):
    with box(build, config='[memory]\nswap_host_max = "64MiB"\n') as machine:
        job = machine.job("--name", "train", "--memory", "160MiB", "--swap")
        job.done("alloc 20 5")
        refused = machine.sluice("suspend", "train")
        expect(refused.returncode == 1 and "64 MiB" in refused.stderr, refused)
        equal(job.ask("check"), "right")
        equal(job.end(), "")


def while_suspended_others_have_the_gpu(build):
    with box(build, config=OVERSOLD) as machine:
        train = machine.job("--name", "train", "--memory", "224MiB", "--swap")
        train.done("alloc 40 5")
        commanded(machine, "suspend", "train")
        other = machine.job("--name", "other", "--memory", "224MiB", "--swap")
        other.done("alloc 40 5")
        other.done("step")
        equal(row(machine, "other")["gpus"][0]["moves"], 0)
        # It comes back when there is room: the other is moved out for it, being idle.
        train.send("check")
        commanded(machine, "resume", "train")
        equal(train.answer(), "right")
        equal(row(machine, "other")["state"], "swapped")
        equal(other.ask("check"), "right")
        equal([train.end(), other.end()], [SUSPENDED, ""])
        wait_until("all is given back", lambda: machine.free_mib() == 256)


IDLE = "sluice: this job has used no GPU for "


def suspended_frees_its_quota(build):
    """What a suspended job was promised is for others; it comes back through the queue."""
    with box(build) as machine:
        train = machine.job("--name", "train", "--memory", "224MiB", "--swap")
        train.done("alloc 40 4")
        commanded(machine, "suspend", "train")
        other = machine.job("--name", "other", "--memory", "200MiB")
        other.done("alloc 40 4")
        train.send("check")
        resuming = machine.launch([machine.build / "bin" / "sluice", "resume", "--socket", str(machine.socket), "train"])
        wait_until("it waits in the queue", lambda: [t["name"] for t in machine.waiting()] == ["train"])
        expect("it waits in the queue to get its GPU back: the quotas on GPU 0 add up to 200 MiB of 256 MiB" in
               (why := row(machine, "train")["why"]), why)
        expect(not train.has_answered() and resuming.poll() is None, "it is out")
        equal(line_of(train), SUSPENDED)
        equal(train.process.stderr.readline(), "sluice: this job waits in the queue to get its GPU back; `sluice status` says for what\n")
        equal(other.end(), "")
        equal(train.answer(), "right")
        equal(resuming.wait(PATIENCE_S), 0)
        equal(train.end(), "")


def idle_leaves_until_it_wants(build):
    config = '[class.batch]\nidle = "1s"\nidle_release = "2s"\n'
    with box(build, config=config) as machine:
        notebook = machine.job("--name", "notebook", "--memory", "224MiB", "--swap")
        notebook.done("alloc 16 4")
        notebook.done("step")
        wait_until("it has left its GPU", lambda: row(machine, "notebook")["state"] == "suspended")
        other = machine.job("--name", "other", "--memory", "200MiB")
        other.done("alloc 40 4")
        other.done("work")
        notebook.send("check")
        wait_until("it waits in the queue", lambda: [t["name"] for t in machine.waiting()] == ["notebook"])
        expect(not notebook.has_answered(), "it is out")
        other.ask("stop")
        equal(other.end(), "")
        equal(notebook.answer(), "right")
        notebook.done("step")
        said = notebook.end().splitlines()
        expect(re.fullmatch(IDLE + r"\d s; after 2 s in all its GPU memory is moved to the host and its quota is free for others; end it, or "
                            r"use its GPU", said[0]), said)
        equal(said[1], IDLE + "long: its GPU memory is on the host, and its quota is free for others, until it wants its GPU again")


def idle_is_ended(build):
    with box(build, config='[class.batch]\nidle = "1s"\nidle_end = "3s"\n') as machine:
        job = machine.job("--name", "notebook", "--memory", "64MiB")
        job.done("step")
        equal(job.process.wait(PATIENCE_S), -signal.SIGTERM)
        said = job.process.stderr.read().splitlines()
        expect(re.fullmatch(IDLE + r"\d s; after 3 s in all it is ended; end it, or use its GPU", said[0]), said)
        expect(re.fullmatch(IDLE + r"\d s and is being ended \(SIGTERM\), as its class is set up", said[1]), said)
        expect("event=idle_end" in machine.broker_log(), "the log has it")


def suspended_is_not_idle(build):
    """Time in which a job is suspended is none in which it was idle: its time begins when it is back."""
    idle_end_s = 3
    with box(build, config=f'[class.batch]\nidle_end = "{idle_end_s}s"\n') as machine:
        train, other = (machine.job("--name", name, "--memory", "64MiB", "--swap") for name in ("train", "other"))
        train.done("alloc 8 1")
        commanded(machine, "suspend", "train")
        equal(other.process.wait(PATIENCE_S), -signal.SIGTERM, "the other has been idle for so long")
        expect(train.process.poll() is None, "it is suspended")
        begin = time.monotonic()
        commanded(machine, "resume", "train")
        equal(train.process.wait(PATIENCE_S), -signal.SIGTERM)
        expect((passed := time.monotonic() - begin) >= idle_end_s - 0.1, f"ended {passed} s after it was resumed")


def eight_share_one(build):
    """Each holds 40 % of the GPU and works all the time; each gets through, and its numbers are right."""
    with box(build, memory="128MiB", config=OVERSOLD) as machine:
        jobs = [machine.job("--name", f"job{i}", "--memory", "56MiB", "--swap") for i in range(8)]
        for job in jobs:
            job.send("alloc 12 4")
        for job in jobs:
            equal(job.answer(), "done")
        for job in jobs:
            job.done("work")
        # By now each has been in, or it could not have filled its memory; now each comes in again.
        for i in range(8):
            moved = row(machine, f"job{i}")["gpus"][0]["moved_in_bytes"]
            wait_until(f"job{i} comes in again", lambda: row(machine, f"job{i}")["gpus"][0]["moved_in_bytes"] >= moved + 48 * MIB,
                       PATIENCE_S)
        for job in jobs:
            job.send("stop")
        for job in jobs:
            expect(re.match(r"steps [1-9]", job.answer()), "it has worked")
        for job in jobs:
            equal(job.ask("check"), "right")
        for job in jobs:
            equal(job.end(), "")
        wait_until("all is given back", lambda: machine.free_mib() == 128)
        failed = [line for line in machine.broker_log().splitlines() if "event=move_failed" in line]
        expect(failed == [], "no move has failed: " + "\n".join(failed))


def came_in(machine, name):
    return row(machine, name)["gpus"][0]["moved_in_bytes"]


def both_go_on(machine, names):
    before = {name: came_in(machine, name) for name in names}
    for name in names:
        wait_until(f"{name} comes in", lambda: came_in(machine, name) > before[name], PATIENCE_S)


def broker_killed_in_moves(build):
    """kill -9 in the middle of moves out and in: the next broker takes both in, nothing is lost, nothing is left over."""
    with box(build, memory="128MiB", config=OVERSOLD, remembering=True) as machine:
        jobs = {name: machine.job("--name", name, "--memory", "96MiB", "--swap") for name in ("one", "two")}
        for job in jobs.values():
            job.done("alloc 16 5")
            job.done("work")
        for order in ("out", "in", "out"):
            order_await(machine, order)
            machine.kill_broker()
            machine.start_broker(remembering=True)
            both_go_on(machine, jobs)
        for job in jobs.values():
            job.send("stop")
        for job in jobs.values():
            expect(re.match(r"steps [1-9]", job.answer()), "it has worked")
        for job in jobs.values():
            equal(job.ask("check"), "right")
        for job in jobs.values():
            job.end()
        wait_until("all is given back", lambda: machine.free_mib() == 128)
        wait_until("nobody is left", lambda: machine.tenants() == [])
        equal([gpu["promised_bytes"] for gpu in machine.status()["gpus"]], [0])


def clients_killed_in_moves(build):
    """kill -9 of a program in the middle of its own move: its memory comes back, the others go on."""
    with box(build, memory="128MiB", config=OVERSOLD) as machine:
        stays = machine.job("--name", "stays", "--memory", "96MiB", "--swap")
        stays.done("alloc 16 5")
        stays.done("work")
        for order in ("out", "in", "hold"):
            victim = machine.job("--name", "victim", "--memory", "96MiB", "--swap")
            victim.send("alloc 16 5")
            equal(victim.answer(), "done")
            victim.done("work")
            order_await(machine, order, "victim")
            victim.kill()
            wait_until("it is gone", lambda: [t["name"] for t in machine.tenants()] == ["stays"])
        stays.send("stop")
        expect(re.match(r"steps [1-9]", stays.answer()), "it has worked")
        equal(stays.ask("check"), "right")
        stays.end()
        wait_until("all is given back", lambda: machine.free_mib() == 128)
        equal([gpu["promised_bytes"] for gpu in machine.status()["gpus"]], [0])


CASES = [suspended_and_resumed, a_refused_suspend_says_nothing_to_the_job, while_suspended_others_have_the_gpu,
         suspended_frees_its_quota, idle_leaves_until_it_wants, idle_is_ended, suspended_is_not_idle, eight_share_one,
         broker_killed_in_moves, clients_killed_in_moves]
