#!/usr/bin/env python3
"""Packs a build and checks that the folder is whole: what is in it needs nothing of this machine that another would not have, and
runs where the build is not.

  pack_check.py BUILD_DIRECTORY
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True  # the source tree stays as it is
here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "programs"))
from machine import Machine  # noqa: E402

# Of the C library, the C++ library, the driver and NVIDIA's runtime; what another distribution or the driver brings.
THERE = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6", "libgcc_s.so.1", "libcuda.so.1", "libcudart.so.13",
         "libnvidia-ml.so.1"}


def expect(good, text):
    if not good:
        raise AssertionError(text)


def read(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options).stdout


def check_file(path, carried):
    headers = read("readelf", "-dSW", path)
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", headers):
        expect(name in THERE or (carried / name).exists(), f"{path} needs {name}, which is not carried")
    for folders in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", headers):
        for folder in folders.split(":"):
            expect(folder.startswith("$ORIGIN"), f"{path} looks for libraries in {folder}")
    expect(".debug_info" not in headers, f"{path} has debug information")


def check_runs(build):
    """A broker, a job under it, rows of the table of behaviours and the trainer, all out of the folder."""
    with Machine(build, pacing=False) as machine:
        machine.start_broker()
        job = machine.run(machine.slice(build / "tests" / "programs" / "vector_add"))
        expect(job.returncode == 0, f"vector_add under sluice run: {job.stdout}{job.stderr}")
        trained = machine.run([build / "bin" / "sluice-train", "--data", "synthetic", "--start", "self", "--nproc", "1",
                               "--batch", "16", "--hidden", "16", "--steps", "2", "--eval-samples", "0"], timeout_s=100)
        expect(trained.returncode == 0, f"sluice-train: {trained.stdout}{trained.stderr}")
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            rows = machine.run([sys.executable, build.parent / "tests" / "gpu" / "conformance.py", "run",
                                build / "tests" / "conformance_driver", "--soft", build / "lib" / "softgpu", "--only",
                                "modules.load*", "--output", report.name], timeout_s=100)
            expect(rows.returncode == 0, f"conformance.py: {rows.stdout}{rows.stderr}")
            results = {row["result"] for row in json.load(open(report.name))["rows"].values()}
            expect(results == {"passed"}, f"rows of modules: {results}")


def check_refusals(pack, build, temp, folder):
    again = subprocess.run([sys.executable, pack, build, folder], capture_output=True, text=True)
    expect(again.returncode == 2 and "is there already" in again.stderr, f"into a folder that is in use: {again}")
    empty = subprocess.run([sys.executable, pack, temp, temp / "other"], capture_output=True, text=True)
    expect(empty.returncode == 1 and "build everything first" in empty.stderr, f"of no build: {empty}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    pack = here / "pack.py"
    if shutil.which("patchelf") is None:
        print("skipped: patchelf is missing")
        return 77
    with tempfile.TemporaryDirectory(prefix="sluice-pack-") as temp:
        temp = pathlib.Path(temp)
        print(read(sys.executable, pack, build, temp / "gpu.tar.gz").strip())
        with tarfile.open(temp / "gpu.tar.gz") as tar:
            tar.extractall(temp)
        folder = temp / "gpu"
        packed = folder / "build"
        for path in sorted(packed.rglob("*")):
            if path.is_file() and not path.is_symlink() and open(path, "rb").read(4) == b"\x7fELF":
                check_file(path, packed / "lib" / "carried")
        check_runs(packed)
        # Where there is no GPU it says so, and all of it is there.
        if not pathlib.Path("/dev/nvidia0").exists():
            done = subprocess.run([folder / "tests" / "gpu" / "run", packed], capture_output=True, text=True)
            expect(done.returncode == 77, f"run: {done.stdout}{done.stderr}")
        check_refusals(pack, build, temp, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
