#!/usr/bin/env python3
"""Runs conformance rows under the shim and compares its ledger with the software GPU's own account (ledger_row), a few at a time.

  ledger_rows.py RUNNER SHIM POINTS PROGRAM LIBRARIES EXCEPTIONS PATTERN...

Rows are those of PROGRAM that match a pattern. The run fails by a byte that the two accounts do not agree on in any of them;
EXCEPTIONS lists the rows that are left out, with the reason. Few rows may fail by themselves: those that ask how long
something takes, or what is free in the moment in which a process was killed.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import conformance_rows

runner, shim, points, program, libraries, exceptions, *patterns = sys.argv[1:]
environment = dict(os.environ, LD_LIBRARY_PATH=libraries)
environment.pop("LD_PRELOAD", None)

left_out = {line.split("\t")[0] for line in pathlib.Path(exceptions).read_text().splitlines() if line and not line.startswith("#")}


def row_run(row):
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run([runner, shim, points, directory, program, f"--gtest_filter={row}"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env=environment, timeout=120)
    said = re.search(r"compared (\d+) times, the row ended with (\d+)", done.stdout)
    times, ended = (int(said[1]), int(said[2])) if said else (0, 255)
    return row, done.returncode != 0 or ended > 1, times, ended, done.stdout


rows, known = conformance_rows.rows_list(program, environment, patterns)
rows = [row for row in rows if row not in left_out]
failures, failed, compared = [], [], 0
for row, differs, times, ended, output in conformance_rows.rows_run(row_run, rows):
    compared += times > 0
    if differs:
        failures.append(f"{row}:\n{output}")
    elif ended != 0:
        failed.append(row)
unknown = left_out - set(known)
if unknown:
    failures.append(f"exceptions that are no rows: {unknown}")
if compared < len(rows) * 9 // 10 or len(rows) < 100:
    failures.append(f"{compared} of {len(rows)} rows were compared: too few to mean anything")
if len(failed) > len(rows) // 50:
    failures.append(f"too many rows fail by themselves: {failed}")
print("\n".join(failures))
print(f"{len(rows)} rows, {compared} compared, failed by themselves: {failed}")
sys.exit(1 if failures else 0)
