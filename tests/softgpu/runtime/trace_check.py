#!/usr/bin/env python3
"""Records the driver calls of a program on a software GPU and compares them with a list.

  trace_check.py --libraries DIR --recorder FILE --compare FILE --expected FILE -- COMMAND...

Also: without SOFTGPU_TRACE the recorder must leave the program alone, and look-ups must be in the trace by name and version.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile


def run(options, directory, trace):
    environment = dict(os.environ, LD_LIBRARY_PATH=options.libraries, LD_PRELOAD=options.recorder, SOFTGPU_DIR=f"{directory}/devices",
                       SOFTGPU_PACING="0")
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment.pop("SOFTGPU_TRACE", None)
    if trace:
        environment["SOFTGPU_TRACE"] = str(trace)
    os.makedirs(f"{directory}/devices", exist_ok=True)
    return subprocess.run(options.command, env=environment, timeout=100, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("libraries", "recorder", "compare", "expected"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.command = options.command[1:] if options.command[:1] == ["--"] else options.command
    with tempfile.TemporaryDirectory(prefix="softgpu-trace-", dir="/dev/shm") as directory:
        trace = pathlib.Path(directory) / "trace"
        silent = run(options, directory, None)
        if silent.returncode != 0 or trace.exists():
            sys.exit(f"without SOFTGPU_TRACE: status {silent.returncode}\n{silent.stdout}")
        done = run(options, directory, trace)
        if done.returncode != 0:
            sys.exit(f"status {done.returncode}\n{done.stdout}")
        lines = trace.read_text().splitlines()
        for wanted in ("cuGetProcAddress_v2 0 cuInit@2000", "cuGetProcAddress_v2 0 cuLaunchKernel@7000+p"):
            if wanted not in lines:
                sys.exit(f"the trace has no line {wanted!r}")
        return subprocess.run([sys.executable, options.compare, options.expected, str(trace)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
