"""The worked example of docs/idle-causes.md: a training job that is badly fed, and its causes fixed one by one.

Usage: feeding_test.py BUILD [SECONDS]. Prints what `sluice why` says before and after each remedy, watching for SECONDS (default 2).
The store is planted and sleeps: without a loader thread that is sleep of the training thread (`no-work`), with one it is waiting
for the loader (`lock`).
"""

import json
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402

SKIPPED = 77
REMEDIES = (("a store of 20 ms a batch, read by the training thread", ["--load-delay-us", "20000", "--prefetch", "0"]),
            ("two batches ahead, by a loader thread", ["--load-delay-us", "20000", "--prefetch", "2"]),
            ("and a store of 2 ms", ["--load-delay-us", "2000", "--prefetch", "2"]))
SETTLED_STEPS = 10


def steps(machine):
    tenants = machine.status()["tenants"]
    return tenants[0].get("steps") or 0 if tenants else 0


def watch(build, flags, seconds, form):
    with Machine(build) as machine:
        machine.start_broker()
        train = [str(machine.build / "bin/sluice-train"), "--data", "synthetic", "--nproc", "1", "--seconds", "100", "--eval-samples", "0", "--quiet"]
        job = machine.launch([str(machine.build / "bin/sluice"), "run", "--socket", str(machine.socket), "--class", "batch", "--memory",
                              "512MiB", "--sm", "100", "--", *train, *flags])
        wait_until("it steps", lambda: steps(machine) >= SETTLED_STEPS or job.poll() is not None, 60)
        assert job.poll() is None, job.stderr.read()
        begin, first = time.monotonic(), steps(machine)
        answer = subprocess.run([machine.build / "bin/sluice", "why", "sluice-train", "--for", f"{seconds}s", "--socket", machine.socket, *form],
                                env=machine.environment, capture_output=True, text=True, timeout=60, check=True).stdout
        return answer, (steps(machine) - first) / (time.monotonic() - begin)


def main():
    build, seconds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    if len(sys.argv) > 2:  # for people
        for what, flags in REMEDIES:
            text, rate = watch(build, flags, seconds, [])
            print(f"{what} ({' '.join(flags)}): {rate:.1f} steps/s\n{text}")
        return 0
    fed = []
    for what, flags in REMEDIES:
        report = json.loads(watch(build, flags, seconds, ["--json"])[0])
        (row,) = report["tenants"]
        idle = row["idle_ns"]
        # Time for which others have the machine's CPUs is left out of all of them.
        known = row["accounted_ns"] - idle["runqueue"]
        waits, busy = (idle["no-work"] + idle["lock"]) / known, row["busy_ns"] / known
        print(f"{what}: busy {busy:.2f}, no-work {idle['no-work'] / known:.2f}, lock {idle['lock'] / known:.2f}")
        if report["source"] != "bpf" or idle["runqueue"] > known:
            print("skipped: no BPF here, or others had the machine's CPUs")
            return SKIPPED
        fed.append((waits, busy, idle["no-work"] / known))
    assert fed[0][2] > 0.2, "the training thread sleeps in the store"
    assert fed[1][2] < 0.5 * fed[0][2] and fed[1][0] < fed[0][0], "with a loader it does not, and waits less for it"
    assert fed[2][0] < 0.5 * fed[0][0] and fed[2][1] > fed[0][1], "and hardly for a faster store"
    return 0


if __name__ == "__main__":
    sys.exit(main())
