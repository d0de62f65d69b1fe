#!/usr/bin/env python3
"""Packs what `run` needs, for a machine that has a GPU and cannot build: one folder with the programs, the libraries they are
linked against, and the scripts that judge them.

  pack.py BUILD FOLDER            or FOLDER.tar.gz, which unpacks to FOLDER

There, FOLDER/tests/gpu/run FOLDER/build. That machine needs the driver, python3, and a C and a C++ library no older than this
machine's (Debian 12: glibc 2.36, GCC 12); NVIDIA's shared runtime (libcudart.so.13) where nvcc is or in /usr/local/cuda. Debug
information stays here. Exit status: 0 packed, 1 something is missing, 2 a wrong call.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Programs and libraries, by their place in the build directory.
BUILT = ["bin/sluice", "bin/sluiced", "bin/sluice-probe", "bin/sluice-checkpoint", "bin/sluice-train", "bin/sluice-infer",
         "bin/sluice-debug", "bin/sluice-load", "bin/sluice-lab", "bin/softgpu-ctl", "tests/attacks_attacker",
         "tests/oversubscription_holder", "lib/libsluice.so", "lib/*.fatbin", "lib/softgpu/*.so*", "tests/lib/conformance_*.fatbin", "tests/conformance_*",
         "tests/gpt2_train", "tests/gpu/*", "tests/programs/*"]
SOURCES = ["tests/gpu/run", "tests/gpu/*.py", "tests/gpu/README.md", "tests/gpu/programs/*.py", "tests/bench/shares/*.py",
           "trainer/lab/sluice_lab/*.py",
           "tests/interpose/driver-entrypoints.tsv"]
CARRIED = "lib/carried"
ARCHIVE = ".tar.gz"
# What every distribution has, and what comes with the driver and the toolkit.
THERE = re.compile(r"^(ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s"
                   r"|libcuda|libcudart|libnvidia-ml)\.so\.")


class Missing(Exception):
    pass


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def said(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def needed(path):
    return [name for name in said("patchelf", "--print-needed", path).split() if not THERE.match(name)]


def found(path):
    """Where the loader of this machine finds what the file is linked against: {name: path}."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+) \(0x", said("ldd", path), re.M))


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    shutil.copy2(source, target)
    if is_elf(target):
        said("strip", "--strip-debug", target)


def built_copy(build, out):
    for pattern in BUILT:
        files = [path for path in sorted(build.glob(pattern)) if not path.is_dir() and path.suffix not in (".cmake", ".txt")]
        if not files:
            raise Missing(f"{build / pattern} is not there; build everything first (scripts/build)")
        for path in files:
            copy(path, out / path.relative_to(build))


def libraries_carry(build, out):
    """Everything that is linked against, and finds it beside itself whatever the library path."""
    carried = out / CARRIED
    waiting = [path for path in out.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path)]
    while waiting:
        path = waiting.pop()
        names = needed(path)
        if not names:
            said("patchelf", "--remove-rpath", path)
            continue
        at_home = path.parent == carried
        sources = found(path if at_home else build / path.relative_to(out))
        up = "" if at_home else "/" + "../" * len(path.relative_to(out).parent.parts) + CARRIED
        said("patchelf", "--set-rpath", "$ORIGIN" + up, path)
        for name in names:
            if (carried / name).exists():
                continue
            if name not in sources:
                raise Missing(f"{path.name} needs {name}, which the loader does not find here")
            copy(pathlib.Path(sources[name]).resolve(), carried / name)
            waiting.append(carried / name)


def pack(build, folder):
    """How much it is, in bytes."""
    built_copy(build, folder / "build")
    libraries_carry(build, folder / "build")
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            copy(path, folder / path.relative_to(ROOT))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def pack_archive(build, archive):
    name = archive.name.removesuffix(ARCHIVE)
    with tempfile.TemporaryDirectory(prefix="sluice-pack-") as temp:
        pack(build, pathlib.Path(temp) / name)
        with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
            tar.add(pathlib.Path(temp) / name, arcname=name)
    return archive.stat().st_size


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    build, target = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    is_archive = target.name.endswith(ARCHIVE)
    if target.is_file() or (target.is_dir() and (is_archive or any(target.iterdir()))):
        print(f"pack.py: {target} is there already; name a new folder or archive", file=sys.stderr)
        return 2
    if shutil.which("patchelf") is None:
        print("pack.py: patchelf is missing; install it (scripts/setup --tests does)", file=sys.stderr)
        return 1
    try:
        size = pack_archive(build, target) if is_archive else pack(build, target)
    except Missing as missing:
        print(f"pack.py: {missing}", file=sys.stderr)
        return 1
    name = target.name.removesuffix(ARCHIVE)
    print(f"packed {size / 2**20:.1f} MiB; on the machine with the GPU: {name}/tests/gpu/run {name}/build")
    return 0


if __name__ == "__main__":
    sys.exit(main())
