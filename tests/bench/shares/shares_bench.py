#!/usr/bin/env python3
"""What tenants get of a GPU that all of them want, against what they were promised: programs as processes, through a real
broker or under another library in the shim's place.

    shares_bench.py --build build/dev                                 the whole table
    shares_bench.py --build build/dev --split 10/90 --kind sync       one line of it
    shares_bench.py --build build/dev --bare                          what the device does by itself
    shares_bench.py --build build/dev --preload OTHER.so --env CORE_LIMIT={percent} --env CACHE={directory}/{index}

Each line is one split and one kind of program, a few seconds long, repeated. `achieved` is the mean over the windows of a
second, `error` the mean over the windows of |share - target|, both in per cent of the GPU's time and by the device's own
account of each process (on a real GPU, --gpu, by the kernels that each tenant saw end). Both are medians of the repeats,
the least and the most of them in brackets. `of used` are medians of the same two figures of the tenant's part of what all
tenants together used, window by window: what the rule did, without the time that the GPU was idle while this host was
busy with something else. `lag` is the part of the time by which this host was slower than the device's
model; a line above 2 % says more of the host than of the shares, and is marked. `sim` is what the simulator says of the same
programs, `achieved` and `error`: it knows no host, and --dilation makes the processes' host matter less.

Kinds: equal (kernels of --kernel, four in flight), unequal (0.2, 5, 1 and 6 times as long), bursty (eight kernels, a
synchronisation, a pause of a tenth of a kernel on average), graph (graphs of four kernels), sync (launch, synchronise), streams
(kernels of one block in 32 streams: on a GPU they run side by side, so that `achieved` counts kernels and may pass 100 %).
"""
import argparse
import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "trainer/lab"))
from sluice_lab import processes

SPLITS = ["50/50", "30/70", "10/90", "25/25/50", "10/20/30/40"]
KINDS = ["equal", "unequal", "bursty", "graph", "sync"]
MORE_KINDS = ["streams"]
UNEQUAL = [0.2, 5, 1, 6]
KEYS = ["mean", "error", "part", "part_error"]
LAG_MAX = 0.02
SIM_WINDOW_S = 1  # the simulator's windows: errors of others are no comparison


def program(kind, index, kernel_us):
    """The command line of one tenant."""
    if kind == "unequal":
        number = index % len(UNEQUAL)
        return processes.load("loop", kernel=f"w{number}", kernel_us=round(kernel_us * UNEQUAL[number]), depth=4)
    pattern, more = {"equal": ("loop", {"depth": 4}), "bursty": ("bursts", {"kernels": 8, "pause_us": max(1, kernel_us // 10)}),
                     "graph": ("graph", {"kernels": 4}), "sync": ("sync", {}), "streams": ("streams", {"streams": 32})}[kind]
    return processes.load(pattern, kernel="w", kernel_us=kernel_us, **more)


def simulated_job(kind, index, percent, kernel_us, sm_mode):
    """The same tenant for the simulator; null where it has no such program."""
    kernel = round(kernel_us * UNEQUAL[index % len(UNEQUAL)]) if kind == "unequal" else kernel_us
    words = {"equal": {"program": "loop"}, "unequal": {"program": "loop"}, "sync": {"program": "sync"},
             "bursty": {"program": "bursts", "kernels": 8, "pause_us": max(1, kernel_us // 10)},
             "graph": {"program": "graphs", "kernels": 4}}.get(kind)
    return words and {"percent": percent, "mode": sm_mode, "kernel_us": kernel, **words}


def simulated(arguments, split, kind):
    """Per tenant its mean share and mean error in the simulator; null where it has no such program, or other windows."""
    percents = percents_of(split)
    jobs = [simulated_job(kind, i, percent, arguments.kernel, arguments.sm_mode) for i, percent in enumerate(percents)]
    if None in jobs or arguments.preload or arguments.bare or arguments.config or arguments.window != SIM_WINDOW_S:
        return None
    result = processes.simulated(arguments.build, jobs, arguments.windows * arguments.window)
    return [figures_of([busy / 1e9 for busy in job["window_busy_ns"][0]], percent / 100)
            for job, percent in zip(result["jobs"], percents)]


def timed(kernel_us):
    """The lengths of all kernels, for the software GPU."""
    rules = [f"w={kernel_us}us/skip"]
    return ",".join(rules + [f"w{i}={round(kernel_us * factor)}us/skip" for i, factor in enumerate(UNEQUAL)])


def percents_of(split):
    return [int(part) for part in split.split("/")]


def figures_of(shares, target):
    """Mean share over the windows, and the mean of their distances from the target."""
    return statistics.fmean(shares), statistics.fmean(abs(share - target) for share in shares)


def parts_of(windows):
    """Per tenant its part of what all used, window by window."""
    return [[share / max(sum(all_shares), 1e-9) for share, all_shares in zip(shares, zip(*windows))] for shares in windows]


def run(arguments, split, kind):
    """One run: its windows per tenant, its figures and the host's lag."""
    percents = percents_of(split)
    kernel, dilation = arguments.kernel * arguments.dilation, arguments.dilation
    specs = [processes.Spec(f"t{i}-{percent}", percent, program(kind, i, kernel), sm_mode=arguments.sm_mode)
             for i, percent in enumerate(percents)]
    with processes.Machine(arguments, timed(kernel)) as machine:
        machine.start(specs)
        looks = machine.watch(arguments.warmup * dilation, arguments.window * dilation, arguments.windows)
    windows = processes.shares_of(looks)
    means, errors = zip(*(figures_of(shares, percent / 100) for shares, percent in zip(windows, percents)))
    parts, part_errors = zip(*(figures_of(shares, percent / sum(percents))
                               for shares, percent in zip(parts_of(windows), percents)))
    return {"windows": windows, "mean": means, "error": errors, "part": parts, "part_error": part_errors,
            "lag": processes.lag_of(looks)}


def summary(runs, key):
    """Per tenant the median of the runs, the least and the most."""
    each = list(zip(*(one[key] for one in runs)))
    return [{"median": statistics.median(v), "least": min(v), "most": max(v)} for v in each]


def text_of(row):
    return f"{100 * row['median']:.2f} ({100 * row['least']:.2f} .. {100 * row['most']:.2f})"


def line_print(split, kind, line):
    for i, (percent, *rows) in enumerate(zip(percents_of(split), *(line[key] for key in KEYS))):
        mean, error, part, part_error = rows
        sim = f"{100 * line['sim'][i][0]:.2f} ({100 * line['sim'][i][1]:.2f})" if line["sim"] else ""
        used = f"{100 * part['median']:.2f} ({100 * part_error['median']:.2f})"
        head = f"{split:12}{kind:9}" if i == 0 else " " * 21
        tail = ""
        if i == 0:
            tail = f"{100 * line['lag']:8.2f}" + ("  inconclusive: the host lags" if line["lag"] > LAG_MAX else "")
        print(f"{head}{percent:6}{text_of(mean):>26}{text_of(error):>24}{used:>16}{sim:>16}{tail}", flush=True)


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    processes.add_options(parser)
    parser.add_argument("--split", action="append", help=f"per cent of each tenant, may be repeated ({', '.join(SPLITS)})")
    parser.add_argument("--kind", action="append", choices=KINDS + MORE_KINDS, help="may be repeated (all but streams)")
    parser.add_argument("--kernel", type=int, default=2000, metavar="US", help="length of a kernel in microseconds (2000)")
    parser.add_argument("--window", type=float, default=1.0, metavar="S", help="seconds of a window (1)")
    parser.add_argument("--windows", type=int, default=10, help="of a run (10)")
    parser.add_argument("--warmup", type=float, default=1.0, metavar="S", help="seconds before the first window (1)")
    parser.add_argument("--sm-mode", choices=["best-effort", "equal", "fixed"], default="best-effort",
                        help="of all tenants, under the broker (best-effort)")
    arguments = parser.parse_args()
    processes.check_options(parser, arguments)
    for split in arguments.split or []:
        if not re.fullmatch(r"(100|[1-9]\d?(/[1-9]\d?)*)", split):
            parser.error(f"--split takes percentages such as 30/70, not '{split}'")
    if arguments.kernel < 10 or arguments.window <= 0 or arguments.windows < 1:
        parser.error("--kernel is at least 10, --window above 0, --windows at least 1")
    return arguments


def main():
    arguments = options()
    print(f"under {processes.under(arguments)}: {arguments.repeats} x {arguments.windows} windows of {arguments.window:g} s, "
          f"kernels of {arguments.kernel} us, dilation {arguments.dilation}")
    print(f"{'split':12}{'kind':9}{'target':>6}{'achieved, %':>26}{'error, %':>24}{'of used (error)':>16}{'sim (error)':>16}{'lag, %':>8}")
    lines = []
    for split in arguments.split or SPLITS:
        for kind in arguments.kind or KINDS:
            runs = [run(arguments, split, kind) for _ in range(arguments.repeats)]
            line = {"split": split, "kind": kind, "target": [p / 100 for p in percents_of(split)],
                    **{key: summary(runs, key) for key in KEYS}, "sim": simulated(arguments, split, kind), "lag": max(r["lag"] for r in runs), "runs": runs}
            lines.append(line)
            line_print(split, kind, line)
    processes.json_write(arguments, {"under": processes.under(arguments), "window_s": arguments.window,
                                     "kernel_us": arguments.kernel, "dilation": arguments.dilation, "sm_mode": arguments.sm_mode, "lines": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
