#!/usr/bin/env python3
"""Runs conformance rows with movable memory that is moved all the while (swap_row), a few at a time.

  swap_rows.py RUNNER SHIM PROGRAM LIBRARIES EXCEPTIONS PATTERN...

Rows are those of PROGRAM that match a pattern. EXCEPTIONS lists the rows that must fail, with the reason: what programs see
of movable memory that is not so of memory of cuMemAlloc. Anything else fails the run, also an exception that passes, and
rows during which nothing was ever moved.
"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import conformance_rows

runner, shim, program, libraries, exceptions, *patterns = sys.argv[1:]
environment = dict(os.environ, LD_LIBRARY_PATH=libraries)
environment.pop("LD_PRELOAD", None)

expected = {}
for line in pathlib.Path(exceptions).read_text().splitlines():
    if line and not line.startswith("#"):
        row, reason = line.split("\t")
        expected[row] = reason


def row_run(row):
    with tempfile.TemporaryDirectory() as directory:
        command = [runner, shim, directory, program, f"--gtest_filter={row}"]
        row_process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                                       start_new_session=True)
        # Some rows that must fail do so by waiting for what cannot come.
        try:
            output, _ = row_process.communicate(timeout=5 if row in expected else 600)
        except subprocess.TimeoutExpired:
            os.killpg(row_process.pid, signal.SIGKILL)
            output, _ = row_process.communicate()
            output += "it did not end"
    moved = re.search(r"moved (\d+) times", output)
    return row, row_process.returncode, int(moved[1]) if moved else 0, output


rows, known = conformance_rows.rows_list(program, environment, patterns)
failures, moved = [], 0
for row, code, times, output in conformance_rows.rows_run(row_run, rows):
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
