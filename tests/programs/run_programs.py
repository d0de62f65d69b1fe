#!/usr/bin/env python3
"""Runs the unmodified programs of this directory bare and under Sluice, and compares.

  run_programs.py --build DIR CASE

Every case has a software GPU and a broker of its own. What counts as memory and time is read from the software GPU's own
accounts, not from the program under test or from the broker.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
from machine import MIB, Machine, wait_until  # noqa: E402

QUOTA_BYTES = 256 * MIB


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def expect_all_returned(machine):
    """No memory on the device, no tenant and no promise at the broker."""
    wait_until("the device has all its memory back", lambda: machine.device()["used_bytes"] == 0)
    wait_until("the broker has forgotten the tenant", lambda: not machine.status()["tenants"])
    gpu = machine.status()["gpus"][0]
    expect(gpu["held_bytes"] == 0 and gpu["promised_bytes"] == 0, f"the broker still counts {gpu}")


def case_same_output(build, name):
    with Machine(build, pacing=False) as machine:
        bare = machine.run([machine.program(name)])
        expect(bare.returncode == 0, f"bare: exit {bare.returncode}: {bare.stdout}{bare.stderr}")
        expect(bare.stdout.startswith(f"{name}: "), f"bare: unexpected output {bare.stdout!r}")
        machine.start_broker()
        shared = machine.run(machine.slice(machine.program(name)))
        print(shared.stdout, end="")
        expect(shared.returncode == 0, f"shared: exit {shared.returncode}: {shared.stdout}{shared.stderr}")
        expect(shared.stdout == bare.stdout, f"output differs: bare {bare.stdout!r}, shared {shared.stdout!r}")
        expect(shared.stderr == "", f"all is well, yet something was said: {shared.stderr!r}")
        expect_all_returned(machine)


def prober_figures(text):
    got = re.search(r"got (\d+) bytes, then: out of memory", text)
    frees = re.findall(r"free (?:now|after freeing) (\d+) of (\d+)", text)
    expect(got is not None and len(frees) == 2, f"the prober's output was not understood: {text!r}")
    return int(got.group(1)), [(int(free), int(total)) for free, total in frees]


def case_prober_bare(build):
    with Machine(build, memory="512MiB", pacing=False) as machine:
        result = machine.run([machine.program("oom_prober")])
        print(result.stdout, end="")
        got, frees = prober_figures(result.stdout)
        expect(result.returncode == 0, f"exit {result.returncode}: {result.stderr}")
        expect(got == 480 * MIB, f"{got} bytes of a 512 MiB device whose contexts cost 32 MiB")
        expect(frees == [(0, 512 * MIB), (480 * MIB, 512 * MIB)], f"wrong figures: {frees}")
        expect(machine.device()["used_bytes"] == 0, "memory is left in use")


def case_prober_quota(build):
    with Machine(build, pacing=False) as machine:
        machine.start_broker()
        context_bytes = machine.status()["gpus"][0]["context_bytes"]
        expect(context_bytes == 32 * MIB, f"a context was measured as {context_bytes} bytes, not 32 MiB")
        result = machine.run(machine.slice(machine.program("oom_prober")))
        print(result.stdout, end="")
        got, frees = prober_figures(result.stdout)
        expect(result.returncode == 0, f"exit {result.returncode}: {result.stderr}")
        expect(got + context_bytes == QUOTA_BYTES, f"{got} + {context_bytes} of the context is not {QUOTA_BYTES}")
        expect(frees[0] == (0, QUOTA_BYTES), f"wrong figures when full: {frees[0]}")
        expect(frees[1] == (QUOTA_BYTES - context_bytes, QUOTA_BYTES), f"wrong figures after freeing: {frees[1]}")
        expect_all_returned(machine)


def case_crasher(build):
    with Machine(build, pacing=False) as machine:
        bare = machine.run([machine.program("crasher")])
        expect(bare.returncode == 3, f"bare: exit {bare.returncode}: {bare.stderr}")
        expect("cudaErrorIllegalAddress" in bare.stdout, f"bare: {bare.stdout!r}")
        expect(machine.device()["used_bytes"] == 0, "memory is left in use")
        machine.start_broker()
        shared = machine.run(machine.slice(machine.program("crasher")))
        print(shared.stdout, end="")
        expect((shared.returncode, shared.stdout) == (3, bare.stdout), f"differs: {shared}")
        expect_all_returned(machine)
        after = machine.run(machine.slice(machine.program("vector_add")))
        expect(after.returncode == 0, f"the next program failed: {after.stdout}{after.stderr}")


def killed_at_work(machine, command, name):
    """Starts a program that never ends, sees it use the GPU, and kills it. Its first output, and what status said of it
    while it worked, where there is a broker."""
    victim = machine.launch(command)
    first = victim.stdout.readline()
    expect(first == f"{name}: started\n", f"{command} did not start: {first!r}")
    # A kernel that never ends is one launch for ever, so it is the time on the device that tells.
    wait_until("the victim works on the GPU", lambda: machine.account(victim.pid)["busy_ns"] > 1e6)
    expect(machine.account(victim.pid)["memory_bytes"] >= 32 * MIB, "its context is not on the account")
    tenants = machine.status()["tenants"] if machine.broker else None
    rest, err = machine.stop(victim, signal.SIGKILL)
    expect(victim.returncode == -signal.SIGKILL, f"it ended with {victim.returncode}")
    expect((rest, err) == ("", ""), f"it said more than that it started: {rest!r} {err!r}")
    wait_until("the device has all its memory back", lambda: machine.device()["used_bytes"] == 0)
    wait_until("the device knows that it has ended", lambda: not machine.account(victim.pid)["alive"])
    return first, tenants, victim.pid


def case_killed(build, name):
    """kill -9 while the GPU is busy, bare and under Sluice: the same output until then, everything is returned, and the
    next program finds the device as if nobody had been there."""
    with Machine(build) as machine:
        bare, _, _ = killed_at_work(machine, [machine.program(name)], name)
        after_bare = machine.run([machine.program("vector_add")])
        expect(after_bare.returncode == 0, f"the next program failed: {after_bare.stdout}{after_bare.stderr}")
        machine.start_broker()
        shared, tenants, pid = killed_at_work(machine, machine.slice(machine.program(name)), name)
        expect(shared == bare, f"output differs: bare {bare!r}, shared {shared!r}")
        expect(len(tenants) == 1 and tenants[0]["gpus"][0]["held_bytes"] >= 32 * MIB, f"wrong status: {tenants}")
        expect([p["pid"] for p in tenants[0]["processes"]] == [pid], f"not the program itself: {tenants}")
        expect_all_returned(machine)
        after = machine.run(machine.slice(machine.program("vector_add")))
        expect(after.returncode == 0, f"the next program failed: {after.stdout}{after.stderr}")
        expect(after.stdout == after_bare.stdout, f"output differs: bare {after_bare.stdout!r}, shared {after.stdout!r}")


def busy_of(machine, jobs):
    """Device time of every job, all read at one instant."""
    accounts = {process["pid"]: process["busy_ns"] for process in machine.device()["processes"]}
    return {name: accounts[job.pid] for name, job in jobs.items()}


def shares_of(machine, jobs, seconds):
    """The share of the device time that each job received in a while, in per cent."""
    before = busy_of(machine, jobs)
    time.sleep(seconds)
    used_ns = {sm: busy - before[sm] for sm, busy in busy_of(machine, jobs).items()}
    total_ns = sum(used_ns.values())
    expect(total_ns > 0.2e9 * seconds, f"the device was hardly used: {used_ns}")
    return {sm: 100 * used / total_ns for sm, used in used_ns.items()}


def case_shares(build, seconds=6.0):
    """Two endless loops of launches at 25 and 75 %: device time 1:3, each within 5 % of its target. A loop that the host
    lets wait for a CPU asks for less than its share, and the other one gets the rest: that is as it should be, and says
    nothing of shares. So there is always plenty queued, the loops come first where that is permitted, and a bad while
    is followed by another one."""
    with Machine(build, rate=16_000_000) as machine:
        machine.start_broker()
        ahead = ["nice", "-n", "-20"] if os.geteuid() == 0 else []
        command = machine.program("launch_loop"), "--burst", "64"
        jobs = {sm: machine.start(ahead + machine.slice(*command, sm=sm)) for sm in (25, 75)}
        for job in jobs.values():
            wait_until("both loops run", lambda job=job: machine.account(job.pid)["launches"] > 8)
        time.sleep(1)
        for _ in range(3):
            shares = shares_of(machine, jobs, seconds)
            for sm, share in shares.items():
                print(f"{sm} % asked, {share:.2f} % of the device time received")
            if kept := all(abs(share - sm) <= 0.05 * sm for sm, share in shares.items()):
                break
        for job in jobs.values():
            out, err = machine.stop(job)
            expect(job.returncode == 0 and " launches" in out, f"exit {job.returncode}: {out!r} {err!r}")
        expect(kept, f"three times not what was asked for: {shares}")
        expect_all_returned(machine)


def neighbour_works(machine):
    neighbour = machine.run(machine.slice(machine.program("launch_loop"), "--seconds", "2", sm=50))
    expect(neighbour.returncode == 0, f"the neighbour failed: {neighbour.stdout}{neighbour.stderr}")
    launches = int(re.search(r"(\d+) launches", neighbour.stdout).group(1))
    print(f"the neighbour made {launches} launches in 2 s")
    expect(launches > 8, f"the neighbour hardly moved: {launches} launches")


def case_endless_reported(build):
    with Machine(build, config='[scheduler]\ndrain_timeout = "300ms"\nrunaway = "report"\n') as machine:
        machine.start_broker()
        endless = machine.start(machine.slice(machine.program("endless_kernel"), sm=50))
        neighbour_works(machine)
        tenants = [tenant for tenant in machine.status()["tenants"] if tenant["name"] == "endless_kernel"]
        expect(len(tenants) == 1 and tenants[0]["runaway"], f"not reported as a runaway: {tenants}")
        expect(tenants[0]["gpus"][0]["overruns"] >= 1, f"no overrun counted: {tenants}")
        expect("runaway" in machine.broker_log(), "the log does not say so")
        expect(endless.poll() is None, "it was ended, though the policy is to report")
        machine.stop(endless, signal.SIGKILL)
        expect_all_returned(machine)


def case_endless_ended(build):
    """By default an endless kernel is ended once others have waited for it, its user is told why, and its neighbour gets
    the GPU. It waits while nobody else wants the GPU, and its user's next job pays its debt."""
    with Machine(build, config='[scheduler]\ndrain_timeout = "300ms"\nrunaway_after = "1s"\n') as machine:
        machine.start_broker()
        endless = machine.start(machine.slice(machine.program("endless_kernel"), sm=5))
        time.sleep(2)
        expect(endless.poll() is None, "it was ended though nobody waited")
        neighbour = machine.start(machine.slice(machine.program("launch_loop"), "--burst", "64", sm=90))
        out, err = endless.communicate(timeout=60)
        expect(endless.returncode == -signal.SIGKILL, f"it ended by itself with {endless.returncode}: {out}{err}")
        expect("sluice: this job is being ended: others have waited 1 s for the GPU" in err, f"it was not told why: {err!r}")
        log = machine.broker_log()
        expect("end=yes" in log and "is ended: others have waited" in log, f"the log does not say so: {log}")
        again = machine.launch(machine.slice(machine.program("endless_kernel"), sm=5))
        before, busy = machine.device(), machine.account(neighbour.pid)["busy_ns"]
        time.sleep(3)
        after = machine.device()
        used = sum(p["busy_ns"] for p in after["processes"] if p["pid"] == again.pid)
        worked = machine.account(neighbour.pid)["busy_ns"] - busy
        print(f"of 3 s the neighbour had {worked / 1e6:.0f} ms, the next endless kernel {used / 1e6:.0f} ms")
        expect(used < 0.25 * (used + worked), f"the debt was forgiven: {used} ns beside {worked} ns; {before}; {after}")
        machine.stop(again, signal.SIGKILL)
        machine.stop(neighbour)
        expect_all_returned(machine)


def case_endless_six(build):
    """Six processes with an endless kernel each are one job: it is ended as a whole, after the same time."""
    with Machine(build, config='[scheduler]\ndrain_timeout = "300ms"\nrunaway_after = "1s"\n') as machine:
        machine.start_broker()
        program = machine.program("endless_kernel")
        loop = f"for i in 1 2 3 4 5 6; do {program} & done; wait"
        six = machine.start(machine.slice("sh", "-c", loop, sm=5))
        wait_until("all six are there", lambda: len(machine.status()["tenants"][0]["processes"]) == 6)
        neighbour = machine.start(machine.slice(machine.program("launch_loop"), "--burst", "64", sm=90))
        six.wait(60)
        expect(six.returncode == -signal.SIGKILL, f"it ended by itself with {six.returncode}")
        wait_until("all six are gone", lambda: [p["pid"] for p in machine.device()["processes"] if p["alive"]] == [neighbour.pid])
        busy = machine.account(neighbour.pid)["busy_ns"]
        wait_until("the neighbour works", lambda: machine.account(neighbour.pid)["busy_ns"] > busy + 200_000_000)
        machine.stop(neighbour)
        expect_all_returned(machine)


def held_and_used(machine):
    """What the broker counts for the only tenant, and what the device counts."""
    return machine.status()["tenants"][0]["gpus"][0]["held_bytes"], machine.device()["used_bytes"]


def case_accounts_agree(build):
    """Two tenants that want the GPU all the time: each one's busy time is what the device measured."""
    with Machine(build, rate=16_000_000) as machine:
        machine.start_broker()
        command = machine.program("launch_loop"), "--seconds", "4", "--burst", "32", "--linger"
        jobs = [machine.start(machine.slice(*command, sm=sm)) for sm in (40, 60)]
        for job in jobs:
            line = job.stdout.readline()
            expect("idle" in line, f"the loop did not end: {line!r}")
        tenants = {tenant["processes"][0]["pid"]: tenant["gpus"][0] for tenant in machine.status()["tenants"]}
        for job in jobs:
            device, shim = machine.account(job.pid), tenants[job.pid]
            print(f"device {device['busy_ns'] / 1e6:.1f} ms in {device['launches']} launches, "
                  f"sluice {shim['busy_ns'] / 1e6:.1f} ms in {shim['launches']}")
            expect(shim["gate_waits"] > 0, f"it never waited, so they did not contend: {shim}")
            expect(shim["launches"] == device["launches"], f"launches: {shim} and {device}")
            expect(device["busy_ns"] > 100e6, f"the device was hardly used: {device}")
            expect(abs(shim["busy_ns"] - device["busy_ns"]) <= 0.05 * device["busy_ns"], f"busy: {shim} and {device}")
            expect(shim["held_bytes"] == device["memory_bytes"], f"memory: {shim} and {device}")
        for job in jobs:
            machine.stop(job)
        expect_all_returned(machine)


def case_every_allocation(build):
    """After every step of a program that takes memory in every way, both accounts are the same to the byte."""
    with Machine(build, pacing=False) as machine:
        machine.start_broker()
        child = machine.start(machine.slice(machine.program("allocations")), stdin=subprocess.PIPE)
        step, seen = "started", {}
        while step != "done":
            held, used = held_and_used(machine)
            print(f"{step}: sluice {held}, device {used}")
            expect(held == used, f"after '{step}' the broker counts {held} bytes and the device {used}")
            seen[step] = held
            child.stdin.write("\n")
            child.stdin.flush()
            step = child.stdout.readline().strip()
            expect(step != "", "it ended early")
        expect(child.wait(20) == 0, f"exit {child.returncode}")
        expect(len(seen) == 11 and len(set(seen.values())) >= 8, f"the steps changed nothing: {seen}")
        expect_all_returned(machine)


def case_module_variables(build):
    """Variables of modules count although no call tells their size."""
    with Machine(build, pacing=False) as machine:
        machine.start_broker()
        child = machine.start(machine.slice(machine.program("module_variables")), stdin=subprocess.PIPE)
        held, used = held_and_used(machine)
        print(f"sluice {held}, device {used}")
        expect(held == used, f"sluice {held}, device {used}")
        variables = 250001 * 4 + 100 * 4
        expect(held >= 32 * MIB + variables, f"{held} bytes for a context and {variables} bytes of variables")
        child.communicate("\n", timeout=300)
        expect(child.returncode == 0, f"exit {child.returncode}")
        expect_all_returned(machine)


def case_deep_queue(build):
    """Programs that queue most of a second of work at once, with default settings: still a turn is a turn."""
    with Machine(build, rate=16_000_000) as machine:
        machine.start_broker()
        command = machine.program("launch_loop"), "--burst", "600"
        jobs = [machine.start(machine.slice(*command, sm=50)) for _ in range(2)]
        for job in jobs:
            wait_until("both loops run", lambda job=job: machine.account(job.pid)["launches"] > 8)

        def work_and_leases():
            leases = machine.status()["gpus"][0]["leases_granted"]
            return sum(machine.account(job.pid)["busy_ns"] for job in jobs), leases

        busy_before, leases_before = work_and_leases()
        time.sleep(2.5)
        busy_after, leases_after = work_and_leases()
        gpu = machine.status()["gpus"][0]
        leases = leases_after - leases_before
        turn_ns = (busy_after - busy_before) / max(leases, 1)
        print(f"{leases} leases, {turn_ns / 1e6:.1f} ms of work in each")
        expect(busy_after - busy_before > 500e6, f"they hardly ran: {busy_after - busy_before} ns")
        expect(gpu["overruns"] == 0, f"a tenant did not drain in time: {gpu}")
        # What is queued at once is 0.8 s of work; without a window one turn is all of it and more. With it a turn is a few
        # quanta of 10 ms and the window of 20 ms.
        expect(turn_ns < 200e6, f"{turn_ns / 1e6:.1f} ms of work per lease")
        for job in jobs:
            machine.stop(job, signal.SIGKILL)
        expect_all_returned(machine)


def case_fork_quota(build):
    """Parent and child of one fork share one quota: together exactly it, and never more."""
    with Machine(build, pacing=False) as machine:
        machine.start_broker()
        child = machine.launch(machine.slice(machine.program("fork_probers")))
        most, most_processes = 0, 0
        while child.poll() is None:
            most = max(most, machine.device()["used_bytes"])
            most_processes = max([most_processes, *(len(t["processes"]) for t in machine.status()["tenants"])])
        out, err = child.communicate()
        print(out, end="")
        expect(child.returncode == 0, f"exit {child.returncode}: {err}")
        got = {who: int(size) for who, size in re.findall(r"(parent|child) got (\d+) bytes", out)}
        expect(set(got) == {"parent", "child"} and min(got.values()) > 0, f"not both used the GPU: {out!r}")
        expect(sum(got.values()) + 2 * 32 * MIB == QUOTA_BYTES, f"{got} and two contexts are not {QUOTA_BYTES}")
        expect(most == QUOTA_BYTES, f"the device had up to {most} bytes in use, the quota is {QUOTA_BYTES}")
        expect(most_processes == 2, f"{most_processes} processes were registered, not 2")
        expect_all_returned(machine)


def case_memory_view(build):
    """Everybody who can tell the size of the GPU tells the size of the vGPU."""
    with Machine(build, pacing=False) as machine:
        figures = re.compile(r"(?:of|properties|driver|nvml) (\d+)$", re.MULTILINE)
        bare = machine.run([machine.program("memory_info")])
        expect(bare.returncode == 0, f"bare: exit {bare.returncode}: {bare.stdout}{bare.stderr}")
        expect(figures.findall(bare.stdout) == [str(1024 * MIB)] * 4, f"bare: {bare.stdout!r}")
        machine.start_broker()
        shared = machine.run(machine.slice(machine.program("memory_info")))
        print(shared.stdout, end="")
        expect(shared.returncode == 0, f"exit {shared.returncode}: {shared.stdout}{shared.stderr}")
        expect(figures.findall(shared.stdout) == [str(QUOTA_BYTES)] * 4, f"not the quota: {shared.stdout!r}")
        free = QUOTA_BYTES - 32 * MIB
        expect(f"runtime {free} free of {QUOTA_BYTES}" in shared.stdout, f"the context is not counted: {shared.stdout!r}")


def case_visible_devices(build):
    """A CUDA_VISIBLE_DEVICES of the user does not choose the GPU under `sluice run`: the broker does, --gpu asks for one."""
    with Machine(build, pacing=False) as machine:
        machine.environment["SOFTGPU_COUNT"] = "2"
        machine.start_broker()
        uuids = [gpu["uuid"] for gpu in machine.status()["gpus"]]
        expect(len(uuids) == 2, f"not two GPUs: {uuids}")
        show = "sh", "-c", f"echo $CUDA_VISIBLE_DEVICES; exec {machine.program('memory_info')}"
        for mine in ("1", "0", uuids[1], "-1", ""):
            machine.environment["CUDA_VISIBLE_DEVICES"] = mine
            for options, granted in ((["--gpus", "1"], uuids[0]), (["--gpu", uuids[1]], uuids[1])):
                result = machine.run([str(machine.build / "bin" / "sluice"), "run", "--socket", str(machine.socket),
                                      "--memory", "256MiB", *options, "--", *show])
                expect(result.returncode == 0, f"{mine!r} {options}: exit {result.returncode}: {result.stderr}")
                lines = result.stdout.splitlines()
                expect(lines[:2] == [granted, "memory_info: 1 device"], f"{mine!r} {options}: {lines}")


def program_goes_on(machine, child):
    """Launches are still being made, by the device's account."""
    before = machine.account(child.pid)["launches"]
    wait_until("the program goes on launching", lambda: machine.account(child.pid)["launches"] > before + 8)


def case_broker_killed(build):
    """kill -9 of a broker without a journal: after the grace its tenants go on. The next broker does not know them and
    takes none of them in; each says so in one line, goes on, and keeps the quota that it had."""
    with Machine(build) as machine:
        machine.start_broker()
        jobs = [machine.start(machine.slice(machine.program("launch_loop"))) for _ in range(2)]
        taker = machine.start(machine.slice(machine.program("allocations"), memory="48MiB"), stdin=subprocess.PIPE)
        machine.kill_broker()
        for job in jobs:
            program_goes_on(machine, job)
        time.sleep(2)  # the grace; sooner, a refusal is no reason to say anything
        machine.start_broker()
        for program in (*jobs, taker):
            said = program.stderr.readline()
            print(said, end="")
            expect("does not take this program: no job of yours" in said, f"unexpected: {said!r}")
        expect(not machine.status()["tenants"], "a broker without memory of the past knows a tenant")
        for job in jobs:
            program_goes_on(machine, job)
        newcomer = machine.run(machine.slice(machine.program("vector_add")))
        expect(newcomer.returncode == 0, f"a new job failed: {newcomer.stdout}{newcomer.stderr}")
        # 42 of its 48 MiB are taken once the managed block is there; the stream-ordered 10 MiB are too much.
        out, err = taker.communicate("\n" * 20, timeout=300)
        expect(taker.returncode == 1 and out.split()[-1] == "managed", f"not stopped at its quota: {out!r} {err!r}")
        expect("sluice: refused" in err and "out of memory" in err, f"not told so: {err!r}")
        for job in jobs:
            out, err = machine.stop(job)
            expect(job.returncode == 0 and err == "", f"exit {job.returncode}, more was said: {err!r}")
        wait_until("the device has all its memory back", lambda: machine.device()["used_bytes"] == 0)


def case_broker_killed_default(build):
    """A program of nobody's tenant (preloaded by hand) is taken in by the broker that comes after, account and all."""
    with Machine(build) as machine:
        machine.start_broker()
        environment = dict(machine.environment, LD_PRELOAD=str(machine.build / "lib" / "libsluice.so"),
                           SLUICE_SOCKET=str(machine.socket))
        job = machine.start([machine.program("launch_loop")], environment=environment)
        wait_until("the job works on the GPU", lambda: machine.account(job.pid)["launches"] > 8)
        machine.kill_broker()
        machine.start_broker()

        def known():
            tenants = machine.status()["tenants"]
            return bool(tenants) and [p["pid"] for p in tenants[0]["processes"]] == [job.pid]

        wait_until("the new broker has its registration", known)
        program_goes_on(machine, job)
        held = machine.status()["tenants"][0]["gpus"][0]["held_bytes"]
        device = machine.account(job.pid)["memory_bytes"]
        expect(held == device, f"the account did not come along: broker {held}, device {device}")
        out, err = machine.stop(job)
        expect(job.returncode == 0 and err == "", f"exit {job.returncode}: {out!r} {err!r}")
        expect_all_returned(machine)


def case_broker_stopped(build):
    """A broker that is stopped (kill -STOP) keeps its socket open and answers nobody: its tenants go on, waiting ones, too,
    and are back in its turns when it continues."""
    with Machine(build) as machine:
        machine.start_broker()
        jobs = [machine.start(machine.slice(machine.program("launch_loop"), sm=50)) for _ in range(2)]
        for job in jobs:
            wait_until("both loops run", lambda job=job: machine.account(job.pid)["launches"] > 8)
        machine.broker.send_signal(signal.SIGSTOP)
        for job in jobs:
            program_goes_on(machine, job)
        machine.broker.send_signal(signal.SIGCONT)

        def known():
            return sorted(p["pid"] for t in machine.status()["tenants"] for p in t["processes"]) == sorted(
                job.pid for job in jobs)

        wait_until("the broker has both again", known)
        for job in jobs:
            program_goes_on(machine, job)
        for job in jobs:
            out, err = machine.stop(job)
            expect(job.returncode == 0 and err == "", f"exit {job.returncode}: {out!r} {err!r}")
        expect_all_returned(machine)


def case_narrowed(build):
    """SLUICE_MEMORY and SLUICE_SM under sluice run: less than the slice, never more."""
    with Machine(build, rate=16_000_000) as machine:
        machine.start_broker()
        for own, total in (("100MiB", 100), ("900MiB", 256)):
            environment = dict(machine.environment, SLUICE_MEMORY=own)
            done = machine.run(machine.slice(machine.program("memory_info")), environment=environment)
            print(done.stdout, end="")
            expect(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
            expect(str(total * MIB) in done.stdout, f"{own} of 256 MiB: {done.stdout}")
        environment = dict(machine.environment, SLUICE_SM="30%")
        job = machine.start(machine.slice(machine.program("launch_loop"), sm=50), environment=environment)
        wait_until("it runs", lambda: machine.account(job.pid)["launches"] > 8)
        time.sleep(1)
        before, begin = machine.account(job.pid)["busy_ns"], time.monotonic_ns()
        time.sleep(4)
        share = (machine.account(job.pid)["busy_ns"] - before) / (time.monotonic_ns() - begin)
        print(f"30 % of the time asked, {100 * share:.2f} % received")
        expect(0.27 <= share <= 0.31, f"{100 * share:.2f} % of the time")
        machine.stop(job)


def agreed(machine, jobs):
    """Every job's process is registered, and the broker's account of it is the driver's to the byte."""
    rows = {p["pid"]: (t, g) for t in machine.status()["tenants"] for g in t["gpus"] for p in t["processes"]}
    return set(rows) == {job.pid for job in jobs} and all(
        t["unregistered"] == 0 and g["held_bytes"] == machine.account(pid)["memory_bytes"]
        for pid, (t, g) in rows.items())


def known(machine):
    """What a restart of the broker must not change, by tenant."""
    return {t["tenant"]: (t["name"], t["uid"], t["class"], t["admitted_ns"],
                          [(g["uuid"], g["memory_max_bytes"], g["memory_min_bytes"], g["sm_percent"], g["held_bytes"])
                           for g in t["gpus"]]) for t in machine.status()["tenants"]}


def case_broker_restarted(build):
    """kill -9 of the broker under tenants that hold memory; the next one reads its journal. Numbers, limits and held
    bytes are the same before and after, and those of the driver. The quota is kept before, without a broker, and after:
    with 42 of 48 MiB taken the stream-ordered 10 MiB are refused, whenever they are asked for."""
    with Machine(build) as machine:
        machine.start_broker(remembering=True)
        takers = [machine.start(machine.slice(machine.program("allocations"), memory="48MiB"), stdin=subprocess.PIPE)
                  for _ in range(3)]
        loop = machine.start(machine.slice(machine.program("launch_loop")))
        jobs = [*takers, loop]
        for taker in takers:  # plain, pitched, managed: 42 MiB with the context
            for what in ("plain", "pitched", "managed"):
                taker.stdin.write("\n")
                taker.stdin.flush()
                expect(taker.stdout.readline().strip() == what, f"not {what}")
        wait_until("the accounts agree", lambda: agreed(machine, jobs))
        before = known(machine)
        device = {job.pid: machine.account(job.pid)["memory_bytes"] for job in jobs}
        expect(len(before) == 4 and sum(device.values()) > 100 * MIB, f"not all hold memory: {before} {device}")

        def refused(taker):
            out, err = taker.communicate("\n" * 20, timeout=300)
            expect(taker.returncode == 1 and "stream-ordered" not in out, f"not stopped at its quota: {out!r} {err!r}")
            expect("sluice: refused" in err and "out of memory" in err, f"not told so: {err!r}")

        refused(takers[0])
        wait_until("the first has ended", lambda: len(known(machine)) == 3)
        machine.kill_broker()
        refused(takers[1])
        program_goes_on(machine, loop)
        machine.start_broker(remembering=True)
        rest = [takers[2], loop]
        wait_until("the others are back", lambda: agreed(machine, rest))
        wait_until("who ended meanwhile is forgotten", lambda: len(known(machine)) == 2)
        after = known(machine)
        expect(all(after[number] == before[number] for number in after), f"before {before}, after {after}")
        expect({job.pid: machine.account(job.pid)["memory_bytes"] for job in rest} ==
               {job.pid: device[job.pid] for job in rest}, "the driver's account has changed")
        program_goes_on(machine, loop)
        refused(takers[2])
        newcomer = machine.run(machine.slice(machine.program("vector_add")))
        expect(newcomer.returncode == 0, f"a new job failed: {newcomer.stdout}{newcomer.stderr}")
        out, err = machine.stop(loop)
        expect(loop.returncode == 0 and err == "", f"exit {loop.returncode}: {out!r} {err!r}")
        expect_all_returned(machine)


def case_broker_restarted_often(build):
    """A broker that is killed again and again, also while programs come back to it: they never notice."""
    with Machine(build) as machine:
        machine.start_broker(remembering=True)
        loops = [machine.start(machine.slice(machine.program("launch_loop"))) for _ in range(3)]
        wait_until("the accounts agree", lambda: agreed(machine, loops))
        before = known(machine)
        for number in range(8):
            machine.kill_broker()
            machine.start_broker(remembering=True)
            if number % 2 == 0:
                wait_until("one of them is back", lambda: any(t["unregistered"] == 0 for t in machine.status()["tenants"]))
        wait_until("all are back", lambda: agreed(machine, loops))
        expect(known(machine) == before, f"before {before}, after {known(machine)}")
        for loop in loops:
            program_goes_on(machine, loop)
        for loop in loops:
            out, err = machine.stop(loop)
            expect(loop.returncode == 0 and err == "", f"exit {loop.returncode}: {out!r} {err!r}")
        expect_all_returned(machine)


def case_broker_restarted_family(build):
    """A job of two processes that fill its quota together, at the moment when the broker is killed and comes back:
    whoever returns first finds the other's bytes, and together they never have more than the quota."""
    with Machine(build, pacing=False) as machine:
        machine.start_broker(remembering=True)
        job = machine.launch(machine.slice(machine.program("fork_probers"), memory="512MiB"))
        most, restarts = 0, 0
        while job.poll() is None:
            most = max(most, machine.device()["used_bytes"])
            if most > (restarts + 2) * 64 * MIB and restarts < 5:
                machine.kill_broker()
                machine.start_broker(remembering=True)
                restarts += 1
        out, err = job.communicate()
        print(out, f"{restarts} restarts", end="")
        expect(job.returncode == 0, f"exit {job.returncode}: {err}")
        expect(restarts > 0, "it was too fast for the broker to be killed")
        expect(most <= 512 * MIB, f"the device had up to {most} bytes in use, the quota is {512 * MIB}")


def case_broker_reloaded(build):
    """A profile that is lowered and raised again while programs run: the shim keeps to it, at the next allocation."""
    with Machine(build) as machine:
        machine.start_broker()
        takers = [machine.start(machine.slice(machine.program("allocations"), memory="48MiB"), stdin=subprocess.PIPE)
                  for _ in range(2)]

        def go_on(taker, what):
            taker.stdin.write("\n")
            taker.stdin.flush()
            expect(taker.stdout.readline().strip() == what, f"not {what}")

        def limit(text, mib):
            (machine.directory / "sluice.toml").write_text(text)
            machine.broker.send_signal(signal.SIGHUP)
            wait_until("it is in force", lambda: {g["memory_max_bytes"] for t in machine.status()["tenants"]
                                                  for g in t["gpus"]} == {mib * MIB})

        for taker in takers:  # 37.6 MiB with the context
            go_on(taker, "plain")
            go_on(taker, "pitched")
        limit('[profile.default]\nmemory_max = "40MiB"\n', 40)
        out, err = takers[0].communicate("\n" * 20, timeout=300)
        expect(takers[0].returncode == 1 and "managed" not in out, f"3 MiB more than 40: {out!r} {err!r}")
        expect("of your 40.0 MiB" in err, f"not told so: {err!r}")
        wait_until("it has ended", lambda: len(machine.status()["tenants"]) == 1)
        limit("", 48)
        go_on(takers[1], "managed")
        out, err = takers[1].communicate("\n" * 20, timeout=300)
        expect(takers[1].returncode == 1 and "stream-ordered" not in out, f"10 MiB more than 48: {out!r} {err!r}")
        expect_all_returned(machine)


def main():
    cases = {
        "accounts_agree": case_accounts_agree,
        "broker_killed": case_broker_killed,
        "broker_killed_default": case_broker_killed_default,
        "broker_stopped": case_broker_stopped,
        "narrowed": case_narrowed,
        "broker_reloaded": case_broker_reloaded,
        "broker_restarted": case_broker_restarted,
        "broker_restarted_often": case_broker_restarted_often,
        "broker_restarted_family": case_broker_restarted_family,
        "deep_queue": case_deep_queue,
        "every_allocation": case_every_allocation,
        "module_variables": case_module_variables,
        "fork_quota": case_fork_quota,
        "memory_view": case_memory_view,
        "visible_devices": case_visible_devices,
        "prober_bare": case_prober_bare,
        "prober_quota": case_prober_quota,
        "crasher": case_crasher,
        "killed": lambda build: case_killed(build, "launch_loop"),
        "killed_endless": lambda build: case_killed(build, "endless_kernel"),
        "shares": case_shares,
        "endless_reported": case_endless_reported,
        "endless_ended": case_endless_ended,
        "endless_six": case_endless_six,
    }
    for name in ("vector_add", "reduction", "matmul", "streams_events"):
        cases[name] = lambda build, name=name: case_same_output(build, name)
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="the build directory")
    parser.add_argument("case", choices=sorted(cases))
    options = parser.parse_args()
    try:
        cases[options.case](options.build)
    except AssertionError as failure:
        print(f"run_programs.py: {options.case}: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
