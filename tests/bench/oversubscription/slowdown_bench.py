#!/usr/bin/env python3
"""What overselling memory costs: tenants whose quotas together are several times a GPU's memory all work all the time, as
processes under the shim and a real broker, on a software GPU whose kernels and copies take their modelled time.

    slowdown_bench.py --build build/dev
    slowdown_bench.py --build build/dev --tenants 8 --percent 40 --quantum 1s --seconds 6

First one tenant does its work alone, then all do the same work together. For each: the time it took, that over its own time
alone (with a perfect share: the number of tenants), how often it was moved out, and what was copied. In total: the time until
the last was done, over the time that all the work takes alone, one tenant after the other; and for how long the GPU computed and
copied. Times are printed and never judged; whose numbers are wrong ends the bench.
"""
import argparse
import pathlib
import re
import select
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "oversubscription"))
import support  # noqa: E402
from support import MIB, Box, equal, row  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", required=True, type=pathlib.Path)
parser.add_argument("--tenants", type=int, default=8)
parser.add_argument("--percent", type=int, default=40, help="of the GPU's memory that each holds (40)")
parser.add_argument("--memory", type=int, default=512, help="MiB of the GPU (512)")
parser.add_argument("--quantum", default="1s", help="how long one that works is left in (1s)")
parser.add_argument("--seconds", type=float, default=6, help="of work for each (6)")
parser.add_argument("--rate", default="4e6", help="SOFTGPU_RATE: a slow GPU asks little of the host (4e6)")
arguments = parser.parse_args()


def machine_make():
    machine = Box(arguments.build, memory=f"{arguments.memory}MiB", pacing=True, rate=arguments.rate,
                  config=f'[memory]\noversell = 16.0\nswap_quantum = "{arguments.quantum}"\nswap_host_max = "64GiB"\n')
    machine.start_broker()
    return machine


def jobs_make(machine, count):
    """Filled one after the other: who is idle makes room for the next."""
    quota = arguments.memory * arguments.percent // 100
    blocks = (quota - 2 * support.CONTEXT_MIB) // 8
    jobs = [machine.job("--name", f"job{i}", "--memory", f"{quota}MiB", "--swap") for i in range(count)]
    for job in jobs:
        job.done(f"alloc 8 {blocks}")
    return jobs, 8 * blocks


def calibrate():
    """How many steps are the seconds of work that were asked for."""
    with machine_make() as machine:
        [job], _ = jobs_make(machine, 1)
        job.done("step")
        begin = time.monotonic()
        job.done("work")
        time.sleep(min(arguments.seconds, 3))
        steps = int(re.match(r"steps (\d+)", job.ask("stop"))[1])
        each = (time.monotonic() - begin) / steps
        return max(1, round(arguments.seconds / each))


def device_figures(machine):
    """Seconds in which the device computed, copied, and fell behind its model for want of the host."""
    found = machine.device()
    return {"computed": found["busy_ns"] / 1e9, "copied": sum(process["copy_ns"] for process in found["processes"]) / 1e9,
            "lag": found["lag_ns"] / 1e9}


def together(count, steps):
    """(seconds until done, moves out, MiB copied) of each, the seconds until the last was done, and what the device did in these."""
    with machine_make() as machine:
        jobs, _ = jobs_make(machine, count)
        before = [row(machine, f"job{i}")["gpus"][0] for i in range(count)]
        device = device_figures(machine)
        begin = time.monotonic()
        for job in jobs:
            job.send(f"steps {steps}")
        done = {}
        while len(done) < count:
            waiting = {job.process.stdout: i for i, job in enumerate(jobs) if i not in done}
            for stream in select.select(list(waiting), [], [], 600)[0]:
                i = waiting[stream]
                equal(jobs[i].answer(), "done", f"job{i}")
                done[i] = time.monotonic() - begin
        device = {name: value - device[name] for name, value in device_figures(machine).items()}
        after = [row(machine, f"job{i}")["gpus"][0] for i in range(count)]
        for job in jobs:
            equal(job.ask("check"), "right")
        rows = []
        for i in range(count):
            copied = sum(after[i][way] - before[i][way] for way in ("moved_out_bytes", "moved_in_bytes"))
            rows.append((done[i], after[i]["moves"] - before[i]["moves"], copied / MIB))
        return rows, max(done.values()), device


steps = calibrate()
[(alone, moves, copied)], _, device = together(1, steps)
print(f"{arguments.tenants} tenants of {arguments.percent} % of {arguments.memory} MiB, quantum {arguments.quantum}; {steps} steps each, "
      f"alone {alone:.2f} s of which the GPU computed {device['computed']:.2f} s, {moves} moves", flush=True)
rows, last, device = together(arguments.tenants, steps)
print(f"{'':8}{'seconds':>10}{'slowdown':>10}{'moves':>8}{'MiB copied':>12}")
for i, (seconds, moves, copied) in enumerate(rows):
    print(f"{f'job{i}':8}{seconds:10.2f}{seconds / alone:10.2f}{moves:8}{copied:12.0f}")
total = sum(copied for _, _, copied in rows)
work = arguments.tenants * alone
print(f"{'total':8}{last:10.2f}{last / work:10.2f}{sum(moves for _, moves, _ in rows):8}{total:12.0f}")
print(f"the work alone, one after the other: {work:.2f} s. Together the GPU computed {device['computed']:.2f} s and copied "
      f"{device['copied']:.2f} s (both ways, beside each other), of {last:.2f} s; lag {100 * device['lag'] / last:.1f} %"
      + (": inconclusive, the host was too busy" if device["lag"] > 0.02 * last else ""))
