#!/usr/bin/env python3
"""What memory the optimizer's state takes where, and what that costs: whole on every rank, a part on each, or on the host.

    offload_bench.py --build build/dev
    offload_bench.py --build build/dev --ranks 2,4,8 --hidden 256,256 --optimizer adam,rmsprop

First --strategy sharded beside --strategy data: the bytes of state that a rank keeps against 1/N of all (weights that do not divide by
N are everyone's), and what it sends in a step. Then --offload optimizer beside the state on the device: where the state is, what
its copies move and take on the device's clock, and the time of a step. Every rank has a software GPU of its own; its figures are
modelled time, the least of the steps but the first. `wall` is this host's, the median: it has the updates that the host computes.
Exits with 1 where a rank's state is not what it should be.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def train(options, ranks, optimizer, arguments):
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "log")
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(options.build, "lib/softgpu"), SOFTGPU_PACING="0",
                           SOFTGPU_COUNT=str(ranks), SOFTGPU_DIR=os.path.join(directory, "softgpu"), TMPDIR=directory)
        command = [os.path.join(options.build, "bin/sluice-train"), "--data", "synthetic", "--hidden", options.hidden, "--batch", "4",
                   "--optimizer", optimizer, "--eval-samples", "0", "--comm", "gloo", "--quiet", "--nproc", str(ranks),
                   "--steps", options.steps, "--log", log, *arguments]
        subprocess.run(command, env=environment, check=True, timeout=300)
        with open(log) as lines:
            events = [json.loads(line) for line in lines]
    start = next(e for e in events if e["event"] == "start")
    steps = [e for e in events if e["event"] == "step" and e["rank"] == 0 and e["step"] > 0]
    return {**events[-1], "parameters": start["parameters"],
            "step_ns": min(s["device_ns"] + s["exposed_ns"] for s in steps),
            "wall_ns": statistics.median(s["duration_ns"] for s in steps)}


def sharded(options):
    good = True
    print(f"{'optimizer':>9} {'ranks':>5} {'state, data':>12} {'sharded':>10} {'1/N':>10} {'ratio':>7} {'sent, data':>11} {'sharded':>10} "
          f"{'step ms, data':>13} {'sharded':>8}")
    for optimizer in options.optimizer.split(","):
        for ranks in map(int, options.ranks.split(",")):
            whole, part = (train(options, ranks, optimizer, ["--strategy", strategy]) for strategy in ("data", "sharded"))
            share = whole["state_bytes"] / ranks
            arrays = whole["state_bytes"] // whole["parameters"]  # bytes of state for a weight
            good = good and share <= part["state_bytes"] <= share + arrays * ranks
            print(f"{optimizer:>9} {ranks:5} {whole['state_bytes']:12} {part['state_bytes']:10} {share:10.0f} "
                  f"{part['state_bytes'] / share:7.4f} {whole['sent_bytes'] / whole['steps']:11.0f} "
                  f"{part['sent_bytes'] / part['steps']:10.0f} {whole['step_ns'] / 1e6:13.3f} {part['step_ns'] / 1e6:8.3f}", flush=True)
    return good


def offload(options):
    good = True
    print(f"\n{'optimizer':>9} {'parameters':>10} {'on device':>10} {'on host':>10} {'copied, step':>12} {'copies ms':>9} "
          f"{'step ms, device':>15} {'host':>8} {'wall ms, device':>15} {'host':>8}")
    for optimizer in options.optimizer.split(","):
        device = train(options, 1, optimizer, [])
        host = train(options, 1, optimizer, ["--offload", "optimizer"])
        good = (good and host["state_bytes"] == 0 and host["host_state_bytes"] >= device["state_bytes"]
                and host["offload_bytes"] == 8 * host["parameters"] * host["steps"])
        print(f"{optimizer:>9} {host['parameters']:10} {device['state_bytes']:10} {host['host_state_bytes']:10} "
              f"{host['offload_bytes'] / host['steps']:12.0f} {host['offload_ns'] / host['steps'] / 1e6:9.3f} {device['step_ns'] / 1e6:15.3f} "
              f"{host['step_ns'] / 1e6:8.3f} {device['wall_ns'] / 1e6:15.2f} {host['wall_ns'] / 1e6:8.2f}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build's directory")
    parser.add_argument("--ranks", default="2,4", help="with commas between them")
    parser.add_argument("--optimizer", default="sgd,adam", help="with commas between them")
    parser.add_argument("--hidden", default="256,256", help="of the perceptron")
    parser.add_argument("--steps", default="8")
    options = parser.parse_args()
    good = sharded(options)
    good = offload(options) and good
    if not good:
        print("offload_bench: a rank's state or its copies are not what they should be", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
