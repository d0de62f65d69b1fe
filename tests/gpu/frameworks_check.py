#!/usr/bin/env python3
"""Checks frameworks.py itself, on the software GPU: a program that does everything right passes, each way of doing it wrong
is found, and the frameworks that are not installed here are skipped with the reason.

  frameworks_check.py BUILD_DIRECTORY
"""

import importlib.util
import json
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "programs"))
from machine import MIB, Machine  # noqa: E402

# Programs that need no GPU: how they go wrong is all that matters. `preloaded` and `limited` are how they notice.
FAULTY = """
import os, signal, sys
preloaded = "libsluice" in os.environ.get("LD_PRELOAD", "")
limited = "SLUICE_TENANT" in os.environ
needs = sys.argv[1:2] == ["--need"]
if sys.argv[1:] == ["--check"]: {check}
print("sum 1")
if needs and limited: {limited}
elif needs: print("allocated", sys.argv[2], "bytes")
elif preloaded: {preloaded}
if needs: print({again})
"""
RIGHT = {"check": "sys.exit(0)", "limited": 'print("out of memory: Error")', "preloaded": "pass", "again": '"sum 1"'}
# What is wrong, and what the report must say of it.
FAULTS = {
    "right": ({}, "passed", ""),
    "absent": ({"check": 'print("no package of that name"); sys.exit(77)'}, "skipped", "no package of that name"),
    "broken": ({"check": "sys.exit(3)"}, "failed", "check: ended with 3"),
    "talks": ({"preloaded": 'print("I see it")'}, "failed", "printed"),
    "crashes": ({"limited": "os.kill(os.getpid(), signal.SIGSEGV)"}, "failed", "need_quota: ended with"),
    "passes": ({"limited": 'print("allocated", sys.argv[2], "bytes")'}, "failed", "the quota was passed"),
    "poisoned": ({"again": '"sum 2" if limited else "sum 1"'}, "failed", "not the same before and after"),
}
PACKAGES = {"pytorch": "torch", "pytorch_async": "torch", "pytorch_graphs": "torch", "pytorch_ranks": "torch",
            "cupy_arrays": "cupy", "jax_arrays": "jax", "jax_preallocates": "jax", "numba_arrays": "numba"}


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    failures = []
    with Machine(build, memory="1GiB", pacing=False) as machine:
        machine.start_broker()
        machine.environment["SLUICE_SOCKET"] = str(machine.socket)
        output = machine.directory / "report.json"

        def harness(*programs):
            command = [sys.executable, "-B", str(HERE / "frameworks.py"), "--build", str(build), "--output", str(output), "--quota",
                       str(256 * MIB), "--need", str(400 * MIB), "--timeout", "60", *programs]
            done = machine.run(command, timeout_s=400)
            if not output.exists():
                raise AssertionError(f"no report: {done.stderr}")
            return done, json.loads(output.read_text())

        done, report = harness(str(build / "tests/gpu/standin"))
        if done.returncode != 0 or report["standin"]["result"] != "passed":
            failures.append(f"standin: {done.stdout}{done.stderr}")
        else:
            runs = report["standin"]["runs"]
            if "out of memory: cudaErrorMemoryAllocation" not in runs["need_quota"]["stdout"] or not runs["need_quota"]["stderr"]:
                failures.append(f"standin: it was not the quota: {runs['need_quota']}")

        for name, (fault, result, text) in FAULTS.items():
            program = machine.directory / f"{name}.py"
            program.write_text(FAULTY.format(**{**RIGHT, **fault}))
            done, report = harness(str(program))
            status = {"passed": 0, "failed": 1, "skipped": 77}[result]
            if report[name]["result"] != result or text not in report[name]["why"] or done.returncode != status:
                failures.append(f"{name}: exit {done.returncode}, {report[name]['result']}: {report[name]['why']}")

        absent = {name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is None}
        _, report = harness()
        for name in absent:
            if report[name]["result"] != "skipped" or f"the package {PACKAGES[name]} is not installed" not in report[name]["why"]:
                failures.append(f"{name}: {report[name]['result']}: {report[name]['why']}")
        if set(report) != set(PACKAGES):
            failures.append(f"not the four frameworks: {sorted(report)}")
    print("\n".join(failures) or f"frameworks.py tells right from wrong; not installed here: {', '.join(sorted(absent)) or 'none'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
