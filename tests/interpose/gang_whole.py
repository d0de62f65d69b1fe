#!/usr/bin/env python3
"""A gang of two ranks whose kernels wait for each other, under the broker and the shim, beside a neighbour that wants one
of its GPUs: the leases close at any moment, and both end. Starts a private broker on two software GPUs."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

PATIENCE_S = 90  # for what takes seconds
ROUNDS = 400
NEIGHBOUR_MS = 4000

parser = argparse.ArgumentParser()
parser.add_argument("--sluice", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--inner", action="store_true", help="under the private broker")
arguments = parser.parse_args()


def run(*words):
    return subprocess.Popen([arguments.sluice, "run", "--memory", "64MiB", *words], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def outer():
    with tempfile.TemporaryDirectory(prefix="sluice-gang-") as place:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        env.update(XDG_RUNTIME_DIR=place, SOFTGPU_DIR=f"{place}/gpus")
        inner = run_private(env)
        sys.stdout.write(inner.stdout)
        return inner.returncode


def run_private(env):
    return subprocess.run([arguments.sluice, "run", "--soft", "2", "--memory", "64MiB", "--", sys.executable, __file__,
                           "--sluice", arguments.sluice, "--program", arguments.program, "--inner"], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S)


def inner():
    gang = run("--gpus", "2", "--name", "gang", "--", arguments.program, "ranks", str(ROUNDS))
    neighbour = run("--gpu", "1", "--name", "neighbour", "--", arguments.program, "neighbour", str(NEIGHBOUR_MS))
    failed = 0
    for job in (gang, neighbour):
        try:
            output, _ = job.communicate(timeout=PATIENCE_S / 2)
        except subprocess.TimeoutExpired:
            job.kill()
            output, _ = job.communicate()
            print("it did not end")
        print(output, end="")
        failed |= job.returncode
    status = json.loads(subprocess.run([arguments.sluice, "status", "--json"], capture_output=True, text=True,
                                       check=True).stdout)
    for gpu in status["gpus"]:
        print({k: v for k, v in gpu.items() if "lease" in k or "overrun" in k})
    revoked = sum(gpu["leases_revoked"] for gpu in status["gpus"])
    overruns = sum(gpu["overruns"] for gpu in status["gpus"])
    # Without the rule, or with members that overtake each other, most leases end in a drain that times out.
    if revoked < 10 or overruns > revoked / 4:
        print(f"{revoked} leases were closed under them, {overruns} not drained in time")
        failed = 1
    return 1 if failed else 0


sys.exit(inner() if arguments.inner else outer())
