#!/usr/bin/env python3
"""What a gang and the jobs beside it get in every two seconds: a job with a rank on each GPU, whose steps end in a collective
that spins for all ranks, and a job on each GPU that always wants. Processes on software GPUs, through a real broker.

    gang_bench.py --build build/dev                                  kernels of the others of 1, 10 and 30 ms
    gang_bench.py --build build/dev --kernel 50000 --gpus 4

A step is five kernels of 2 ms, then `--host` on the host, the collective, and `--host` again. All jobs are guaranteed
`--percent`. `mean` is the part of its GPUs' time in which a job's kernels ran, by the devices' own account, `worst` that of
the worst two seconds of all that begin at a tenth of a second; medians of the repeats, the least and the most of them in brackets.
`busy` is all jobs together. `sim` is what the simulator says of the same jobs. Times are the model's; --dilation makes them longer,
so that the host's matter less. It does not stretch what the broker has of gangs besides its settings, such as the two seconds:
with it, keep kernels below 50 ms of the host's time.
"""
import argparse
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "trainer/lab"))
from sluice_lab import processes
from shares_bench import summary, text_of

STEP_S = 0.1
WINDOW_STEPS = 20  # of two seconds
KERNELS, KERNEL_US = 5, 2000  # of a step of the gang
RATE = 1e12  # the collective's instructions take the time that this host takes for them


def sliding(windows, parts):
    """The least part of the time in WINDOW_STEPS neighbours."""
    return min(sum(windows[i:i + parts]) / parts for i in range(len(windows) - parts + 1))


def figures_of(shares):
    """Of each job's parts of the time, step by step: mean and worst, and all jobs' together."""
    out = {"mean": [statistics.fmean(job) for job in shares], "worst": [sliding(job, WINDOW_STEPS) for job in shares]}
    singles = statistics.fmean(out["mean"][1:])
    out["busy"] = [out["mean"][0] + singles]
    return out


def names(arguments):
    return ["gang", *(f"single-{gpu}" for gpu in range(arguments.gpus))]


def simulated(arguments, kernel):
    if arguments.config:
        return None
    jobs = [{"name": "gang", "percent": arguments.percent, "program": "training", "kernel_us": KERNEL_US, "kernels": KERNELS,
             "collective_us": 1, "host_us": arguments.host}]
    jobs += [{"name": name, "percent": arguments.percent, "gpu": gpu, "program": "loop", "kernel_us": kernel}
             for gpu, name in enumerate(names(arguments)[1:])]
    result = processes.simulated(arguments.build, jobs, arguments.seconds, gpus=arguments.gpus, window_ms=round(STEP_S * 1000))
    parts = [[statistics.fmean(gpu[i] for gpu in job["window_busy_ns"]) / (STEP_S * 1e9)
              for i in range(round(arguments.seconds / STEP_S))] for job in result["jobs"]]
    return figures_of(parts)


def run(arguments, kernel):
    dilation = arguments.dilation
    gang = processes.load("gang", kernel="step", kernel_us=KERNEL_US * dilation, kernels=KERNELS, host_us=arguments.host * dilation,
                          ranks=arguments.gpus)
    other = processes.load("loop", kernel="other", kernel_us=kernel * dilation, depth=4)
    specs = [processes.Spec("gang", arguments.percent, gang, gpus=arguments.gpus)]
    specs += [processes.Spec(name, arguments.percent, other, gpu=gpu)
              for gpu, name in enumerate(names(arguments)[1:])]
    timed = f"step={KERNEL_US * dilation}us/skip,other={kernel * dilation}us/skip"
    with processes.Machine(arguments, timed, COUNT=arguments.gpus, RATE=RATE) as machine:
        machine.start(specs)
        looks = machine.watch(arguments.warmup * dilation, STEP_S * dilation, round(arguments.seconds / STEP_S))
    shares = processes.shares_of(looks)
    shares[0] = [part / arguments.gpus for part in shares[0]]
    return {**figures_of(shares), "lag": processes.lag_of(looks), "shares": shares}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    processes.add_options(parser)
    parser.add_argument("--gpus", type=int, default=2, help="of the machine and the gang (2)")
    parser.add_argument("--percent", type=int, default=40, help="guaranteed to each job (40)")
    parser.add_argument("--kernel", type=int, action="append", metavar="US",
                        help="length of a kernel of the others in microseconds, may be repeated (1000, 10000, 30000)")
    parser.add_argument("--host", type=int, default=300, metavar="US", help="of the host before and after a collective (300)")
    parser.add_argument("--seconds", type=float, default=20, help="of a run (20)")
    parser.add_argument("--warmup", type=float, default=2, metavar="S", help="seconds before the first window (2)")
    arguments = parser.parse_args()
    processes.check_options(parser, arguments)
    if arguments.gpu or arguments.bare or arguments.preload:
        parser.error("this one is for software GPUs and Sluice: neither --gpu nor --bare nor --preload")
    if not 1 <= arguments.gpus <= 16 or not 1 <= arguments.percent <= 50 or arguments.host < 0:
        parser.error("--gpus is 1 to 16, --percent 1 to 50, --host 0 or more")
    if arguments.seconds < STEP_S * WINDOW_STEPS or min(arguments.kernel or [10]) < 10:
        parser.error("--seconds is at least 2, --kernel at least 10")
    return arguments


def line_print(arguments, kernel, line):
    for i, name in enumerate(names(arguments)):
        sim = f"{100 * line['sim']['mean'][i]:.1f} {100 * line['sim']['worst'][i]:.1f}" if line["sim"] else ""
        head = f"{kernel / 1000:<9g}" if i == 0 else " " * 9
        tail = ""
        if i == 0:
            busy = f"{100 * line['sim']['busy'][0]:.1f}" if line["sim"] else ""
            tail = f"{text_of(line['busy'][0]):>24}{busy:>8}{100 * line['lag']:8.2f}"
        print(f"{head}{name:11}{text_of(line['mean'][i]):>24}{text_of(line['worst'][i]):>24}{sim:>14}{tail}", flush=True)


def main():
    arguments = options()
    print(f"{arguments.repeats} x {arguments.seconds:g} s, {arguments.gpus} GPUs, all jobs guaranteed {arguments.percent} %, dilation "
          f"{arguments.dilation}")
    print(f"{'ms':9}{'job':11}{'mean, %':>24}{'worst 2 s, %':>24}{'sim':>14}{'busy, %':>24}{'sim':>8}{'lag, %':>8}")
    lines = []
    for kernel in arguments.kernel or [1000, 10000, 30000]:
        runs = [run(arguments, kernel) for _ in range(arguments.repeats)]
        line = {"kernel_us": kernel, "sim": simulated(arguments, kernel), "lag": max(one["lag"] for one in runs), "runs": runs,
                **{key: summary(runs, key) for key in ("mean", "worst", "busy")}}
        lines.append(line)
        line_print(arguments, kernel, line)
    processes.json_write(arguments, {"percent": arguments.percent, "gpus": arguments.gpus, "dilation": arguments.dilation,
                                     "lines": lines})
    return 0


if __name__ == "__main__":
    sys.exit(main())
