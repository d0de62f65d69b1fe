#!/usr/bin/env python3
"""Runs conformance rows with movable memory that is moved all the while (swap_row), a few at a time.

  swap_rows.py RUNNER SHIM PROGRAM LIBRARIES EXCEPTIONS PATTERN...

Rows are those of PROGRAM that match a pattern. EXCEPTIONS lists the rows that must fail, with the reason: what programs see
of movable memory that is not so of memory of cuMemAlloc. Anything else fails the run, also an exception that passes, and
rows during which nothing was ever moved.
"""
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import tempfile

runner, shim, program, libraries, exceptions, *patterns = sys.argv[1:]
environment = dict(os.environ, LD_LIBRARY_PATH=libraries)
environment.pop("LD_PRELOAD", None)


def rows_list():
    out, suite = [], ""
    listed = subprocess.run([program, "--gtest_list_tests"], check=True, capture_output=True, text=True, env=environment)
    for line in listed.stdout.splitlines():
        if line.startswith("  "):
            out.append(suite + line.split("#")[0].strip())
        elif line.endswith("."):
            suite = line
    return out


def row_run(row):
    with tempfile.TemporaryDirectory() as directory:
        command = [runner, shim, directory, program, f"--gtest_filter={row}"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    moved = re.search(r"moved (\d+) times", done.stdout)
    return row, done.returncode, int(moved[1]) if moved else 0, done.stdout + done.stderr


expected = {}
for line in pathlib.Path(exceptions).read_text().splitlines():
    if line and not line.startswith("#"):
        row, reason = line.split("\t")
        expected[row] = reason
known = rows_list()
rows = [row for row in known if any(fnmatch.fnmatch(row, pattern) for pattern in patterns)]
failures, moved = [], 0
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for row, code, times, output in pool.map(row_run, rows):
        moved += times
        if (code != 0) != (row in expected):
            failures.append(f"{row}: {'failed' if code else 'passed, though it is an exception'}\n{output}")
unknown = [row for row in expected if row not in known]
if unknown:
    failures.append(f"exceptions that are no rows: {unknown}")
if moved < len(rows) // 2:
    failures.append(f"memory was moved {moved} times in {len(rows)} rows: too seldom to mean anything")
print("\n".join(failures))
print(f"{len(rows)} rows, memory moved {moved} times")
sys.exit(1 if failures else 0)
