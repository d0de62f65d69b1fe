#!/usr/bin/env python3
"""Samples a second of synchronous and asynchronous training with a slow worker, by this host's clock.

    async_bench.py --build build/dev
    async_bench.py --build build/dev --workers 3 --slow none,20000,200000:10 --staleness 0,4,1000000

--slow names what the last worker sleeps, in microseconds, in every step (or every EVERY-th: US:EVERY). `sync` is --strategy data
with as many ranks as there are workers. All variants run in turns, --repeats times; each figure is the median, with the lowest
and the highest. `slow` and `fast` are steps of the slow and of the first worker.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def train(build, seconds, arguments):
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "log")
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "lib/softgpu"), SOFTGPU_PACING="0", SOFTGPU_COUNT="1",
                           SOFTGPU_DIR=os.path.join(directory, "softgpu"))
        command = [os.path.join(build, "bin/sluice-train"), "--data", "synthetic", "--eval-samples", "0", "--quiet", "--comm", "gloo",
                   "--batch", "8", "--hidden", "16", "--lr", "0.001", "--seconds", seconds, "--log", log, *arguments]
        subprocess.run(command, env=environment, check=True, timeout=300)
        with open(log) as lines:
            events = [json.loads(line) for line in lines]
    steps = [e for e in events if e["event"] == "step"]
    ranks = sorted({s["rank"] for s in steps})
    spent = (max(s["t_ns"] for s in steps) - min(s["t_ns"] - s["duration_ns"] for s in steps)) / 1e9
    return {"rate": events[-1]["samples"] / spent, "fast": sum(s["rank"] == ranks[0] for s in steps),
            "slow": sum(s["rank"] == ranks[-1] for s in steps), "age": events[-1].get("staleness_mean", 0)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build's directory")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--slow", default="none,20000,200000:10", help="with commas between them")
    parser.add_argument("--staleness", default="0,4,1000000", help="bounds, with commas between them")
    parser.add_argument("--seconds", default="3")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'slow, us':>12} {'strategy':>16} {'samples/s':>10} {'low':>8} {'high':>8} {'of sync':>8} {'fast':>6} {'slow':>6} {'age':>6}")
    for slow in options.slow.split(","):
        variants = {"sync": ["--nproc", str(options.workers)]}
        for bound in options.staleness.split(","):
            variants[f"async {bound}"] = ["--nproc", str(options.workers + 1), "--strategy", "async", "--staleness", bound]
        if slow != "none":
            for name, arguments in variants.items():
                arguments += ["--plant-slow", f"{options.workers - (name == 'sync')}:{slow}"]
        runs = {name: [] for name in variants}
        for _ in range(options.repeats):
            for name, arguments in variants.items():
                runs[name].append(train(options.build, options.seconds, arguments))
        middle = {n: {k: statistics.median(run[k] for run in of) for k in of[0]} for n, of in runs.items()}
        for name, of in runs.items():
            one = middle[name]
            rates = [run["rate"] for run in of]
            print(f"{slow:>12} {name:>16} {one['rate']:10.0f} {min(rates):8.0f} {max(rates):8.0f} "
                  f"{one['rate'] / middle['sync']['rate']:8.2f} {one['fast']:6.0f} {one['slow']:6.0f} {one['age']:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
