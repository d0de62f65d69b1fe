#!/usr/bin/env python3
"""What a preloaded library adds to a driver call, to a look-up and to the start of a program: the same programs are run bare
and with the library, in turn, in one run.

    interpose_bench.py --build build/dev                       times: Google Benchmark, and the loading of /bin/true
    interpose_bench.py --build build/dev --instructions        instructions as well (callgrind; the same on a busy machine)
    interpose_bench.py --build build/dev --preload OTHER.so --env K=V     another library in the shim's place
    interpose_bench.py --build build/dev --beside "OTHER.so K=V ..."      other libraries beside the shim, in the same rounds

Times are processor time, as differences against the bare program: of the medians over the rounds, and in brackets of the
fastest rounds, which says more where others take part of the machine. The program opens its own lease only for the shim; for
another library in its place the columns `tenant` and `exclusive` are more of the same. A library beside the shim has a column
of its own: it runs in the program of the column `tenant`, and what is bare for that is bare for it. The column `hook` is a
library whose launches only call on (forward.c): the least that a hook costs which a compiler makes.

--limits FILE (case, mode, instructions) only counts what the file names, prints each against its limit, and ends with 1 when
one is more than a tenth above it (also by the least counts of four runs).
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

# Case -> the function that callgrind counts in.
BODIES = {"launch": "body_launch", "launch_10us": "body_launch", "launch_1ms": "body_launch", "launch_ex": "body_launch_ex",
          "launch_streams": "body_launch_streams", "launch_per_thread": "body_launch_per_thread",
          "graph_launch": "body_graph_launch", "graph_launch_100us": "body_graph_launch", "alloc_free": "body_alloc", "alloc_free_10000": "body_alloc",
          "event_record": "body_event_record", "event_query": "body_event_query",
          "memory_info": "body_memory_info", "dlsym_foreign": "body_dlsym_foreign",
          "dlsym_driver": "body_dlsym_driver", "proc_address": "body_proc_address"}
# What the program itself does, and which library is preloaded. A tenant's broker is a thread of the program, and
# glibc's own look-ups cost more with two threads, so what it is compared with has the thread as well.
NONE, SHIM, FORWARD, BESIDE = range(4)
MODES = {"bare": ("plain", NONE), "inert": ("plain", SHIM), "bare_tenant": ("tenant", NONE), "tenant": ("tenant", SHIM),
         "exclusive": ("exclusive", SHIM), "hook": ("tenant", FORWARD)}
BARE_OF = {"inert": "bare", "tenant": "bare_tenant", "exclusive": "bare_tenant", "hook": "bare_tenant"}
SLACK = 1.10

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", required=True, type=pathlib.Path, help="a build directory")
parser.add_argument("--preload", help="the library to measure (the shim of the build)")
parser.add_argument("--env", action="append", default=[], metavar="K=V", help="set for the preloaded runs, may be repeated")
parser.add_argument("--beside", action="append", default=[], metavar="'LIBRARY [K=V...]'",
                    help="another library that is measured beside it, with what is set for it alone, may be repeated")
parser.add_argument("--settle", type=float, default=0, metavar="SECONDS",
                    help="wait behind cuInit before measuring, for libraries whose limits begin later (0)")
parser.add_argument("--case", action="append", choices=[*BODIES, "load"], help="only these")
parser.add_argument("--rounds", type=int, default=25, help="rounds of each mode, in turn (25)")
parser.add_argument("--load-rounds", type=int, default=2000, help="starts of /bin/true per library (2000)")
parser.add_argument("--instructions", action="store_true", help="count instructions as well")
parser.add_argument("--limits", metavar="FILE", help="only count, and compare with the limits of FILE")
arguments = parser.parse_args()
beside = [words.split() for words in arguments.beside if words.strip()]
for option, settings in [("--env", arguments.env)] + [("--beside", settings) for _, *settings in beside]:
    for setting in settings:
        if "=" not in setting:
            parser.error(f"{option} takes K=V, not '{setting}'")
programs = arguments.build.resolve() / "tests"
library = os.path.abspath(arguments.preload or arguments.build / "lib/libsluice.so")
preloads = {NONE: (None, []), SHIM: (library, arguments.env),
            FORWARD: (str(programs / "libinterpose_forward.so"), arguments.env)}
known = len(MODES)
for i, (other, *settings) in enumerate(beside):
    name = re.sub(r"^lib|\.so.*$", "", os.path.basename(other))
    MODES[name], BARE_OF[name] = ("tenant", BESIDE + i), "bare_tenant"
    preloads[BESIDE + i] = (os.path.abspath(other), settings)
if len(MODES) != known + len(beside):
    parser.error("--beside takes libraries of different names")
for path, _ in preloads.values():
    if path and not os.path.exists(path):  # the loader would go on without it, and the bare program be measured
        parser.error(f"there is no library {path}")
cases = [case for case in arguments.case or [*BODIES, "load"] if case != "load"]
wants_load = not arguments.case or "load" in arguments.case


def environment(preload):
    result = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE") and k != "LD_PRELOAD"}
    result["SLUICE_SOCKET"] = "/nonexistent"
    path, settings = preload
    if path:
        result.update(setting.split("=", 1) for setting in settings)
        result["LD_PRELOAD"] = path
    return result


def times_of_round(mode):
    """Case -> nanoseconds, of one process of Google Benchmark."""
    program_mode, preload = MODES[mode]
    done = subprocess.run([programs / "interpose_bench", program_mode, str(arguments.settle),
                           "--benchmark_format=json", "--benchmark_min_time=0.02", f"--benchmark_filter=^({'|'.join(cases)})$"],
                          env=environment(preloads[preload]), check=True, capture_output=True, text=True)
    return {row["name"]: row["cpu_time"] for row in json.loads(done.stdout)["benchmarks"]}


def times_print():
    rounds = [{mode: times_of_round(mode) for mode in MODES} for _ in range(arguments.rounds)]
    print(f"{'nanoseconds':18}{'bare':>16}" + "".join(f"{'+ ' + mode:>19}" for mode in BARE_OF))
    for case in cases:
        median = {mode: statistics.median(r[mode][case] for r in rounds) for mode in MODES}
        least = {mode: min(r[mode][case] for r in rounds) for mode in MODES}
        line = f"{case:18}{median['bare']:8.1f} ({least['bare']:.1f})".ljust(34)
        for mode, bare in BARE_OF.items():
            line += f"{f'{median[mode] - median[bare]:.1f} ({least[mode] - least[bare]:.1f})':>19}"
        print(line, flush=True)


def load_print():
    with tempfile.TemporaryDirectory() as folder:
        # All as deep in the tree: the kernel walks each folder of a path, which takes longer than an empty library's relocation.
        def copied(file):
            place = pathlib.Path(tempfile.mkdtemp(dir=folder))
            return shutil.copy(file, place)

        others = [word for other, *settings in beside for word in (*settings, copied(other))]
        done = subprocess.run([programs / "interpose_load", str(arguments.load_rounds), copied(programs / "libinterpose_nothing.so"),
                               *arguments.env, copied(library), *others], check=True, capture_output=True, text=True)
    rows = [line.rsplit(" ", 3) for line in done.stdout.splitlines()]
    none = [float(value) for value in rows[0][1:]]
    print(f"{'start of /bin/true':18}{none[0]:10.1f} us, {none[2]:.0f} page faults; added, median (tenth percentile):")
    for name, *values in rows[1:]:
        median, least, faults = (float(value) - base for value, base in zip(values, none))
        print(f"  {os.path.basename(name):28}{median:8.1f} us ({least:.1f}), {faults:+.0f} page faults", flush=True)


# The meter looks after a time, not after a number of calls: who waits for a CPU meanwhile counts more instructions.
ahead = ["nice", "-n", "-20"] if os.geteuid() == 0 else []


def counted(command, preload, *options):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([*ahead, "valgrind", "--tool=callgrind", *options, f"--callgrind-out-file={out.name}", *command],
                       env=environment(preload), check=True, capture_output=True)
        total = int(re.search(r"^(?:summary|totals): (\d+)", open(out.name).read(), re.M)[1])
    if total == 0:
        sys.exit(f"interpose_bench: callgrind has counted nothing of {command[0]} ({' '.join(options)})")
    return total


CALLS = 10_000, 30_000
least_counts = {}  # (case, mode) -> the least counts so far: what disturbs a run only adds to it


def count(case, mode):
    program_mode, preload = MODES[mode]
    if case == "load":
        counts = [counted(["/bin/true"], preloads[preload])]
    else:
        counts = [counted([programs / "interpose_calls", program_mode, case, str(calls), str(arguments.settle)],
                          preloads[preload], f"--toggle-collect=*{BODIES[case]}*") for calls in CALLS]
    least_counts[case, mode] = [min(pair) for pair in zip(counts, least_counts.get((case, mode), counts))]


def instructions(case, mode):
    """Instructions of one call; for `load`, of all that happens in /bin/true."""
    if (case, mode) not in least_counts:
        count(case, mode)
    counts = least_counts[case, mode]
    return counts[0] if case == "load" else (counts[1] - counts[0]) / (CALLS[1] - CALLS[0])


def instructions_added(case, mode):
    return instructions(case, mode) - instructions(case, BARE_OF[mode])


def instructions_print():
    print(f"{'instructions':18}{'bare':>10}" + "".join(f"{'+ ' + mode:>24}" for mode in BARE_OF))
    for case in cases + ["load"] * wants_load:
        line = f"{case:18}{instructions(case, 'bare'):10.1f}"
        for mode in BARE_OF:  # /bin/true is no tenant, and a library costs its start once
            once = case != "load" or mode == "inert" or MODES[mode][1] >= BESIDE
            line += f"{instructions_added(case, mode):24.1f}" if once else " " * 24
        print(line, flush=True)


AGAIN = 3
FRESH = 3


def counted_within(case, mode, limit):
    """What a call adds; counted again while that is above the limit. How often the meter looks depends on how long others kept
    the program waiting: that only adds to a count, but a small count with less of it than the large one makes their difference
    too large for good, and one with more of it makes it negative. So after some tries both begin anew."""
    for fresh in range(FRESH):
        if fresh > 0:
            least_counts.pop((case, mode), None)
        added = instructions_added(case, mode)
        for _ in range(AGAIN):
            if 0 <= added <= limit:
                return added
            count(case, mode)
            added = instructions_added(case, mode)
    return added


def limits_check():
    above = 0
    print(f"{'added instructions':24}{'mode':>12}{'counted':>12}{'limit':>12}")
    for line in open(arguments.limits):
        if line.startswith("#") or not line.strip():
            continue
        case, mode, limit = line.split()
        added = counted_within(case, mode, float(limit) * SLACK)
        over = added > float(limit) * SLACK
        above += over
        print(f"{case:24}{mode:>12}{added:12.1f}{limit:>12}{'   too many' if over else ''}", flush=True)
    return 1 if above else 0


if arguments.limits:
    sys.exit(limits_check())
if cases:
    if (programs / "interpose_bench").exists():
        times_print()
    else:
        print("times skipped: interpose_bench is not built (Google Benchmark is missing: scripts/setup --tests)")
if wants_load:
    load_print()
if arguments.instructions:
    instructions_print()
