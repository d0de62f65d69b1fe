#!/usr/bin/env python3
"""--preload and --env of interpose_bench.py, with a library that does nothing: it is the one that is measured, and what
--env sets reaches the runs that have it and no other.

  options_test.py BENCH BUILD LIBRARY
"""
import pathlib
import subprocess
import sys
import tempfile

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
    with_library = [file for file in files if str(pathlib.Path(library).resolve()) in file.read_text()]
    expect(len(with_library) >= STARTS, f"only {len(with_library)} of them have the library")

wrong = subprocess.run([sys.executable, bench, "--build", build, "--env", "NO_VALUE"], capture_output=True, text=True)
expect(wrong.returncode == 2 and "--env takes K=V, not 'NO_VALUE'" in wrong.stderr, wrong.stderr)
missing = subprocess.run([sys.executable, bench, "--build", build, "--preload", "/nonexistent/library.so", "--case", "load"],
                         capture_output=True, text=True)
expect(missing.returncode == 2 and "/nonexistent/library.so" in missing.stderr, f"{missing.returncode}: {missing.stderr}")
print("\n".join(failures) or "the options do what they say")
sys.exit(1 if failures else 0)
