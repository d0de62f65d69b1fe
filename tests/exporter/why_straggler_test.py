"""Training on several GPUs, one rank of which is slow: what `sluice why` says of the others, and whom it names.

Usage: why_straggler_test.py BUILD CASE. Three ranks of sluice-train, each with a software GPU, step together. One of them
sleeps in every step (slow), or has a tenth of a CPU in a cgroup of its own (throttled).
"""

import json
import pathlib
import re
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
import why_test  # noqa: E402
from machine import Machine, wait_until  # noqa: E402

SKIPPED = 77
RANKS = 3
STRAGGLER = 1
ATTEMPTS = 4
WATCHED_S = 3
# Of what the planted rank does with its own GPU's idle time.
OWN_CAUSE = {"slow": "no-work", "throttled": "runqueue"}


def ranks_of(machine):
    """The processes of the ranks, by rank, as their command lines have it."""
    out = {}
    for process in machine.status()["tenants"][0]["processes"]:
        line = pathlib.Path(f"/proc/{process['pid']}/cmdline").read_text().replace("\0", " ")
        rank = re.search(r"--as-rank (\d+):", line)
        if rank:
            out[int(rank[1])] = process["pid"]
    return out


def steps(machine):
    tenants = machine.status()["tenants"]
    return tenants[0].get("steps") or 0 if tenants else 0


def is_told(report, straggler, own_cause):
    """Whether two of three GPUs are said to wait for the network, and the third for what was planted."""
    rows = report["tenants"]
    assert len(rows) == RANKS, report
    for row in rows:
        assert row["busy_ns"] + sum(row["idle_ns"].values()) == row["accounted_ns"], row
    # Time for which the host had no CPU for the others says nothing of whom they wait for.
    worst = [max((name for name in row["idle_ns"] if name != "runqueue" or name == own_cause), key=row["idle_ns"].get) for row in rows]
    print({"causes": worst, "named": rows[0].get("least_waiting_process"), "straggler": straggler, "waited_s": round(rows[0].get("least_wait_ns", 0) / 1e9, 2),
           "others_waited_s": round(rows[0].get("others_wait_ns", 0) / 1e9, 2), "score": rows[0].get("straggler_score")})
    return (sorted(worst) == sorted(["network"] * (RANKS - 1) + [own_cause])
            and all(row.get("least_waiting_process") == straggler and 2 * row["least_wait_ns"] < row["others_wait_ns"] for row in rows))


def watch(machine, straggler, case):
    for _ in range(ATTEMPTS):
        report = why_test.watch(machine, "sluice-train", seconds=WATCHED_S)
        if report["source"] != "bpf":
            print("skipped: BPF programs cannot be loaded here")
            return SKIPPED
        if is_told(report, straggler, OWN_CAUSE[case]):
            return 0
    raise AssertionError(f"rank {STRAGGLER}, process {straggler}, is {case}: in {ATTEMPTS} reports something else was said: {json.dumps(report)}")


def run(build, case):
    with Machine(build) as machine:
        machine.environment["SOFTGPU_COUNT"] = str(RANKS)
        machine.start_broker()
        train = [machine.build / "bin/sluice-train", "--data", "synthetic", "--nproc", str(RANKS), "--seconds", "1000", "--eval-samples", "0", "--quiet"]
        if case == "slow":
            train += ["--plant-slow", f"{STRAGGLER}:50000"]
        job = machine.launch([machine.build / "bin/sluice", "run", "--socket", machine.socket, "--class", "batch", "--gpus", str(RANKS), "--memory",
                              "256MiB", "--sm", "100", "--", *train])
        wait_until("it steps", lambda: steps(machine) >= 5 or job.poll() is not None, 60)
        assert job.poll() is None, job.stderr.read()
        straggler = ranks_of(machine)[STRAGGLER]
        folder = why_test.throttle([straggler]) if case == "throttled" else None
        if case == "throttled" and folder is None:
            print("skipped: no cgroup can be made here")
            return SKIPPED
        try:
            return watch(machine, straggler, case)
        finally:
            if folder is not None:
                machine.stop(job)
                wait_until("the group is empty", lambda: not (folder / "cgroup.procs").read_text())
                folder.rmdir()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2]))
