#!/usr/bin/env python3
"""Several models on one GPU: a process for each of them, by itself or as a vGPU of sluiced, against one process that serves them all.

    pooling_bench.py --build build/dev
    pooling_bench.py --build build/dev --models 4 --rate 100 --seconds 20 --repeats 3

All get the same models, the same total rate of requests and the same days (diurnal arrivals that begin apart), and each request's
latency counts from its scheduled arrival. The GPU is a software GPU with pacing, and every kernel takes `--kernel-ms` of it,
whatever the size of the batch (as where reading the weights is what takes the time), without being executed: so latencies are real
time of this host, of which its cores are only the part that a serving process needs. `--kernel-ms 0` executes the kernels, which then take the
time of the device's model by their instructions. `busy` is the GPU time of all processes for a request, modelled; `memory` their
peak on the device. A vGPU is of class inference with an equal part of the GPU. Where the cores were slower than the model by more than 5 % of the busy time (`lag`), a line says so: latencies
then say more about this host than about pooling. Each figure is the median over the repeats, with the least and the most.
"""
import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PROCESSES, VGPUS, POOLED = "processes", "vgpus", "pooled"


def percentile(values, percent):
    values = sorted(values)
    return values[max(1, math.ceil(percent / 100 * len(values))) - 1]


def program(options, name):
    return os.path.join(options.build, "bin", name)


def broker_start(options, environment, directory, running):
    """Starts sluiced; what comes before the command of a job to make it a vGPU of it."""
    path = os.path.join(directory, "sluiced.sock")
    with open(os.path.join(directory, "sluiced.log"), "w") as log:
        running.append(subprocess.Popen([program(options, "sluiced"), "--socket", path], env=environment, stdout=log, stderr=log))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and running[-1].poll() is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            if probe.connect_ex(path) == 0:
                return [program(options, "sluice"), "run", "--socket", path, "--class", "inference", "--sm", str(100 // options.models),
                        "--memory", "256MiB", "--gpus", "1", "--"]
        time.sleep(0.02)
    raise SystemExit("sluiced did not come up: " + open(os.path.join(directory, "sluiced.log")).read())


def serve(options, how, seed):
    """One run; its figures."""
    with tempfile.TemporaryDirectory(prefix="sluice-pooling-") as directory:
        environment = dict(os.environ, LD_LIBRARY_PATH=os.path.join(options.build, "lib/softgpu"), SOFTGPU_PACING="1", SOFTGPU_COUNT="1",
                           SOFTGPU_DIR=os.path.join(directory, "softgpu"))
        if options.kernel_ms > 0:
            environment["SOFTGPU_TIMED"] = f"*={options.kernel_ms}ms/skip"
        step = 2 * math.pi / options.models
        common = [program(options, "sluice-infer"), "--hidden", options.hidden, "--seconds", str(options.seconds), "--arrivals", "diurnal",
                  "--amplitude", str(options.amplitude), "--period", str(options.seconds / 2), "--batch-max", str(options.batch_max),
                  "--slo-ms", str(options.slo_ms), "--quiet"]
        logs, running = [], []
        try:
            prefix = broker_start(options, environment, directory, running) if how == VGPUS else []
            servers = []
            for number in range(1 if how == POOLED else options.models):
                log = os.path.join(directory, f"log{number}")
                logs.append(log)
                mine = ["--models", str(options.models), "--phase-step", str(step), "--rate", str(options.rate)] if how == POOLED else \
                    ["--phase", str(number * step), "--rate", str(options.rate / options.models)]
                servers.append(subprocess.Popen([*prefix, *common, *mine, "--seed", str(seed * 100 + number), "--log", log],
                                                env=environment))
                running.append(servers[-1])
            for one in servers:
                if one.wait(timeout=options.seconds + 120) != 0:
                    raise SystemExit("sluice-infer failed")
        finally:
            for one in reversed(running):
                one.terminate()
                one.wait(timeout=30)
        accounts = json.loads(subprocess.run([program(options, "softgpu-ctl"), "accounts", "--json"], env=environment, check=True,
                                             capture_output=True, timeout=30).stdout)
        events = []
        for log in logs:
            with open(log) as lines:
                events += [json.loads(line) for line in lines]
    device = accounts["devices"][0] if isinstance(accounts, dict) else accounts[0]
    served = [(e["done_ns"] - e["arrival_ns"]) / 1e6 for e in events if e["event"] == "request" and "done_ns" in e]
    asked = sum(e["event"] == "request" for e in events)
    batches = sum(e["count"] for e in events if e["event"] == "batches")
    return {"p50": percentile(served, 50), "p99": percentile(served, 99),
            "in time": 100 * sum(ms <= options.slo_ms for ms in served) / asked, "batch": len(served) / batches,
            "busy": 1e3 * device["busy_ns"] / 1e9 / asked,
            "memory": sum(p["memory_peak_bytes"] for p in device["processes"]) / 2**20,
            "lag": 100 * device["lag_ns"] / device["busy_ns"]}


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the build's directory")
    parser.add_argument("--ways", default=",".join((PROCESSES, VGPUS, POOLED)), help="which to compare")
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--hidden", default="128", help="units of the hidden layers of every model")
    parser.add_argument("--rate", type=float, default=100, help="requests per second, all models together, mean")
    parser.add_argument("--amplitude", type=float, default=0.8)
    parser.add_argument("--batch-max", type=int, default=8)
    parser.add_argument("--slo-ms", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernel-ms", type=float, default=1, help="of every kernel; 0 = executed, by their instructions")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    names = {PROCESSES: f"{options.models} processes", VGPUS: f"{options.models} vGPUs", POOLED: f"1 process, {options.models} models"}
    ways = options.ways.split(",")
    if not set(ways) <= set(names):
        parser.error("--ways takes some of " + ",".join(names))
    results = {how: [] for how in ways}
    for repeat in range(options.repeats):
        for how in ways if repeat % 2 == 0 else reversed(ways):
            results[how].append(serve(options, how, repeat + 1))
    for key, unit in (("p50", "ms"), ("p99", "ms"), ("in time", "%"), ("batch", "requests a batch"),
                      ("busy", "ms of GPU a request, modelled"), ("memory", "MiB on the GPU"), ("lag", "% of busy")):
        for how, runs in results.items():
            print(f"{key:<8} {names[how]:<20} {spread([r[key] for r in runs])} {unit}", flush=True)
    if max(r["lag"] for runs in results.values() for r in runs) > 5:
        print("inconclusive: this host executed kernels more slowly than the model says; lower --rate, or give --kernel-ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
