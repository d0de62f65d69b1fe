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
the device's time that the batch tenant got, `kept` that over what inference left: 1 - its own part.
"""
import argparse
import statistics
import sys

import processes
from shares_bench import summary, text_of

KERNELS = 10
BATCH_PERCENT = 30  # guaranteed; the rest is inference's


def percentile(values, part):
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * part // 100) - 1)]


def run(arguments, seed, beside):
    """One run: the requests' times, and the parts of the device's time."""
    gap_us = round(arguments.kernel * KERNELS / arguments.load)
    specs = [processes.Spec("serve", 100 - BATCH_PERCENT, ["requests", f"serve={arguments.kernel}", str(KERNELS), str(gap_us),
                                                          str(seed)], "inference")]
    if beside:
        specs.append(processes.Spec("batch", BATCH_PERCENT, ["loop", f"batch={arguments.kernel}", "4"]))
    with processes.Machine(arguments, f"serve={arguments.kernel}us/skip,batch={arguments.kernel}us/skip") as machine:
        machine.start(specs)
        looks = machine.watch(arguments.warmup, arguments.seconds, 1)
        requests = [latency for _, latency in machine.tenants[0].requests]
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
          f"lag {100 * max(r['lag'] for r in repeats):.2f} %")
    rows = {key: summary([{key: [one[key]]} for one in repeats], key)[0] for key in repeats[0] if "alone" != key != "beside"}
    for name, unit in (("alone_p50", "ms"), ("beside_p50", "ms"), ("p50_ratio", ""), ("alone_p99", "ms"), ("beside_p99", "ms"),
                       ("p99_ratio", "")):
        row = rows[name]
        print(f"{name:12}{row['median']:9.3f} {unit:2} ({row['least']:.3f} .. {row['most']:.3f})")
    for name in ("serve", "batch", "kept"):
        print(f"{name:12}{text_of(rows[name])} %")
    processes.json_write(arguments, {"under": processes.under(arguments), "load": arguments.load, "figures": rows,
                                     "runs": repeats})
    return 0


if __name__ == "__main__":
    sys.exit(main())
