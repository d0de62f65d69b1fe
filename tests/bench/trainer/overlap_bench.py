#!/usr/bin/env python3
"""The step of a data-parallel training with and without overlap of communication and backward pass, as a ratio.

    overlap_bench.py --build build/dev
    overlap_bench.py --build build/dev --hidden 784 --bucket 65536,1048576 --link-gbps 10,1

Both run in turns, --repeats times, on software GPUs; each figure is the median. A step is the device's time of forward, backward
and update plus what of the modelled link's time the backward pass did not hide: modelled time, in which this host's speed is
no part. `wall` is the ratio of the steps' durations on this host, where Gloo's own work takes the cores that the software
GPUs compute on.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def train(build, arguments):
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "log")
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(build, "lib/softgpu"), SOFTGPU_PACING="0", SOFTGPU_COUNT="2",
                           SOFTGPU_DIR=os.path.join(directory, "softgpu"))
        command = [os.path.join(build, "bin/sluice-train"), "--data", "synthetic", "--eval-samples", "0", "--quiet", "--comm", "gloo",
                   "--log", log, *arguments]
        subprocess.run(command, env=environment, check=True, timeout=300)
        with open(log) as lines:
            events = [json.loads(line) for line in lines]
    steps = [e for e in events if e["event"] == "step" and e["rank"] == 0][1:]  # the first sets up
    end = events[-1]
    return {"device": statistics.median(s["device_ns"] + s["exposed_ns"] for s in steps) / 1e6,
            "wall": statistics.median(s["duration_ns"] for s in steps) / 1e6,
            "collective": end["collective_ns"] / end["steps"] / 1e6, "overlap": end["overlap_ratio"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build's directory")
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--batch", default="16")
    parser.add_argument("--hidden", default="16,256,256", help="most of its gradients are final early")
    parser.add_argument("--bucket", default="16384,65536,1048576", help="bytes, with commas between them")
    parser.add_argument("--link-gbps", default="10,1", help="with commas between them")
    parser.add_argument("--steps", default="8")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'Gbit/s':>7} {'bucket':>9} {'link ms':>8} {'off ms':>8} {'on ms':>8} {'on/off':>7} {'hidden':>7} {'wall on/off':>12}")
    for gbps in options.link_gbps.split(","):
        for bucket in options.bucket.split(","):
            runs = {"off": [], "on": []}
            for _ in range(options.repeats):
                for overlap, results in runs.items():
                    results.append(train(options.build, ["--nproc", options.ranks, "--batch", options.batch, "--hidden", options.hidden,
                                                         "--steps", options.steps, "--bucket", bucket, "--link-gbps", gbps,
                                                         "--overlap", overlap]))
            middle = {o: {k: statistics.median(r[k] for r in runs[o]) for k in runs[o][0]} for o in runs}
            off, on = middle["off"], middle["on"]
            print(f"{gbps:>7} {bucket:>9} {off['collective']:8.3f} {off['device']:8.3f} {on['device']:8.3f} "
                  f"{on['device'] / off['device']:7.3f} {100 * on['overlap']:6.1f}% {on['wall'] / off['wall']:12.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
