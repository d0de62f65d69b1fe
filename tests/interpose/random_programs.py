#!/usr/bin/env python3
"""Runs random programs (random_program.cpp) over the software GPU bare and under limits, and compares their traces.

  random_programs.py RUNNER SHIM POINTS PROGRAM LIBRARIES [--seeds=1-20,77] [--steps=N] [--without=LIST] [--tries=N] [--shrink] [--trace]

Each seed is run bare; as a tenant under a broker whose quota it never meets, the ledger compared with the devices' own account
wherever it comes to rest (ledger_row); by itself with SLUICE_MEMORY; under both with quotas that are far too small; and under a
broker with one that is so on one of the two GPUs, and ample on the other. The traces of the first three are the same. With
--at-once two to four programs run at once in each process. Further modes: `unrest` has leases and holds that come and go,
`moved` memory that goes to the host and back as well, and so have `tight_unrest` and `tight_moved`. A seed that fails is told
with the command line that runs it again; --shrink leaves out steps as long as it still fails in the same way, and shows what is
left.
"""
import argparse
import concurrent.futures
import os
import random
import re
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
for name in ("runner", "shim", "points", "program", "libraries"):
    parser.add_argument(name)
parser.add_argument("--seeds", default="1-20")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--without", default="")
parser.add_argument("--modes", default="broker,alone,tight,tight_alone,tight_one")
parser.add_argument("--at-once", action="store_true")
parser.add_argument("--also", default="", help="families of steps that only some programs have: contents, and routes, by which calls are made by all routes and ABIs, and faults")
parser.add_argument("--jobs", type=int, default=2)
parser.add_argument("--tries", type=int, default=1)
parser.add_argument("--shrink", action="store_true")
parser.add_argument("--trace", action="store_true")
options = parser.parse_args()

MIB = 1 << 20
AMPLE = 4096 * MIB
environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" and not name.startswith("SLUICE_")}
environment["LD_LIBRARY_PATH"] = options.libraries
if options.also:
    environment["RANDOM_ALSO"] = options.also
if "moved" in options.modes:
    environment["RANDOM_MOVABLE"] = "1"
if options.at_once:
    environment["RANDOM_AT_ONCE"] = "1"


def quota_of(seed):
    """From one context and little more to a few."""
    return random.Random(seed).randrange(40 * MIB, 240 * MIB)


def program_run(seed, mode, without):
    """The trace, and what is wrong with it by itself."""
    quota = str(quota_of(seed) if mode.startswith("tight") else AMPLE)
    if mode == "tight_one":
        quota = f"{AMPLE},{quota}" if seed // 2 % 2 == 0 else f"{quota},{AMPLE}"
    program = [options.program, str(seed), str(options.steps), without]
    with tempfile.TemporaryDirectory(prefix="sluice-random-") as directory:
        extra = {"SOFTGPU_DIR": directory}
        if mode != "bare":
            extra["RANDOM_QUOTA"] = quota
        if mode.endswith("alone"):
            extra |= {"LD_PRELOAD": options.shim, "SLUICE_MEMORY": quota + "B", "SLUICE_SOCKET": "/nonexistent"}
        elif mode != "bare":
            extra["LEDGER_QUOTA"] = quota
            if mode.endswith(("unrest", "moved")):
                extra["LEDGER_UNREST"] = str(seed)
            if mode.endswith("moved"):
                extra["LEDGER_SWAP"] = "1"
            program = [options.runner, options.shim, options.points, directory] + program
        try:
            done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment | extra, timeout=120)
        except subprocess.TimeoutExpired as late:
            return (late.stdout or b"").decode(errors="replace").splitlines(), "hangs"
    lines = done.stdout.splitlines()
    trace = [line for line in lines if re.match(r"\d+ ", line)]
    wrong = [line for line in lines if "FAULT" in line]
    if done.returncode < 0 or done.returncode >= 128:
        wrong.append(f"ended by {done.returncode}")
    elif mode != "bare" and not mode.endswith("alone"):
        said = re.search(r"^compared (\d+) times, the row ended with (\d+)\n(.*)", done.stdout, re.M | re.S)
        if not said or said[2] not in ("0", "1"):
            wrong.append(f"ended with {said and said[2]}: {done.stderr[-500:]}")
        elif said[3]:
            wrong.append(said[3])
    elif done.returncode != 0 and not wrong:
        wrong.append(f"ended with {done.returncode}: {done.stderr[-500:]}")
    return trace, "\n".join(wrong)


def differences(seed, without, modes):
    """{mode: what is wrong}, and the trace of each mode. What depends on chance may need several tries to show."""
    for _ in range(options.tries):
        found, traces = differences_once(seed, without, modes)
        if found:
            break
    return found, traces


def differences_once(seed, without, modes):
    found, traces = {}, {}
    for mode in ["bare"] + modes:
        traces[mode], wrong = program_run(seed, mode, without)
        if wrong:
            found[mode] = wrong
        elif not mode.startswith("tight") and traces[mode] != traces["bare"]:
            found[mode] = next(f"bare:  {bare}\n{mode}: {line}" for bare, line in
                               zip(traces["bare"] + ["(nothing)"], traces[mode] + ["(nothing)"]) if bare != line)
    return found, traces


def kind_of(found):
    """How a failure is recognised while its program shrinks."""
    kinds = {}
    for mode, wrong in found.items():
        account = re.search(r"the tenant (\d+), the device (\d+)", wrong)
        last = re.sub(r"[\d\s]+", " ", wrong.split("\n")[-1])[:60]
        kinds[mode] = ("more" if int(account[1]) > int(account[2]) else "less") if account else last
    return kinds


def listed(steps):
    parts, steps = [], sorted(steps)
    while steps:
        n = 1
        while n < len(steps) and steps[n] == steps[0] + n:
            n += 1
        parts.append(f"{steps[0]}-{steps[n - 1]}" if n > 1 else str(steps[0]))
        steps = steps[n:]
    return ",".join(parts)


def shrink(seed, found):
    """Leaves out runs of steps, ever shorter ones, as long as a mode fails as it did."""
    mode = next(iter(found))
    environment["LEDGER_PATIENCE_MS"] = "3000"
    wanted, left = kind_of({mode: found[mode]}), list(range(1, options.steps + 1))
    length = len(left) // 2
    while length:
        at = 0
        while at < len(left):
            fewer = left[:at] + left[at + length:]
            without = listed(set(range(1, options.steps + 1)) - set(fewer))
            again, _ = differences(seed, without, [mode] if mode != "bare" else [])
            if kind_of(again).items() >= wanted.items():
                left = fewer
            else:
                at += length
        length //= 2
    return listed(set(range(1, options.steps + 1)) - set(left)), mode


def seed_run(seed):
    modes = options.modes.split(",")
    found, traces = differences(seed, options.without, modes)
    if not found:
        return seed, "", traces
    text = "\n".join(f"seed {seed}, {mode}: {wrong}" for mode, wrong in found.items())
    without = options.without
    if options.shrink:
        without, mode = shrink(seed, found)
        found, traces = differences(seed, without, [mode] if mode != "bare" else [])
        lines = traces[mode]
        text += f"\nwithout most steps, {mode}: {found.get(mode)}\n  " + "\n  ".join(lines)
    command = " ".join([sys.argv[0], options.runner, options.shim, options.points, options.program, options.libraries,
                        f"--seeds={seed}-{seed}", f"--steps={options.steps}"] + ["--at-once"] * options.at_once +
                       [f"--modes={options.modes}", f"--also={options.also}"] + ([f"--without={without}"] if without else []) + ["--trace"])
    return seed, f"{text}\n  again: {command}", traces


seeds = []
for part in options.seeds.split(","):
    first, _, last = part.partition("-")
    seeds += range(int(first), int(last or first) + 1)
failed = 0
with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
    for seed, text, traces in pool.map(seed_run, seeds):
        if text:
            failed += 1
            print(text, flush=True)
        if options.trace:
            for mode, trace in traces.items():
                print(f"--- {mode}\n" + "\n".join(trace))
print(f"{failed} of {len(seeds)} seeds fail")
sys.exit(1 if failed else 0)
