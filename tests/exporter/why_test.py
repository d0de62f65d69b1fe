"""Programs that are each idle for one planted cause, and what `sluice why` says of them.

Usage: why_test.py BUILD CASE [--no-bpf]. Each program uses the software GPU for a few milliseconds of each round and is idle
for much longer; its cause must have at least nine tenths of the idle time for which the machine had a CPU for it, and busy time and causes must add up to the time.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402

SKIPPED = 77
WATCHED_S = 4
# What a sampler of /proc can promise is less.
LEAST = {"bpf": 0.9, "proc": 0.5}


def watch(machine, name, *flags, seconds=WATCHED_S):
    command = [machine.build / "bin/sluice", "why", name, "--json", "--for", f"{seconds}s", "--socket", machine.socket, *flags]
    answer = subprocess.run(command, env=machine.environment, capture_output=True, text=True, timeout=60)
    if answer.returncode != 0:
        raise AssertionError(f"sluice why: {answer.stderr}")
    return json.loads(answer.stdout)


def shares_of(row):
    all_idle = sum(row["idle_ns"].values())
    return {name: round(ns / all_idle, 3) for name, ns in row["idle_ns"].items() if ns}


def check_sums(report, cause, elapsed_s):
    """What holds of every report, however busy the machine was."""
    (row,) = report["tenants"]
    print(f"{cause}: busy {row['busy_ns'] / row['accounted_ns']:.3f}, idle {shares_of(row)} of {row['accounted_ns'] / 1e9:.2f} s "
          f"({report['source']})")
    assert row["busy_ns"] + sum(row["idle_ns"].values()) == row["accounted_ns"], row
    assert row["unseen_ns"] == 0 and report["periods_lost"] == 0, report
    # All of the time that was watched but what was still going on at its end.
    assert 0.8 * WATCHED_S <= row["accounted_ns"] / 1e9 <= elapsed_s, (row, elapsed_s)
    assert row["busy_ns"] > 0, row
    return row


def planted_ns(row, cause):
    """The idle time for which the job could have had a CPU: else that is the cause, whatever was planted."""
    return sum(row["idle_ns"].values()) - (row["idle_ns"]["runqueue"] if cause != "runqueue" else 0)


def throttle(pids):
    """A tenth of a CPU for these processes; the group's folder, or nothing where there is no such group to be made."""
    for mount, file, text in (("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "10000"), ("/sys/fs/cgroup", "cpu.max", "10000 100000")):
        folder = pathlib.Path(mount) / f"sluice_why_{os.getpid()}"
        try:
            folder.mkdir()
            (folder / file).write_text(text)
            for pid in pids:
                (folder / "cgroup.procs").write_text(str(pid))
            return folder
        except OSError:
            if folder.exists():
                folder.rmdir()
    return None


def check_joined(machine, pids, waited_for):
    report = watch(machine, "sh", seconds=2)
    (row,) = report["tenants"]
    print({name: value for name, value in row.items() if name != "idle_ns"})
    if report["source"] != "bpf":
        print("skipped: BPF programs cannot be loaded here")
        return SKIPPED
    assert row["least_waiting_process"] == waited_for, (row, waited_for)
    assert row["others_wait_ns"] > 0.5e9 > 2 * row["least_wait_ns"], row
    folder = throttle(pids)
    if folder is None:
        print("no cgroup can be made here: limits were not looked at")
        return 0
    try:
        (row,) = watch(machine, "sh", seconds=2)["tenants"]
        assert row["cgroup_throttled_ns"] > 0.2e9, row
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_until("the group is empty", lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()
    return 0


def run_joined(build):
    """Two ranks of one job, one of which waits for the network, and a limit on their CPU time: both are joined in."""
    with Machine(build, rate=2e8) as machine:  # both have the GPU to themselves most of the time
        machine.start_broker()
        script = f"{machine.program('idler')} network {machine.build} & exec {machine.program('idler')} cpu {machine.build}"
        job = machine.start(machine.slice("sh", "-c", script, sm=50))
        processes = lambda: [one["pid"] for one in machine.status()["tenants"][0]["processes"]]  # noqa: E731
        wait_until("both are there", lambda: len(processes()) == 2)
        pids = processes()
        try:
            return check_joined(machine, pids, job.pid)
        finally:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


def watch_once(machine, job, flags):
    begin, used_ns = time.monotonic(), machine.account(job.pid)["busy_ns"]
    report = watch(machine, "idler", *flags)
    elapsed_s, used_ns = time.monotonic() - begin, machine.account(job.pid)["busy_ns"] - used_ns
    assert job.poll() is None, job.stderr.read()
    return report, elapsed_s, used_ns / 1e9 / elapsed_s


def watch_until_seen(machine, job, cause, flags):
    """Up to three reports: a while in which the host took the CPUs away says little of the planted cause."""
    for attempt in range(3):
        report, elapsed_s, used = watch_once(machine, job, flags)
        if "--no-bpf" not in flags and report["source"] != "bpf":
            print("skipped: BPF programs cannot be loaded here")
            return SKIPPED
        row = check_sums(report, cause, elapsed_s)
        planted, busy = planted_ns(row, cause), row["busy_ns"] / row["accounted_ns"]
        # Busy is what the GPU itself says, but for the moments before and after the watching.
        if row["idle_ns"][cause] >= LEAST[report["source"]] * planted and abs(busy - used) <= 0.03:
            return 0
    if planted < 0.2 * sum(row["idle_ns"].values()):
        print("skipped: others had the machine's CPUs")
        return SKIPPED
    raise AssertionError(f"idle for {cause}, and in three reports something else was said: {shares_of(row)}, busy "
                         f"{busy:.3f} of the time, {used:.3f} says the GPU")


def run_case(build, case, flags):
    if case == "joined":
        return run_joined(build)
    cause = "disk" if case == "loader" else case
    with Machine(build, rate=2e7) as machine:
        machine.start_broker()
        # Not in memory: the directory of the test is.
        folder = pathlib.Path(build).resolve()
        idler = str(machine.build / "tests/programs/idler")
        # Ahead of whatever else the machine runs, where that is permitted.
        ahead = ["nice", "-n", "-20"] if os.geteuid() == 0 and case != "runqueue" else []
        job = machine.start(ahead + machine.slice(idler, case, str(folder), sm=10 if case == "gate" else 50))
        if case == "gate":
            machine.start(machine.slice(machine.program("launch_loop"), sm=90))
        time.sleep(1)
        return watch_until_seen(machine, job, cause, flags)


if __name__ == "__main__":
    sys.exit(run_case(sys.argv[1], sys.argv[2], sys.argv[3:]))
