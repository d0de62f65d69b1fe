#!/usr/bin/env python3
"""Grids of ranks that train a small transformer: how idle a pipeline's stages are, and what ways to use the same ranks cost.

    grid_bench.py --build build/dev
    grid_bench.py --build build/dev --stages 2,4 --micro 1,2,4,8,16 --grids 4x1x1,2x2x1,1x2x2

Every rank has a software GPU of its own, and all figures but bytes are its modelled time, in which this host's speed is no part.
The bubble is the idle share of the stages in the step's span, beside (p-1)/(m+p-1), which holds for stages of equal length and
messages that take no time (so the link takes none here), and beside what 1F1B takes with stages as long as those measured: the
slowest works through all micro-batches, while one of them goes through all stages. Figures are the least of the steps but the first:
on a busy host a software GPU's clock may count some of the waiting, never too little.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile


def train(options, ranks, arguments):
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "log")
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(options.build, "lib/softgpu"), SOFTGPU_PACING="0",
                           SOFTGPU_COUNT=str(ranks), SOFTGPU_DIR=os.path.join(directory, "softgpu"), TMPDIR=directory)
        command = [os.path.join(options.build, "bin/sluice-train"), "--model", "gpt", "--layers", options.layers, "--heads", "4", "--width",
                   options.width, "--context", "8", "--data", "synthetic", "--eval-samples", "0", "--comm", "gloo", "--nproc", str(ranks),
                   "--steps", options.steps, "--log", log, *arguments]
        text = subprocess.run(command, env=environment, check=True, timeout=300, stdout=subprocess.PIPE, text=True).stdout
        with open(log) as lines:
            events = [json.loads(line) for line in lines]
    steps = [e for e in events if e["event"] == "step" and e["step"] > 0]
    return steps, events[-1], text


def bubbles(options):
    print(f"{'stages':>6} {'micro':>6} {'span ms':>8} {'bubble':>8} {'1F1B of these stages':>21} {'(p-1)/(m+p-1)':>14}")
    for stages in map(int, options.stages.split(",")):
        for micro in map(int, options.micro.split(",")):
            steps, _, _ = train(options, stages, ["--pipeline", str(stages), "--accumulate", str(micro), "--batch", "1",
                                                  "--link-alpha-us", "0", "--link-gbps", "0"])
            busy = [min(s["busy_ns"] for s in steps if s["rank"] == rank) for rank in range(stages)]
            span = min(s["pipeline_ns"] for s in steps)
            expected = (sum(busy) - max(busy)) / micro + max(busy)
            mean = sum(busy) / stages
            print(f"{stages:6} {micro:6} {span / 1e6:8.2f} {100 * (1 - mean / span):7.1f}% {100 * (1 - mean / expected):20.1f}% "
                  f"{100 * (stages - 1) / (micro + stages - 1):13.1f}%", flush=True)


def grids(options):
    print(f"\n{'data x pipeline x tensor':>24} {'step ms':>8} {'MiB':>6} {'sent bytes':>11}   of 16 samples in all; MiB of the fullest rank; "
          "bytes of rank 0")
    for grid in options.grids.split(","):
        data, pipeline, tensor = map(int, grid.split("x"))
        ranks = data * pipeline * tensor
        micro = 4 if pipeline > 1 else 1
        steps, end, text = train(options, ranks, ["--pipeline", str(pipeline), "--tensor", str(tensor), "--accumulate", str(micro),
                                                  "--batch", str(16 // data // micro)])
        step = min(s["device_ns"] + s["exposed_ns"] for s in steps if s["rank"] == 0)
        memory = max((float(line.split(" weights; ")[1].split()[0]) for line in text.splitlines() if " weights; " in line))
        print(f"{data:10} x {pipeline:4} x {tensor:4} {step / 1e6:8.2f} {memory:6.2f} "
              f"{end['sent_bytes'] / end['steps']:11.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build's directory")
    parser.add_argument("--stages", default="2,4", help="with commas between them")
    parser.add_argument("--micro", default="1,2,4,8", help="micro-batches, with commas between them")
    parser.add_argument("--grids", default="1x1x1,4x1x1,2x2x1,2x1x2,1x4x1,1x2x2,1x1x4", help="data x pipeline x tensor")
    parser.add_argument("--layers", default="4")
    parser.add_argument("--width", default="32")
    parser.add_argument("--steps", default="8")
    options = parser.parse_args()
    if options.micro:
        bubbles(options)
    if options.grids:
        grids(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
