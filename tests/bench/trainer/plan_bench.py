#!/usr/bin/env python3
"""Predicted against measured step times, and the chosen plan against the best of all that this build executes.

    plan_bench.py --build build/dev
    plan_bench.py --build build/dev --models mlp,gpt --ranks 2 --margin 1.1

Per model and number of software GPUs: one `sluice-train calibrate`, one `sluice-train plan --json`, and a run of a few steps of every
candidate that the build executes (--margin leaves out those predicted to take more than so many times the quickest one's time).
A step is the device's time of input, forward, backward and update plus what of the modelled link's time nothing hid: modelled time,
in which this host's speed is no part. Exits with 1 where a prediction is off by more than --error-max per cent, or the chosen plan is
slower than the best one found by more than --regret-max per cent.
"""
import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

MODELS = {
    "mlp": ["--hidden", "64", "--batch", "16"],
    "mlp-wide": ["--hidden", "512,256", "--batch", "16", "--optimizer", "adam"],
    "cnn": ["--model", "cnn", "--channels", "8,16", "--hidden", "64", "--batch", "8"],
    "gpt": ["--model", "gpt", "--layers", "2", "--width", "64", "--heads", "4", "--context", "32", "--batch", "4", "--optimizer", "adamw"],
}


def job_of(job, candidate, plan):
    """The words of a job in a candidate's grid: the same samples of a step, in other micro-batches."""
    if candidate["tensor"] * candidate["pipeline"] == 1:
        return job
    batch = plan["global_batch"] // candidate["data"] // candidate["micro_batches"]
    at = job.index("--batch")
    return [*job[:at], "--batch", str(batch), *job[at + 2:], "--tensor", str(candidate["tensor"]),
            "--pipeline", str(candidate["pipeline"]), "--accumulate", str(candidate["micro_batches"])]


def candidate_text(c):
    grid = f"{c['tensor']}t{c['pipeline']}p{c['micro_batches']}m/" if c["tensor"] * c["pipeline"] > 1 else ""
    return f"{grid}{c['strategy']}/{c['algorithm']}/{c['bucket_bytes'] // 1024}K"


class Machine:
    """Some software GPUs of their own, and the calibration of them."""

    def __init__(self, build, ranks, link, directory):
        self.build, self.directory, self.link = build, directory, link
        self.environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "lib/softgpu"), SOFTGPU_PACING="0",
                                SOFTGPU_COUNT=str(ranks), SOFTGPU_RATE="80e6", SOFTGPU_COPY_RATE="1e9",
                                SOFTGPU_DIR=os.path.join(directory, "softgpu"))
        self.calibration = os.path.join(directory, "calibration.json")
        self.program("calibrate", "--out", self.calibration, *link)

    def program(self, *arguments):
        command = [os.path.join(self.build, "bin/sluice-train"), *arguments]
        return subprocess.run(command, env=self.environment, check=True, timeout=600, stdout=subprocess.PIPE, text=True).stdout

    def plan(self, ranks, job):
        return json.loads(self.program("plan", "--json", "--nproc", str(ranks), "--calibration", self.calibration, *self.link, *job))

    def step_ns(self, ranks, job, candidate, steps, plan):
        log = os.path.join(self.directory, "log")
        self.program("--nproc", str(ranks), "--comm", "gloo", "--steps", str(steps), "--eval-samples", "0", "--quiet", "--log", log,
                     "--strategy", candidate["strategy"], "--bucket", str(candidate["bucket_bytes"]),
                     "--algorithm", candidate["algorithm"], *self.link, *job_of(job, candidate, plan))
        with open(log) as lines:
            events = [json.loads(line) for line in lines]
        return statistics.median(e["device_ns"] + e["exposed_ns"] for e in events
                                 if e["event"] == "step" and e["rank"] == 0 and e["step"] > 0)


def cell_run(machine, name, ranks, options):
    """Lines of one model on so many GPUs; the largest error and the regret, in per cent."""
    job = ["--data", "synthetic", *MODELS[name]]
    plan = machine.plan(ranks, job)
    all_of = [c for c in plan["candidates"] if c["executable"] and c["fits"]]
    quickest = min(c["step_ns"] for c in all_of)
    candidates = [c for c in all_of if c["step_ns"] <= quickest * options.margin]
    errors, found = [], []
    for c in candidates:
        measured = machine.step_ns(ranks, job, c, options.steps, plan)
        errors.append(100 * (c["step_ns"] / measured - 1))
        found.append((measured, c))
        if options.verbose:
            print(f"    {candidate_text(c):>34} {c['step_ns'] / 1e6:10.3f} {measured / 1e6:10.3f} {errors[-1]:+7.2f}%", flush=True)
    same = ("strategy", "algorithm", "bucket_bytes", "tensor", "pipeline", "micro_batches")
    chosen = next(m for m, c in found if all(c[k] == plan["chosen"][k] for k in same))
    best, best_candidate = min(found, key=lambda one: one[0])
    regret = 100 * (chosen / best - 1)
    worst = max(errors, key=abs)

    def text(c):
        return candidate_text(c) if ranks > 1 else "one rank"

    print(f"{name:>9} {ranks:>5} {len(candidates):>4}/{len(all_of):<3} {plan['chosen']['step_ns'] / 1e6:10.3f} {chosen / 1e6:10.3f} "
          f"{worst:+8.2f}% {text(plan['chosen']):>30} {text(best_candidate):>30} {regret:7.2f}%", flush=True)
    return abs(worst), regret


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build's directory")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--margin", type=float, default=1e9)
    parser.add_argument("--link-alpha-us", default="20")
    parser.add_argument("--link-gbps", default="1")
    parser.add_argument("--error-max", type=float, default=15)
    parser.add_argument("--regret-max", type=float, default=5)
    parser.add_argument("--tries", type=int, default=1, help="of a cell that is not within them, each with a calibration of its own")
    parser.add_argument("--verbose", action="store_true", help="every candidate")
    options = parser.parse_args()
    link = ["--link-alpha-us", options.link_alpha_us, "--link-gbps", options.link_gbps]
    print(f"{'model':>9} {'ranks':>5} {'run/of':>8} {'predicted':>10} {'measured':>10} {'worst':>9} {'chosen':>30} {'best':>30} {'regret':>8}")
    cells = [(int(ranks), name) for ranks in options.ranks.split(",") for name in options.models.split(",")]
    for _ in range(options.tries):
        failed = []
        for ranks, group in itertools.groupby(cells, key=lambda cell: cell[0]):
            with tempfile.TemporaryDirectory() as directory:
                machine = Machine(options.build, ranks, link, directory)
                for _, name in group:
                    error, regret = cell_run(machine, name, ranks, options)
                    if error > options.error_max or regret > options.regret_max:
                        failed.append((ranks, name))
        cells = failed
        if not cells:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
