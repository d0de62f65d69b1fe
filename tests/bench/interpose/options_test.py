#!/usr/bin/env python3
"""--preload, --env and --beside of interpose_bench.py, with libraries that do nothing: they are the ones that are measured, and
what is set for one reaches the runs that have it and no other. And the bench has as many allocations as it says.

  options_test.py BENCH BUILD LIBRARY
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

bench, build, library = sys.argv[1:]
STARTS, CASE = 3, "dlsym_foreign"
failures = []


def expect(good, what):
    if not good:
        failures.append(what)


with tempfile.TemporaryDirectory() as directory:
    # The loader says in a file for each process which libraries it loads: where it does, the setting has arrived.
    said = pathlib.Path(directory) / "loaded"
    done = subprocess.run([sys.executable, bench, "--build", build, "--preload", library, "--env", "LD_DEBUG=libs",
                           "--env", f"LD_DEBUG_OUTPUT={said}", "--case", CASE, "--case", "load", "--rounds", "1",
                           "--load-rounds", str(STARTS)], capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, f"exit {done.returncode}: {done.stderr}")
    names = [line.split()[0] for line in done.stdout.splitlines() if "page faults" in line]
    # The bare start, the least that any library costs, and the one that was asked for.
    expect(names == ["start", pathlib.Path(library).name, pathlib.Path(library).name], done.stdout)
    timed = [line for line in done.stdout.splitlines() if line.startswith(CASE)]
    modes = 0
    if (pathlib.Path(build) / "tests/interpose_bench").exists():
        expect(len(timed) == 1 and len(timed[0].split()) == 11, done.stdout)
        modes = 4  # with the library, or with forward.c: two have neither
    files = list(pathlib.Path(directory).iterdir())
    expect(len(files) == STARTS + modes, f"{len(files)} processes were given the setting, not {STARTS} + {modes}")
    with_library = [file for file in files if "/" + pathlib.Path(library).name in file.read_text()]
    # One mode has forward.c in its place.
    expect(len(with_library) == STARTS + max(0, modes - 1), f"{len(with_library)} of them have the library")

# Three libraries in one run. What is set for the second names another file, so that each file has one of them alone; for the
# third nothing is set, so that no file has it.
with tempfile.TemporaryDirectory() as directory:
    first, second = pathlib.Path(directory) / "first", pathlib.Path(directory) / "second"
    other = pathlib.Path(directory) / "libother.so"
    third = pathlib.Path(directory) / "libthird.so"
    for copy in other, third:
        copy.write_bytes(pathlib.Path(library).read_bytes())
    loader = "LD_DEBUG=libs"
    done = subprocess.run([sys.executable, bench, "--build", build, "--preload", library, "--env", loader, "--env",
                           f"LD_DEBUG_OUTPUT={first}", "--beside", f"{other} {loader} LD_DEBUG_OUTPUT={second}", "--beside",
                           str(third), "--case", CASE, "--case", "load", "--rounds", "1", "--load-rounds", str(STARTS),
                           "--settle", "0.3"], capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, f"--beside: exit {done.returncode}: {done.stderr}")
    names = [line.split()[0] for line in done.stdout.splitlines() if "page faults" in line]
    expect(names == ["start", pathlib.Path(library).name, pathlib.Path(library).name, other.name, third.name], done.stdout)
    timed = [line for line in done.stdout.splitlines() if line.startswith(CASE)]
    beside_modes = 0
    if modes > 0:
        expect(done.stdout.split("\n")[0].endswith("+ third") and len(timed[0].split()) == 15, done.stdout)
        beside_modes = 1
    files = list(pathlib.Path(directory).glob("second.*"))
    expect(len(files) == STARTS + beside_modes, f"{len(files)} processes were given the second's setting")
    expect(all("/" + other.name in file.read_text() for file in files), "one of them does not have the second library")
    expect(not any("/" + other.name in file.read_text() for file in pathlib.Path(directory).glob("first.*")),
           "the second library is in a program of the first")
    expect(not any("/" + third.name in file.read_text() for file in pathlib.Path(directory).glob("*.[0-9]*")),
           "the third library was given what is set for another")
    twice = subprocess.run([sys.executable, bench, "--build", build, "--beside", str(other), "--beside", str(other)],
                           capture_output=True, text=True)
    expect(twice.returncode == 2 and "different names" in twice.stderr,
           f"the same library twice: {twice.returncode} {twice.stderr}")
    wrong = subprocess.run([sys.executable, bench, "--build", build, "--beside", f"{other} NO_VALUE"], capture_output=True,
                           text=True)
    expect(wrong.returncode == 2 and "--beside takes K=V, not 'NO_VALUE'" in wrong.stderr,
           f"a setting without a value: {wrong.returncode} {wrong.stderr}")

# Google Benchmark prepares a case anew for every try; the allocations that are to be there meanwhile are made once.
program = pathlib.Path(build) / "tests/interpose_bench"
if program.exists():
    begun = time.monotonic()
    done = subprocess.run([program, "plain", "0.5", "--benchmark_format=json", "--benchmark_min_time=0.02",
                           "--benchmark_filter=^alloc_free"], capture_output=True, text=True, timeout=120)
    live = {row["name"]: row["live"] for row in json.loads(done.stdout)["benchmarks"]}
    expect(live == {"alloc_free": 10, "alloc_free_10000": 10000}, f"live allocations: {live}")
    expect(time.monotonic() - begun > 0.5, "it did not wait behind cuInit")

wrong = subprocess.run([sys.executable, bench, "--build", build, "--env", "NO_VALUE"], capture_output=True, text=True)
expect(wrong.returncode == 2 and "--env takes K=V, not 'NO_VALUE'" in wrong.stderr, wrong.stderr)
missing = subprocess.run([sys.executable, bench, "--build", build, "--preload", "/nonexistent/library.so", "--case", "load"],
                         capture_output=True, text=True)
expect(missing.returncode == 2 and "/nonexistent/library.so" in missing.stderr, f"{missing.returncode}: {missing.stderr}")
print("\n".join(failures) or "the options do what they say")
sys.exit(1 if failures else 0)
