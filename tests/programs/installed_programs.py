#!/usr/bin/env python3
"""Runs programs that others made, as the distribution installs them, bare on a software GPU and under Sluice, and compares.

  installed_programs.py --build DIR CASE

openmp      what GCC's compiler makes of openmp.c for offloading, over libgomp: PTX linked by the driver, memory, queues
gpuarray    tests of libgpuarray for Python (pygpu): kernels that NVRTC compiles while they run

A case ends with 77 and a reason where its program is not installed.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
from machine import Machine, wait_until  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def expect_nothing_left(machine):
    wait_until("the device has all its memory back", lambda: machine.device()["used_bytes"] == 0)
    wait_until("the broker has forgotten the tenant", lambda: not machine.status()["tenants"])


def run_everywhere(machine, command, expected, timeout_s=120):
    """Bare, under a broker, and by the limits of its own environment: the same output, nothing on stderr, nothing left."""
    kernels = 0
    shim = {"LD_PRELOAD": str(machine.build / "lib/libsluice.so"), "SLUICE_MEMORY": "700MiB", "SLUICE_SM": "60%"}
    machine.start_broker()
    for where, line, variables in (("bare", command, {}), ("a tenant", machine.slice(*command, memory="700MiB", sm=60), {}),
                                   ("alone", command, shim)):
        done = machine.run(line, timeout_s, {**machine.environment, **variables})
        expect(done.returncode == 0, f"{where}: exit {done.returncode}: {done.stdout}{done.stderr}")
        expect(expected(done.stdout), f"{where}: unexpected output {done.stdout!r}")
        expect(done.stderr == "", f"{where}: {done.stderr}")
        expect_nothing_left(machine)
        # A program that fell back to the host would print the same.
        ran = sum(process["launches"] for process in machine.device()["processes"])
        expect(ran > kernels, f"{where}: it ran {ran - kernels} kernels on the device")
        kernels = ran


def openmp_program(machine):
    """Compiled without a ptxas in the way: GCC's assembler checks its PTX by one if it finds one, for a GPU that newer ones do
    not know."""
    program = machine.directory / "openmp"
    compilers = [name for name in ("gcc-12", "gcc") if shutil.which(name)]
    if not compilers:
        skip("no gcc")
    done = subprocess.run([compilers[0], "-O2", "-fopenmp", "-foffload=nvptx-none", "-foffload=-lm", HERE / "openmp.c", "-o", program,
                           "-lm"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    if done.returncode != 0:
        skip(f"{compilers[0]} does not compile for GPUs here (gcc-12-offload-nvptx): {done.stderr.splitlines()[0]}")
    return [str(program)]


def case_openmp(build):
    with Machine(build, pacing=False) as machine:
        command = openmp_program(machine)
        host = machine.run(command, environment={**machine.environment, "OMP_TARGET_OFFLOAD": "disabled"})
        expect(host.returncode == 0 and host.stdout, f"on the host: {host}")
        machine.environment["OMP_TARGET_OFFLOAD"] = "mandatory"
        run_everywhere(machine, command, lambda out: out == host.stdout)


def case_openmp_quota(build):
    with Machine(build, pacing=False) as machine:
        command = openmp_program(machine)
        machine.environment["OMP_TARGET_OFFLOAD"] = "mandatory"
        machine.start_broker()
        refused = machine.run(machine.slice(*command, "600", memory="512MiB"))
        expect(refused.returncode == 3, f"exit {refused.returncode}: {refused.stdout}{refused.stderr}")
        for line in ("nvptx_alloc error: out of memory", "no memory on the device", "sluice: refused 600.0 MiB"):
            expect(line in refused.stderr, f"not said: {line!r} in {refused.stderr!r}")
        expect_nothing_left(machine)


def gpuarray(machine):
    """The Python of the distribution, for which pygpu is made; NVRTC is in the toolkit."""
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64"
    python = "/usr/bin/python3"
    if not list(toolkit.glob("libnvrtc.so*")):
        skip(f"no libnvrtc in {toolkit}")
    found = subprocess.run([python, "-c", "import pytest, os.path, importlib.util as u; print(os.path.dirname(u.find_spec('pygpu').origin))"],
                           capture_output=True, text=True)
    if found.returncode != 0:
        skip("pygpu or pytest is not installed (python3-pygpu, python3-pytest)")
    machine.environment["LD_LIBRARY_PATH"] += f":{toolkit}"
    machine.environment["DEVICE"] = "cuda0"
    return python, pathlib.Path(found.stdout.strip()) / "tests"


def case_gpuarray(build):
    with Machine(build, pacing=False) as machine:
        python, tests = gpuarray(machine)
        files = [str(tests / f"test_{name}.py") for name in ("basic", "tools", "operations", "gpu_ndarray")]
        chosen = "not cast and not ascontiguousarray"  # half of the time is theirs: a kernel for each pair of types
        run_everywhere(machine, [python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--disable-warnings", "-k", chosen,
                                 *files], lambda out: " passed" in out and "failed" not in out and "skipped" not in out)


FILL = """
import pygpu
context = pygpu.init('cuda0')
print(context.total_gmem)
held = []
try:
    while True: held.append(pygpu.empty((1 << 20,), dtype='uint8', context=context))
except pygpu.gpuarray.GpuArrayException as error:
    print(len(held), error)
"""


def case_gpuarray_quota(build):
    with Machine(build, pacing=False) as machine:
        python, _ = gpuarray(machine)
        machine.start_broker()
        done = machine.run(machine.slice(python, "-B", "-c", FILL, memory="80MiB"))
        expect(done.returncode == 0, f"exit {done.returncode}: {done.stdout}{done.stderr}")
        total, said = done.stdout.splitlines()
        expect(int(total) == 80 << 20, f"the device has {total} bytes for it")
        expect("CUDA_ERROR_OUT_OF_MEMORY" in said, said)
        # It asks for 4 MiB at a time, beside a context of 32 MiB; code that it loads takes a little.
        expect(40 <= int(said.split()[0]) <= 48, f"{said}: not what is left of 80 MiB")
        expect_nothing_left(machine)


def main():
    cases = {name[5:]: body for name, body in globals().items() if name.startswith("case_")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("case", choices=sorted(cases))
    arguments = parser.parse_args()
    try:
        cases[arguments.case](arguments.build)
    except AssertionError as failure:
        sys.exit(f"{arguments.case}: {failure}")


if __name__ == "__main__":
    main()
