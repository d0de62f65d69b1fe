#!/usr/bin/env python3
"""Runs CUDA programs and libraries of the distribution, unmodified, bare and under Sluice, and compares: numba, hashcat,
libgpuarray, and what GCC offloads by OpenMP.

  run_distribution.py --build DIR --toolkit DIR CASE

numba compiles with the toolkit's libnvvm, hashcat and libgpuarray with its libnvrtc, GCC by itself, to PTX that the driver
links; a case is skipped (77) where a program or library that it needs is not installed, and says which.
"""

import argparse
import pathlib
import re
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree stays as it is
from machine import MIB, Machine, wait_until  # noqa: E402
from run_programs import expect, expect_all_returned  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"  # the distribution's, which has its numba
SKIPPED = 77
NUMBA_SAYS = "numba: sum 25159680.0, streams [16384, 16384, 16384], managed 24576\n"
NUMBA_NEEDS = ("--need", str(512 * MIB))
ALONE = {"SLUICE_MEMORY": "512MiB", "SLUICE_SM": "60%"}

# Of numba's own tests, those that are about the driver rather than about the compiler.
NUMBA_TESTS = """
cudadrv.test_context_stack cudadrv.test_cuda_driver cudadrv.test_cuda_memory cudadrv.test_deallocations
cudadrv.test_emm_plugins cudadrv.test_events cudadrv.test_host_alloc cudadrv.test_linker cudadrv.test_managed_alloc
cudadrv.test_pinned cudadrv.test_reset_device cudadrv.test_select_device cudadrv.test_streams cudapy.test_ipc
cudapy.test_multithreads
""".split()


class Missing(Exception):
    pass


def file_of(toolkit, *patterns):
    for pattern in patterns:
        for found in sorted(toolkit.glob(pattern)):
            return found.resolve()
    raise Missing(f"no {patterns[0]} in {toolkit}")


def preloaded(machine):
    return {"LD_PRELOAD": str(machine.build / "lib" / "libsluice.so"), **ALONE}


class Numba:
    """How numba finds its libraries: in a folder that looks as a toolkit of its days did."""

    def __init__(self, machine, toolkit):
        nvvm = file_of(toolkit, "lib64/libnvvm.so", "nvvm/lib64/libnvvm.so", "lib/libnvvm.so*")
        device = file_of(toolkit, "nvvm/libdevice/libdevice.10.bc")
        home = machine.directory / "toolkit"
        for folder, name, file in (("nvvm/lib64", "libnvvm.so", nvvm), ("nvvm/libdevice", device.name, device)):
            (home / folder).mkdir(parents=True)
            (home / folder / name).symlink_to(file)
        (home / "lib64").mkdir()
        machine.environment.update(CUDA_HOME=str(home), PYTHONPATH=str(HERE / "numba13"), PYTHONDONTWRITEBYTECODE="1",
                                   NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0", NUMBA_CUDA_WARN_ON_IMPLICIT_COPY="0",
                                   HOME=str(machine.directory))
        look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('numba') is None)"
        if subprocess.run([PYTHON, "-c", look], capture_output=True, check=False).returncode != 0:
            raise Missing(f"{PYTHON} has no numba")

    def command(self, *arguments):
        return [PYTHON, str(HERE.parent / "gpu" / "programs" / "numba_arrays.py"), *arguments]


class Hashcat:
    """An attack on one MD5 with a list of words. Kernels of one machine are compiled once."""

    def __init__(self, machine, toolkit):
        nvrtc_find(machine, toolkit)
        if shutil.which("hashcat") is None:
            raise Missing("no hashcat")
        # It asks the system for the user's home, and lets nobody else in while it runs there.
        machine.environment.update(XDG_CACHE_HOME=str(machine.directory), XDG_DATA_HOME=str(machine.directory))
        self.hash, self.words = machine.directory / "hash", machine.directory / "words"
        self.hash.write_text("5d41402abc4b2a76b9719d911017c592\n")
        self.words.write_text("a\nworld\nhello\nzebra\n")

    def command(self):
        return ["hashcat", "-m", "0", "-a", "0", "--potfile-disable", "--force", "--backend-ignore-opencl", "-w", "1", "-n",
                "1", "-u", "1", "-T", "32", "--self-test-disable", "--quiet", str(self.hash), str(self.words)]


def nvrtc_find(machine, toolkit):
    machine.environment["LD_LIBRARY_PATH"] += f":{file_of(toolkit, 'lib64/libnvrtc.so', 'lib/libnvrtc.so*').parent}"


class GpuArray:
    """libgpuarray by its Python, pygpu, whose own tests are installed with it."""

    # Of two tests that need half of the time, each of which compiles a kernel for every pair of types.
    LEFT_OUT = "not cast and not ascontiguousarray"
    # pytest's own words tell how long it took.
    TESTS = """
import importlib.util, os, pytest, sys
class Results:
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed": print(report.nodeid.split("/")[-1], report.outcome)
folder = os.path.join(os.path.dirname(importlib.util.find_spec("pygpu").origin), "tests")
files = [os.path.join(folder, f"test_{name}.py") for name in ("basic", "tools", "operations", "gpu_ndarray")]
sys.exit(pytest.main(["-p", "no:terminal", "-p", "no:cacheprovider", "-k", sys.argv[1], *files], plugins=[Results()]))
"""
    FILL = """
import pygpu
context = pygpu.init("cuda0")
print(context.total_gmem)
held = []
try:
    while True: held.append(pygpu.empty((1 << 20,), dtype="uint8", context=context))
except pygpu.gpuarray.GpuArrayException as error:
    print(len(held), error)
"""

    def __init__(self, machine, toolkit):
        nvrtc_find(machine, toolkit)
        machine.environment["DEVICE"] = "cuda0"
        look = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, ('pygpu', 'pytest'))))"
        if subprocess.run([PYTHON, "-c", look], capture_output=True, check=False).returncode != 0:
            raise Missing(f"{PYTHON} has no pygpu or no pytest")

    def tests(self):
        return [PYTHON, "-B", "-c", self.TESTS, self.LEFT_OUT]

    def fill(self):
        return [PYTHON, "-B", "-c", self.FILL]


class OpenMp:
    """What GCC makes of openmp.c. Without a ptxas in the way: its assembler asks one, if it finds it, about GPUs that newer ones do
    not know."""

    def __init__(self, machine):
        compiler = next((name for name in ("gcc-12", "gcc") if shutil.which(name)), None)
        if compiler is None:
            raise Missing("no gcc")
        self.program = machine.directory / "openmp"
        done = subprocess.run([compiler, "-O2", "-fopenmp", "-foffload=nvptx-none", "-foffload=-lm", HERE / "openmp.c", "-o",
                               self.program, "-lm"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Missing(f"{compiler} offloads to no GPU (gcc-12-offload-nvptx): {done.stderr.splitlines()[0]}")
        on_host = machine.run(self.command(), environment={**machine.environment, "OMP_TARGET_OFFLOAD": "disabled"})
        expect(on_host.returncode == 0 and on_host.stdout, f"on the host: {on_host}")
        self.says = on_host.stdout
        machine.environment["OMP_TARGET_OFFLOAD"] = "mandatory"

    def command(self, *arguments):
        return [str(self.program), *arguments]


def agree(name, bare, other):
    expect(other.returncode == bare.returncode, f"{name}: exit {other.returncode}: {other.stdout}{other.stderr}")
    expect(other.stdout == bare.stdout, f"{name}: output differs: bare {bare.stdout!r}, here {other.stdout!r}")
    expect(other.stderr == bare.stderr, f"{name}: was told otherwise: bare {bare.stderr!r}, here {other.stderr!r}")


def same_output(machine, command, expected):
    """Bare, with limits of its own, and as a tenant of a broker: the same output, and nothing is left."""
    bare = machine.run(command, timeout_s=300)
    print(bare.stdout, end="")
    expect(bare.returncode == 0 and expected in bare.stdout, f"bare: exit {bare.returncode}: {bare.stdout}{bare.stderr}")
    alone = machine.run(command, timeout_s=300, environment={**machine.environment, **preloaded(machine)})
    agree("with limits of its own", bare, alone)
    machine.start_broker()
    agree("as a tenant", bare, machine.run(machine.slice(*command, memory="512MiB"), timeout_s=300))
    expect_all_returned(machine)


def case_numba_program(machine, toolkit):
    same_output(machine, Numba(machine, toolkit).command(), NUMBA_SAYS)


def case_numba_quota(machine, toolkit):
    """A quota below the need: the program's own error, and afterwards it works on."""
    numba = Numba(machine, toolkit)
    bare = machine.run(numba.command(*NUMBA_NEEDS))
    expect(bare.returncode == 0 and bare.stdout.count(NUMBA_SAYS) == 2, f"bare: {bare.stdout}{bare.stderr}")
    machine.start_broker()
    tenant = machine.run(machine.slice(*numba.command(*NUMBA_NEEDS)))
    alone = machine.run(numba.command(*NUMBA_NEEDS),
                        environment={**machine.environment, **preloaded(machine), "SLUICE_MEMORY": "256MiB"})
    for name, run in (("as a tenant", tenant), ("with limits of its own", alone)):
        print(run.stdout, run.stderr, end="")
        expect(run.returncode == 0, f"{name}: exit {run.returncode}: {run.stdout}{run.stderr}")
        expect(run.stdout == f"{NUMBA_SAYS}out of memory: CudaAPIError\n{NUMBA_SAYS}", f"{name}: {run.stdout!r}")
        expect("sluice: refused" in run.stderr, f"{name}: no word of the quota: {run.stderr!r}")
    expect_all_returned(machine)


def case_numba_killed(machine, toolkit):
    numba = Numba(machine, toolkit)
    machine.start_broker()
    victim = machine.start(machine.slice(*numba.command("endless")))
    wait_until("it works", lambda: machine.account(victim.pid)["launches"] > 64)
    expect(machine.account(victim.pid)["memory_bytes"] >= 32 * MIB, "its context is not on the account")
    machine.stop(victim, signal.SIGKILL)
    expect_all_returned(machine)


def results_of(run):
    """What became of each test, by its name. Lines of the shim, of the software GPU or of asyncio, which tells on a busy machine what
    took long, may stand within a result's."""
    text = re.sub(r"(sluice|softgpu): [^\n]*\n", "", run.stderr + run.stdout)
    found = re.findall(r"^(test_\w+ \([\w.]+\))(?:\n[^\n]*?)? \.\.\. (?:(?!^test_\w+ \()[\s\S])*?"
                       r"\b(ok|FAIL|ERROR|skipped|expected failure)(?= '|$)", text, re.MULTILINE)
    expect(found, f"no test has run: {run.stdout[-2000:]}{run.stderr[-2000:]}")
    return dict(found)


def case_numba_suite(machine, toolkit):
    """numba's own tests of the driver: all that run pass bare, and under Sluice the same ones do."""
    Numba(machine, toolkit)
    command = [PYTHON, "-m", "numba.runtests", "-v", *(f"numba.cuda.tests.{name}" for name in NUMBA_TESTS)]
    bare = results_of(machine.run(command, timeout_s=300))
    print({word: list(bare.values()).count(word) for word in set(bare.values())})
    failed = [name for name, result in bare.items() if result in ("FAIL", "ERROR")]
    expect(not failed and list(bare.values()).count("ok") > 80, f"bare: {failed} of {len(bare)}")
    machine.start_broker()
    shared = results_of(machine.run(machine.slice(*command, memory="768MiB"), timeout_s=300))
    differ = {name: (bare.get(name), shared.get(name)) for name in bare.keys() | shared.keys() if bare.get(name) != shared.get(name)}
    expect(not differ, f"bare and under Sluice: {differ}")
    expect_all_returned(machine)


def case_hashcat_attack(machine, toolkit):
    attack = Hashcat(machine, toolkit).command()
    first = machine.run(attack, timeout_s=300)  # compiles its kernels, and says so
    expect(first.returncode == 0, f"exit {first.returncode}: {first.stdout}{first.stderr}")
    same_output(machine, attack, "5d41402abc4b2a76b9719d911017c592:hello\n")


def case_hashcat_quota(machine, toolkit):
    """A quota below the need ends it by its own error."""
    attack = Hashcat(machine, toolkit).command()
    machine.start_broker()
    run = machine.run(machine.slice(*attack, memory="40MiB"), timeout_s=300)  # 8 MiB besides the context
    print(run.stdout, run.stderr, end="")
    expect(run.returncode > 0, f"exit {run.returncode}: {run.stdout}{run.stderr}")
    expect("Not enough allocatable device memory" in run.stdout + run.stderr, "not its own error")
    expect_all_returned(machine)


def case_gpuarray_suite(machine, toolkit):
    same_output(machine, GpuArray(machine, toolkit).tests(), "test_gpu_ndarray.py::test_transfer")


def case_gpuarray_quota(machine, toolkit):
    fill = GpuArray(machine, toolkit).fill()
    machine.start_broker()
    run = machine.run(machine.slice(*fill, memory="80MiB"))
    print(run.stdout, run.stderr, end="")
    expect(run.returncode == 0, f"exit {run.returncode}: {run.stdout}{run.stderr}")
    total, said = run.stdout.splitlines()
    expect(int(total) == 80 * MIB, f"the device has {total} bytes for it")
    expect("CUDA_ERROR_OUT_OF_MEMORY" in said, "not its own error")
    # It takes 4 MiB at a time, beside a context of 32 MiB; its code takes a little.
    expect(40 <= int(said.split()[0]) <= 48, f"{said}: not what is left of 80 MiB")
    expect_all_returned(machine)


def case_openmp_program(machine, _toolkit):
    program = OpenMp(machine)
    same_output(machine, program.command(), program.says)


def case_openmp_quota(machine, _toolkit):
    program = OpenMp(machine)
    machine.start_broker()
    run = machine.run(machine.slice(*program.command("600"), memory="512MiB"))
    print(run.stdout, run.stderr, end="")
    expect(run.returncode == 3, f"exit {run.returncode}: {run.stdout}{run.stderr}")
    for line in ("nvptx_alloc error: out of memory", "no memory on the device", "sluice: refused 600.0 MiB"):
        expect(line in run.stderr, f"not said: {line}")
    expect_all_returned(machine)


def main():
    cases = {name[len("case_"):]: case for name, case in globals().items() if name.startswith("case_")}
    cases = {name: case for name, case in cases.items() if case.__module__ == __name__}
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True, help="the build directory")
    parser.add_argument("--toolkit", required=True, type=pathlib.Path, help="the CUDA toolkit")
    parser.add_argument("case", choices=sorted(cases))
    options = parser.parse_args()
    with Machine(options.build, pacing=False) as machine:
        try:
            cases[options.case](machine, options.toolkit)
        except Missing as missing:
            print(f"run_distribution.py: {options.case}: skipped: {missing}")
            return SKIPPED
        except AssertionError as failure:
            print(f"run_distribution.py: {options.case}: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
