#!/usr/bin/env python3
"""Runs interpose_bench bare and under a preloaded library and prints what each call costs more, in nanoseconds and, with
--instructions, in instructions (callgrind; counted, so the same on a busy machine).

The fake driver itself takes a few nanoseconds per call; the columns are differences of medians against the bare program.
Any other library that interposes the driver can be put in the shim's place with --preload and --env; it then meets the
same program, which opens its own lease only for the shim: the columns `tenant` and `exclusive` say what the shim does.

--limits FILE (case, mode, instructions) counts what the file names, prints each against its limit, and ends with 1 when one
is more than a tenth above it.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

CASES = {"launch": 2_000_000, "alloc_free": 200_000, "alloc_free_1000_live": 200_000, "memory_info": 1_000_000,
         "dlsym_foreign": 1_000_000, "dlsym_driver": 300_000, "proc_address": 100_000}
# What the bench program itself does, and whether the library is preloaded.
MODES = {"bare": ("plain", False), "inert": ("plain", True), "tenant": ("tenant", True), "exclusive": ("exclusive", True)}
BODIES = {"launch": "body_launch", "alloc_free": "body_alloc", "alloc_free_1000_live": "body_alloc",
          "memory_info": "body_memory_info", "dlsym_foreign": "body_dlsym_foreign",
          "dlsym_driver": "body_dlsym_driver", "proc_address": "body_proc_address"}
SLACK = 1.10

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--program", required=True, help="interpose_bench of a build")
parser.add_argument("--preload", required=True, help="the library to measure, e.g. build/dev/lib/libsluice.so")
parser.add_argument("--env", action="append", default=[], metavar="K=V", help="set for the preloaded runs, may be repeated")
parser.add_argument("--case", action="append", choices=CASES, help="only these")
parser.add_argument("--instructions", action="store_true", help="count instructions as well")
parser.add_argument("--limits", metavar="FILE", help="only count, and compare with the limits of FILE")
arguments = parser.parse_args()
for setting in arguments.env:
    if "=" not in setting:
        parser.error(f"--env takes K=V, not '{setting}'")


def environment(preload):
    result = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE")}
    result["SLUICE_SOCKET"] = "/nonexistent"
    if preload:
        result.update(setting.split("=", 1) for setting in arguments.env)
        result["LD_PRELOAD"] = os.path.abspath(arguments.preload)
    return result


def nanoseconds(case, mode):
    program_mode, preload = MODES[mode]
    command = [arguments.program, program_mode, case, str(CASES[case])]
    return min(float(subprocess.run(command, env=environment(preload), check=True, capture_output=True, text=True).stdout)
               for _ in range(3))


def instructions(case, mode):
    program_mode, preload = MODES[mode]
    totals = []
    for count in (1000, 3000):
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run(["valgrind", "--tool=callgrind", f"--toggle-collect=*{BODIES[case]}*",
                            f"--callgrind-out-file={out.name}", arguments.program, program_mode, case, str(count)],
                           env=environment(preload), check=True, capture_output=True)
            totals.append(int(re.search(r"^(?:summary|totals): (\d+)", open(out.name).read(), re.M)[1]))
    # Nine rounds and a tenth to warm up.
    return (totals[1] - totals[0]) / (2000 * 9.1)


def table(title, measure):
    print(f"{title:24}" + "".join(f"{name:>12}" for name in MODES))
    for case in arguments.case or CASES:
        figures = [measure(case, mode) for mode in MODES]
        print(f"{case:24}" + f"{figures[0]:12.1f}" + "".join(f"{f - figures[0]:+12.1f}" for f in figures[1:]), flush=True)


def limits_check():
    bare, above = {}, 0
    print(f"{'added instructions':24}{'mode':>12}{'counted':>12}{'limit':>12}")
    for line in open(arguments.limits):
        if line.startswith("#") or not line.strip():
            continue
        case, mode, limit = line.split()
        bare.setdefault(case, instructions(case, "bare"))
        added = instructions(case, mode) - bare[case]
        over = added > float(limit) * SLACK
        above += over
        print(f"{case:24}{mode:>12}{added:12.1f}{limit:>12}{'   too many' if over else ''}", flush=True)
    return 1 if above else 0


if arguments.limits:
    sys.exit(limits_check())
table("nanoseconds per call", nanoseconds)
if arguments.instructions:
    table("instructions per call", instructions)
