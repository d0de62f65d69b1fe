#!/usr/bin/env python3
"""Runs conformance rows bare and under the shim with limits of the user's own: the results must be the same, and the shim silent.

  limited_rows.py SHIM PROGRAM LIBRARIES EXCEPTIONS PATTERN...

Each row is a process of its own, with half of the device's memory and half of the GPU's time, so that every allocation is
charged and every launch goes through the gate and the meter. EXCEPTIONS (row, how, why) names the rows that are not as bare; a
row of it that is as bare all the same, or is none, fails as well. What other processes let go of by dying, or keep of one
another's, a limit is told of within a second, which the rows are given.
"""
import os
import re
import subprocess
import sys

import conformance_rows

shim, program, libraries, exceptions_path, *patterns = sys.argv[1:]
exceptions = {}
for line in open(exceptions_path):
    if not line.startswith("#"):
        row, how, why = line.rstrip("\n").split("\t")
        assert how in ("says", "differs", "memory") and why, line
        exceptions[row] = how
bare = dict(os.environ, LD_LIBRARY_PATH=libraries)
for name in [name for name in bare if name == "LD_PRELOAD" or name.startswith("SLUICE_")]:
    del bare[name]
limits = {"LD_PRELOAD": shim, "SLUICE_SOCKET": "/nonexistent", "SLUICE_MEMORY": "512MiB", "CONFORMANCE_PATIENCE_MS": "20000"}
both_limits = {**limits, "SLUICE_SM": "50%"}


def outcome(row, extra):
    done = subprocess.run([program, f"--gtest_filter={row}"], capture_output=True, text=True, env={**bare, **extra}, timeout=120)
    verdict = re.search(r"^\[  (PASSED|FAILED|SKIPPED)  \] (?!0 tests)", done.stdout, re.M)
    return done.returncode, verdict and verdict[1], done.stdout + done.stderr


def best_of(tries, row, extra):
    for _ in range(tries):
        found = outcome(row, extra)
        if found[1] == "PASSED":
            break
    return found


def row_run(row):
    without, with_limits = outcome(row, {}), outcome(row, both_limits)
    if exceptions.get(row) != "memory":
        return row, without, with_limits
    # Whatever it measured under a share, it has come to its end. A busy host spoils what it measures: one of five must not be.
    if with_limits[1] is not None and "sluice:" not in with_limits[2]:
        without, with_limits = best_of(5, row, {}), best_of(5, row, limits)
    return row, without, with_limits


rows, _ = conformance_rows.rows_list(program, bare, patterns)
failures = [] if len(rows) >= 20 else [f"only {len(rows)} rows match {patterns}"]
passed = 0
for row, without, with_limits in conformance_rows.rows_run(row_run, rows):
    passed += without[1] == "PASSED"
    how = exceptions.get(row)
    same, silent = without[:2] == with_limits[:2], "sluice:" not in with_limits[2]
    if same == (how == "differs"):
        failures.append(f"{row}: {without[:2]} bare, {with_limits[:2]} with limits\n{with_limits[2]}")
    elif how == "says" and not re.search(r"^sluice: refused ", with_limits[2], re.M):
        failures.append(f"{row}: the shim does not say that it refused\n{with_limits[2]}")
    elif how in (None, "memory") and not silent:
        failures.append(f"{row}: the shim is not silent\n{with_limits[2]}")
known, _ = conformance_rows.rows_list(program, bare, ["*"])
failures += [f"{exceptions_path} names {row}, which is no row" for row in exceptions if row not in known]
if passed < len(rows) * 9 // 10:
    failures.append(f"only {passed} of {len(rows)} rows pass at all")
# That the limits bind: none has room for a context in less than a context takes.
row = "memory.alloc_aligned"
if outcome(row, {**both_limits, "SLUICE_MEMORY": "16MiB"})[1] != "FAILED":
    failures.append(f"{row} does not notice a limit below its context")
print("\n".join(failures))
print(f"{len(rows)} rows, {passed} pass, {len(exceptions)} exceptions, the others the same under limits: {not failures}")
sys.exit(1 if failures else 0)
