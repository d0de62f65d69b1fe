#!/usr/bin/env python3
"""Runs conformance rows bare and under the shim with limits of the user's own: the results must be the same, and the shim silent.

  limited_rows.py SHIM PROGRAM LIBRARIES PATTERN...

Each row is a process of its own, with a memory limit that it stays below and half of the GPU's time, so that every
allocation is charged and every launch goes through the gate and the meter.
"""
import os
import re
import subprocess
import sys

import conformance_rows

shim, program, libraries, *patterns = sys.argv[1:]
bare = dict(os.environ, LD_LIBRARY_PATH=libraries)
for name in [name for name in bare if name == "LD_PRELOAD" or name.startswith("SLUICE_")]:
    del bare[name]
limits = {"LD_PRELOAD": shim, "SLUICE_SOCKET": "/nonexistent", "SLUICE_MEMORY": "512MiB", "SLUICE_SM": "50%"}


def outcome(row, extra):
    done = subprocess.run([program, f"--gtest_filter={row}"], capture_output=True, text=True, env={**bare, **extra}, timeout=120)
    verdict = re.search(r"^\[  (PASSED|FAILED|SKIPPED)  \] (?!0 tests)", done.stdout, re.M)
    return done.returncode, verdict and verdict[1], done.stdout + done.stderr


def row_run(row):
    return row, outcome(row, {}), outcome(row, limits)


rows, _ = conformance_rows.rows_list(program, bare, patterns)
failures = [] if len(rows) >= 20 else [f"only {len(rows)} rows match {patterns}"]
passed = 0
for row, without, with_limits in conformance_rows.rows_run(row_run, rows):
    passed += without[1] == "PASSED"
    if without[:2] != with_limits[:2]:
        failures.append(f"{row}: {without[:2]} bare, {with_limits[:2]} with limits\n{with_limits[2]}")
    elif "sluice:" in with_limits[2]:
        failures.append(f"{row}: the shim is not silent\n{with_limits[2]}")
if passed < len(rows) * 9 // 10:
    failures.append(f"only {passed} of {len(rows)} rows pass at all")
# That the limits bind: none has room for a context in less than a context takes.
if rows and outcome(rows[0], {**limits, "SLUICE_MEMORY": "16MiB"})[1] != "FAILED":
    failures.append(f"{rows[0]} does not notice a limit below its context")
print("\n".join(failures))
print(f"{len(rows)} rows, {passed} pass, the same under limits: {not failures}")
sys.exit(1 if failures else 0)
