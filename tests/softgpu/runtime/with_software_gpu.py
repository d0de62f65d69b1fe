#!/usr/bin/env python3
"""Runs a command on a software GPU of its own and checks how it ends.

  with_software_gpu.py --libraries DIR [--set NAME=VALUE]... [--exit CODE] [--lines N --says WORD...] -- COMMAND...

The device segments live in a directory made for this run and removed afterwards, so tests never meet each other.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--libraries", required=True, help="becomes LD_LIBRARY_PATH")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--exit", type=int, default=0, help="expected exit status; -1: any but 0")
    parser.add_argument("--lines", type=int, help="expected number of lines on stdout and stderr together")
    parser.add_argument("--says", action="append", default=[], help="words the output must contain")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command

    directory = tempfile.mkdtemp(prefix="softgpu-test-", dir="/dev/shm")
    environment = dict(os.environ, LD_LIBRARY_PATH=options.libraries, SOFTGPU_DIR=directory, SOFTGPU_PACING="0")
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    for setting in options.set:
        name, _, value = setting.partition("=")
        environment[name] = value
    try:
        result = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=100)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(result.stdout)
    if result.returncode == 77 and options.exit == 0:
        return 77
    failures = []
    if result.returncode != options.exit and not (options.exit == -1 and result.returncode != 0):
        failures.append(f"exit status {result.returncode}, not {options.exit}")
    lines = result.stdout.splitlines()
    if options.lines is not None and len(lines) != options.lines:
        failures.append(f"{len(lines)} lines, not {options.lines}")
    failures += [f"the output does not say {word!r}" for word in options.says if word not in result.stdout]
    for failure in failures:
        print(f"with_software_gpu.py: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
