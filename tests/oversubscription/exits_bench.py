#!/usr/bin/env python3
"""How soon others have what a job that ends had: with processes under the shim and a real broker, on software GPUs.

    exits_bench.py --build build/dev [--rounds 20]

Times are the broker's own log's (CLOCK_MONOTONIC) from just before the kill, and are printed, not judged:
  lease      the holder of a GPU is killed -9; until another's lease is open
  admission  a job that has all of the memory is killed -9; until one in line is admitted (the device has shown the memory free)
  return     an exclusive job ends; until the jobs that were swapped for it are in again, against their bytes over the link's rate
"""
import argparse
import pathlib
import re
import time

import support as cases
from machine import MIB, wait_until

LINK_BYTES_S = 1e9  # the software GPU's default, each way


def moment(machine, pattern, after):
    """When the log first had such a line, later than `after`; None = not yet."""
    for line in machine.broker_log().splitlines():
        found = re.match(r"time=([\d.]+) ", line)
        if found and float(found[1]) > after and re.search(pattern, line):
            return float(found[1])
    return None


def await_moment(machine, pattern, after):
    wait_until(pattern, lambda: moment(machine, pattern, after) is not None, cases.PATIENCE_S, every_s=0.01)
    return moment(machine, pattern, after)


def told(name, milliseconds):
    milliseconds.sort()
    print(f"{name}: {len(milliseconds)} rounds, ms: median {milliseconds[len(milliseconds) // 2]:.1f}, most {milliseconds[-1]:.1f}",
          flush=True)


def lease(build, rounds):
    took = []
    with cases.box(build) as machine:
        stays = machine.job("--name", "stays", "--memory", "64MiB")
        stays.done("alloc 8 1")
        stays.done("work")
        for i in range(rounds):
            victim = machine.job("--name", f"victim{i}", "--memory", "64MiB")
            victim.done("alloc 8 1")
            victim.done("work")
            tenant = cases.row(machine, f"victim{i}")["tenant"]
            await_moment(machine, f"event=lease_opened tenant={tenant} ", 0)
            killed = time.monotonic()
            victim.kill()
            # Its next opening, or, when it held the lease, the word that nobody else wants it.
            took.append(1000 * (await_moment(machine, "event=(lease_opened|lease_changed) tenant=1 ", killed) - killed))
        stays.send("stop")
        stays.answer()
    told("lease", took)


def admission(build, rounds):
    took = []
    with cases.box(build, memory="128MiB") as machine:
        wait_until("the device is known", lambda: "event=device_used" in machine.broker_log())
        full = machine.job("--name", "first", "--memory", "120MiB")
        for i in range(rounds):
            full.done("alloc 16 6")
            waits = machine.job("--name", f"next{i}", "--memory", "120MiB", begin=False)
            cases.line_of(waits)
            killed = time.monotonic()
            full.kill()
            took.append(1000 * (await_moment(machine, f"event=admitted .*name=next{i}", killed) - killed))
            full = waits.begin()
    told("admission", took)


def back(build):
    config = '[scheduler]\nexclusive = "suspend"\n[memory]\noversell = 4.0\n'
    with cases.Box(build, memory="1GiB", config=config) as machine:
        machine.environment["SOFTGPU_PACING"] = "1"
        machine.start_broker()
        shared = [machine.job("--name", f"shared{i}", "--memory", "448MiB", "--swap") for i in range(2)]
        for job in shared:
            job.done("alloc 64 6")
        gang = machine.job("--name", "gang", "--class", "exclusive", begin=False)
        gang.begin()
        over = time.monotonic()
        gang.kill()
        total = 0
        for i in range(2):
            at = await_moment(machine, f"event=stay .*name=shared{i} .*swapped=no", over)
            line = [line for line in machine.broker_log().splitlines() if f"event=moved" in line and f"name=shared{i}" in line][-1]
            size, copied = (float(value) for value in re.search(r"bytes=(\d+) ms=([\d.]+)", line).groups())
            total += size
            print(f"return: {size / MIB:.0f} MiB in after {1000 * (at - over):.0f} ms; copied in {copied:.0f} ms, "
                  f"{size / copied / 1e6:.2f} GB/s; all so far at the link's rate: {1000 * total / LINK_BYTES_S:.0f} ms", flush=True)
        for job in shared:
            cases.equal(job.ask("check"), "right")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    lease(arguments.build, arguments.rounds)
    admission(arguments.build, arguments.rounds)
    back(arguments.build)


if __name__ == "__main__":
    main()
