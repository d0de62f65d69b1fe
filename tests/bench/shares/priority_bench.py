#!/usr/bin/env python3
"""What an inference request pays for the batch job beside it, and what the batch job keeps: requests of ten kernels at random
times, alone and beside a batch tenant whose kernels are as long, in turn, through a real broker or under another library in
the shim's place.

    priority_bench.py --build build/dev                       at load 0.5
    priority_bench.py --build build/dev --load 0.3 --seconds 60
    priority_bench.py --build build/dev --preload OTHER.so --env PRIORITY={index}

A request's time is from when it was meant to start until the device's time of the end of its last kernel, waiting for the
requests before it included. Both runs of a repeat have their requests at the same times. `p99` and the rest are medians of
the repeats, the least and the most of them in brackets; `ratio` is beside over alone, of each repeat. `batch` is the part of
the device's time that the batch tenant got, `kept` that over what inference left: 1 - its own part. `sim` is what the simulator
says of such jobs, with requests at times of its own; --dilation makes the processes' host matter less. Times are the model's.
"""
import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "trainer/lab"))
from sluice_lab import processes
from shares_bench import summary, text_of

KERNELS = 10
BATCH_PERCENT = 30  # guaranteed; the rest is inference's


def percentile(values, part):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * part // 100) - 1)]


def gap_us(arguments):
    return round(arguments.kernel * KERNELS / arguments.load)


def simulated(arguments):
    """The same figures from the simulator; null under another library or other settings."""
    if arguments.preload or arguments.bare or arguments.config:
        return None
    serve = {"name": "serve", "class": "inference", "percent": 100 - BATCH_PERCENT, "program": "requests",
             "kernel_us": arguments.kernel, "kernels": KERNELS, "gap_us": gap_us(arguments)}
    batch = {"name": "batch", "percent": BATCH_PERCENT, "program": "loop", "kernel_us": arguments.kernel}
    repeats = []
    for seed in range(1, arguments.repeats + 1):
        alone, beside = (processes.simulated(arguments.build, jobs, arguments.seconds, seed)
                         for jobs in ([serve], [serve, batch]))
        one = {f"{name}_p{part}": result["jobs"][0][f"latency_p{part}_ns"] / 1e6
               for name, result in (("alone", alone), ("beside", beside)) for part in (50, 99)}
        shares = [job["busy_ns"][0] / beside["duration_ns"] for job in beside["jobs"]]
        repeats.append({**one, "p50_ratio": one["beside_p50"] / one["alone_p50"],
                        "p99_ratio": one["beside_p99"] / one["alone_p99"], "serve": shares[0], "batch": shares[1],
                        "kept": shares[1] / (1 - shares[0])})
    return {key: statistics.median(one[key] for one in repeats) for key in repeats[0]}


def run(arguments, seed, beside):
    """One run: the requests' times, and the parts of the device's time."""
    kernel, dilation = arguments.kernel * arguments.dilation, arguments.dilation
    specs = [processes.Spec("serve", 100 - BATCH_PERCENT, processes.load("requests", kernel="serve", kernel_us=kernel, kernels=KERNELS,
                                                                         gap_us=gap_us(arguments) * dilation, seed=seed), "inference")]
    if beside:
        specs.append(processes.Spec("batch", BATCH_PERCENT, processes.load("loop", kernel="batch", kernel_us=kernel, depth=4)))
    with processes.Machine(arguments, f"serve={kernel}us/skip,batch={kernel}us/skip") as machine:
        machine.start(specs)
        looks = machine.watch(arguments.warmup * dilation, arguments.seconds * dilation, 1)
        requests = [latency / dilation for _, latency in machine.tenants[0].requests]
    if not requests:
        raise RuntimeError("no request ended: give it more --seconds")
    return {"requests_ns": requests, "shares": [share[0] for share in processes.shares_of(looks)],
            "lag": processes.lag_of(looks)}


def figures_of(alone, beside):
    """The figures of one repeat."""
    # Of the same requests: those that both runs have come to.
    count = min(len(alone["requests_ns"]), len(beside["requests_ns"]))
    times = {f"{name}_p{part}": percentile(one["requests_ns"][:count], part) / 1e6
             for name, one in (("alone", alone), ("beside", beside)) for part in (50, 99)}
    serve, batch = beside["shares"]
    return {**times, "p50_ratio": times["beside_p50"] / times["alone_p50"],
            "p99_ratio": times["beside_p99"] / times["alone_p99"], "serve": serve, "batch": batch,
            "kept": batch / (1 - serve), "requests": count, "lag": max(alone["lag"], beside["lag"])}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    processes.add_options(parser)
    parser.add_argument("--load", type=float, default=0.5, help="part of the GPU that the requests ask for (0.5)")
    parser.add_argument("--kernel", type=int, default=1000, metavar="US", help="length of a kernel in microseconds (1000)")
    parser.add_argument("--seconds", type=float, default=30, help="of a run (30)")
    parser.add_argument("--warmup", type=float, default=0.5, metavar="S", help="seconds before device time counts (0.5)")
    arguments = parser.parse_args()
    processes.check_options(parser, arguments)
    if not 0 < arguments.load < 1 or arguments.kernel < 10 or arguments.seconds <= 0:
        parser.error("--load is between 0 and 1, --kernel at least 10, --seconds above 0")
    return arguments


def main():
    arguments = options()
    repeats = []
    for seed in range(1, arguments.repeats + 1):
        alone, beside = run(arguments, seed, False), run(arguments, seed, True)
        repeats.append({**figures_of(alone, beside), "alone": alone, "beside": beside})
    print(f"under {processes.under(arguments)}: {arguments.repeats} x {arguments.seconds:g} s, load {arguments.load:g}, "
          f"{min(r['requests'] for r in repeats)} requests or more each, kernels of {arguments.kernel} us, "
          f"dilation {arguments.dilation}, lag {100 * max(r['lag'] for r in repeats):.2f} %")
    sim = simulated(arguments)
    rows = {key: summary([{key: [one[key]]} for one in repeats], key)[0] for key in repeats[0] if "alone" != key != "beside"}
    for name, unit in (("alone_p50", "ms"), ("beside_p50", "ms"), ("p50_ratio", ""), ("alone_p99", "ms"), ("beside_p99", "ms"),
                       ("p99_ratio", "")):
        row = rows[name]
        beside = f"   sim {sim[name]:.3f}" if sim else ""
        print(f"{name:12}{row['median']:9.3f} {unit:2} ({row['least']:.3f} .. {row['most']:.3f}){beside}")
    for name in ("serve", "batch", "kept"):
        beside = f"   sim {100 * sim[name]:.2f}" if sim else ""
        print(f"{name:12}{text_of(rows[name])} %{beside}")
    processes.json_write(arguments, {"under": processes.under(arguments), "load": arguments.load, "dilation": arguments.dilation, "figures": rows,
                                     "sim": sim,
                                     "runs": repeats})
    return 0


if __name__ == "__main__":
    sys.exit(main())
