"""A model that exceeds the memory quota of one vGPU: refused in words on one, trained when split over two.

Usage: quota_test.py BUILD. A broker, two software GPUs, and sluice-train under `sluice run --memory Q`, where Q lies between what
the whole model and what half of it takes: what each takes is measured first, without a broker, by the software GPU's own account.
"""

import json
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402

MODEL = ["--model", "gpt", "--data", "synthetic", "--layers", "4", "--heads", "4", "--width", "256", "--context", "16", "--batch", "1",
         "--optimizer", "adam", "--eval-samples", "0", "--steps", "3"]
SPLITS = {"--tensor": "2", "--pipeline": "2"}


def train(machine, ranks, *more):
    return [str(machine.build / "bin/sluice-train"), *MODEL, "--nproc", str(ranks), *more]


def under_quota(machine, quota, ranks, *more):
    return machine.run([str(machine.build / "bin/sluice"), "run", "--socket", str(machine.socket), "--class", "batch", "--gpus", str(ranks),
                        "--memory", f"{quota}B", "--sm", "50", "--", *train(machine, ranks, *more)], timeout_s=150)


def accounts(machine):
    tool = [machine.build / "bin/softgpu-ctl", "accounts", "--json", "--dir", machine.environment["SOFTGPU_DIR"]]
    return json.loads(subprocess.run(tool, env=machine.environment, check=True, capture_output=True).stdout)["devices"]


def peak(machine, since):
    """The most that one process has had on a GPU, of those that were not there before."""
    return max(process["memory_peak_bytes"] for device in accounts(machine) for process in device["processes"] if process["pid"] not in since)


def pids(machine):
    return {process["pid"] for device in accounts(machine) for process in device["processes"]}


def measured(machine, ranks, *more):
    since = pids(machine)
    done = machine.run(train(machine, ranks, *more), timeout_s=150)
    assert done.returncode == 0, done.stderr
    return peak(machine, since)


def run(build):
    with Machine(build, pacing=False) as machine:
        machine.environment["SOFTGPU_COUNT"] = "2"
        whole = measured(machine, 1)
        parts = {split: measured(machine, 2, split, value) for split, value in SPLITS.items()}
        quota = (whole + max(parts.values())) // 2
        print(f"peak bytes of a process: whole {whole}, " + ", ".join(f"{split} 2 {part}" for split, part in parts.items())
              + f"; quota {quota}", flush=True)
        assert max(parts.values()) < 0.8 * whole, "the parts are not that much smaller"

        machine.start_broker()
        one = under_quota(machine, quota, 1)
        assert one.returncode == 1, (one.returncode, one.stdout, one.stderr)
        said = [line for line in one.stderr.splitlines() if "this rank needs" in line]
        assert len(said) == 1, one.stderr
        print(said[0])
        numbers = re.search(r"sluice: sluice-train: rank 0: this job's memory quota on its GPU is too small: this rank needs (\d+) bytes .*; "
                            r"(\d+) of the quota's (\d+) are free; split the model over more ranks \(--tensor, --pipeline\), ", said[0])
        assert numbers, said[0]
        need, free, total = map(int, numbers.groups())
        assert total == quota and free < need, said[0]

        for split, value in SPLITS.items():
            since = pids(machine)
            done = under_quota(machine, quota, 2, split, value)
            assert done.returncode == 0, (split, done.stdout, done.stderr)
            had = peak(machine, since)
            print(f"{split} 2 under the quota: {had} bytes at most")
            assert had <= quota, (split, had, quota)
            wait_until("it is gone", lambda: not machine.status()["tenants"])
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
