#!/usr/bin/env python3
"""Runs interpose_bench bare and under the shim and prints what each call costs more, in nanoseconds and, with
--instructions, in instructions (callgrind; counted, so the same on a busy machine).

The fake driver itself takes a few nanoseconds per call; the columns are differences of medians against the bare program.
"""
import argparse
import os
import re
import subprocess
import tempfile

CASES = {"launch": 2_000_000, "alloc_free": 200_000, "alloc_free_1000_live": 200_000, "memory_info": 1_000_000,
         "dlsym_foreign": 1_000_000, "dlsym_driver": 300_000, "proc_address": 100_000}
MODES = [("bare", "plain", False), ("inert", "plain", True), ("tenant", "tenant", True), ("exclusive", "exclusive", True)]
BODIES = {"launch": "body_launch", "alloc_free": "body_alloc", "alloc_free_1000_live": "body_alloc",
          "memory_info": "body_memory_info", "dlsym_foreign": "body_dlsym_foreign",
          "dlsym_driver": "body_dlsym_driver", "proc_address": "body_proc_address"}

parser = argparse.ArgumentParser()
parser.add_argument("--program", required=True)
parser.add_argument("--shim", required=True)
parser.add_argument("--instructions", action="store_true")
arguments = parser.parse_args()


def environment(preload):
    result = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE")}
    result["SLUICE_SOCKET"] = "/nonexistent"
    if preload:
        result["LD_PRELOAD"] = os.path.abspath(arguments.shim)
    return result


def nanoseconds(case, mode, preload):
    runs = [float(subprocess.run([arguments.program, mode, case, str(CASES[case])], env=environment(preload),
                                 check=True, capture_output=True, text=True).stdout) for _ in range(3)]
    return min(runs)


def instructions(case, mode, preload):
    totals = []
    for count in (1000, 3000):
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run(["valgrind", "--tool=callgrind", f"--toggle-collect=*{BODIES[case]}*",
                            f"--callgrind-out-file={out.name}", arguments.program, mode, case, str(count)],
                           env=environment(preload), check=True, capture_output=True)
            totals.append(int(re.search(r"^(?:summary|totals): (\d+)", open(out.name).read(), re.M)[1]))
    # Nine rounds and a tenth to warm up.
    return (totals[1] - totals[0]) / (2000 * 9.1)


def table(title, measure):
    print(f"{title:24}" + "".join(f"{name:>12}" for name, _, _ in MODES))
    for case in CASES:
        figures = [measure(case, mode, preload) for _, mode, preload in MODES]
        print(f"{case:24}" + f"{figures[0]:12.1f}" + "".join(f"{f - figures[0]:+12.1f}" for f in figures[1:]), flush=True)


table("nanoseconds per call", nanoseconds)
if arguments.instructions:
    table("instructions per call", instructions)
