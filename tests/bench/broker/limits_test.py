#!/usr/bin/env python3
"""That broker_bench.py --limits fails where callgrind counts nothing: a function by another name has no instructions, and none
are below any limit.

    limits_test.py
"""
import pathlib
import subprocess
import sys
import tempfile

BENCH = pathlib.Path(__file__).resolve().parent / "broker_bench.py"
with tempfile.TemporaryDirectory() as place:
    program = pathlib.Path(place, "tests/broker_decision")
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "all $4"\n')  # --rounds 1 --steps N
    program.chmod(0o755)
    limits = pathlib.Path(place, "limits.tsv")
    limits.write_text("--gpus 1 10000\n")
    done = subprocess.run([sys.executable, BENCH, "--build", place, "--limits", limits], capture_output=True, text=True, timeout=60)
assert done.returncode == 1 and "counted nothing" in done.stderr, (done.returncode, done.stdout, done.stderr)
