#!/usr/bin/env python3
"""Runs probe_driver on the software driver and checks its answers: every entry point exists by both ways of asking."""

import json
import os
import subprocess
import sys
import tempfile


def main():
    probe, libraries = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        environment = dict(os.environ, LD_LIBRARY_PATH=libraries, SOFTGPU_DIR=directory)
        text = subprocess.run([probe], env=environment, check=True, capture_output=True, text=True, timeout=50).stdout
    answer = json.loads(text)
    lookup = answer["lookup"]
    failures = []
    if lookup["asked"] < 600:
        failures.append(f"only {lookup['asked']} entry points asked")
    for kind in ("different", "only_dlsym", "only_lookup", "neither"):
        if lookup[kind]:
            failures.append(f"{kind}: {' '.join(lookup[kind])}")
    if answer["driver_version"] < 13000 or not isinstance(answer["kernel"]["btf"], bool):
        failures.append(f"unexpected: {answer['driver_version']}, {answer['kernel']}")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
