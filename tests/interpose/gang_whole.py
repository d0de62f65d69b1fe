#!/usr/bin/env python3
"""A gang of two ranks whose kernels wait for each other, under the broker and the shim, beside a neighbour that wants one
of its GPUs: the leases close at any moment, and both end. Starts a private broker on two software GPUs. With --servers the
neighbours are inference tenants, one on each GPU, which go first as soon as they want. With --processes each rank is a
process of its own."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

PATIENCE_S = 240  # for what takes seconds on an idle machine
NEIGHBOUR_MS = 4000
PAUSE_MS = 20  # at most, between the bursts of a server

parser = argparse.ArgumentParser()
parser.add_argument("--sluice", required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--rounds", type=int, default=400, help="in which the ranks meet (400)")
parser.add_argument("--servers", action="store_true", help="beside inference on both GPUs")
parser.add_argument("--processes", action="store_true", help="the ranks are processes")
parser.add_argument("--inner", action="store_true", help="under the private broker")
arguments = parser.parse_args()


def run(*words):
    return subprocess.Popen([arguments.sluice, "run", "--memory", "64MiB", *words], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outer():
    with tempfile.TemporaryDirectory(prefix="sluice-gang-") as place:
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
        # GPUs so fast that a kernel which spins costs what the host takes for it, and no modelled time on top.
        env.update(XDG_RUNTIME_DIR=place, SOFTGPU_DIR=f"{place}/gpus", SOFTGPU_RATE="4e9")
        inner = run_private(env)
        sys.stdout.write(inner.stdout)
        return inner.returncode


def run_private(env):
    return subprocess.run([arguments.sluice, "run", "--soft", "2", "--memory", "64MiB", "--", sys.executable, __file__,
                           "--sluice", arguments.sluice, "--program", arguments.program, "--rounds", str(arguments.rounds),
                           *["--servers"] * arguments.servers, *["--processes"] * arguments.processes, "--inner"], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S)


def inner():
    gang = run("--gpus", "2", "--sm", "40", "--name", "gang", "--", arguments.program,
               "processes" if arguments.processes else "ranks", str(arguments.rounds))
    if arguments.servers:
        neighbours = [run("--class", "inference", "--sm", "40", "--gpu", gpu, "--name", f"server-{gpu}", "--",
                          arguments.program, "server", str(PAUSE_MS)) for gpu in "01"]
    else:
        neighbours = [run("--gpu", "1", "--name", "neighbour", "--", arguments.program, "neighbour", str(NEIGHBOUR_MS))]
    failed = 0
    for job in (gang, *neighbours):
        try:
            output, _ = job.communicate(timeout=PATIENCE_S * 3 / 4)
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
