"""Programs that are each idle for one planted cause, and what `sluice why` says of them.

Usage: why_test.py BUILD CASE [--no-bpf]. Each program uses the software GPU for a few milliseconds of each round and is idle
for much longer; its cause must have at least nine tenths of the idle time for which the machine had a CPU for it, and busy time and causes must add up to the time.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine  # noqa: E402

SKIPPED = 77
WATCHED_S = 4
# What a sampler of /proc can promise is less.
LEAST = {"bpf": 0.9, "proc": 0.5}


def watch(machine, name, *flags):
    command = [machine.build / "bin/sluice", "why", name, "--json", "--for", f"{WATCHED_S}s", "--socket", machine.socket, *flags]
    answer = subprocess.run(command, env=machine.environment, capture_output=True, text=True, timeout=60)
    if answer.returncode != 0:
        raise AssertionError(f"sluice why: {answer.stderr}")
    return json.loads(answer.stdout)


def check(report, cause, elapsed_s):
    (row,) = report["tenants"]
    idle = row["idle_ns"]
    all_idle = sum(idle.values())
    shares = {name: round(ns / all_idle, 3) for name, ns in idle.items() if ns}
    print(f"{cause}: busy {row['busy_ns'] / row['accounted_ns']:.3f}, idle {shares} of {row['accounted_ns'] / 1e9:.2f} s "
          f"({report['source']})")
    assert row["busy_ns"] + all_idle == row["accounted_ns"], row
    assert row["unseen_ns"] == 0 and report["periods_lost"] == 0, report
    # All of the time that was watched but what was still going on at its end.
    assert 0.8 * WATCHED_S <= row["accounted_ns"] / 1e9 <= elapsed_s, (row, elapsed_s)
    assert row["busy_ns"] > 0, row
    # Time for which others have the machine's CPUs is that, whatever else was planted.
    planted = all_idle - (idle["runqueue"] if cause != "runqueue" else 0)
    if planted < 0.2 * all_idle:
        print("skipped: others had the machine's CPUs")
        return SKIPPED
    assert idle[cause] >= LEAST[report["source"]] * planted, (cause, shares)
    return 0


def run_case(build, case, flags):
    cause = "disk" if case == "loader" else case
    with Machine(build, rate=2e7) as machine:
        machine.start_broker()
        # Not in memory: the directory of the test is.
        folder = pathlib.Path(build).resolve()
        idler = str(machine.build / "tests/programs/idler")
        # Ahead of whatever else the machine runs, where that is permitted.
        ahead = ["nice", "-n", "-20"] if os.geteuid() == 0 and case != "runqueue" else []
        job = machine.start(ahead + machine.slice(idler, case, str(folder), sm=10 if case == "gate" else 50))
        other = None
        if case == "gate":
            other = machine.start(machine.slice(machine.program("launch_loop"), sm=90))
        time.sleep(1)
        begin, used_ns = time.monotonic(), machine.account(job.pid)["busy_ns"]
        report = watch(machine, "idler", *flags)
        elapsed_s, used_ns = time.monotonic() - begin, machine.account(job.pid)["busy_ns"] - used_ns
        assert job.poll() is None, job.stderr.read()
        assert other is None or other.poll() is None
        if "--no-bpf" not in flags and report["source"] != "bpf":
            print("skipped: BPF programs cannot be loaded here")
            return SKIPPED
        if check(report, cause, elapsed_s) == SKIPPED:
            return SKIPPED
        # Busy is what the GPU itself says, but for the moments before and after the watching.
        row = report["tenants"][0]
        busy, used = row["busy_ns"] / row["accounted_ns"], used_ns / 1e9 / elapsed_s
        assert abs(busy - used) <= 0.03, (busy, used)
    return 0


if __name__ == "__main__":
    sys.exit(run_case(sys.argv[1], sys.argv[2], sys.argv[3:]))
