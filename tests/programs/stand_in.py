"""A machine that has GPUs and a driver, for one test: the software GPU's libraries under other names and settings, in the
ordinary library path.

Two words in copies of the libraries are exchanged for others of the same length: the prefix of their settings, so that
nothing that is said to the software GPU (by `--soft`, by its user) is heard here, and the device's name, by which a program
tells which of the two it runs on. Nobody but the test knows that these GPUs are software, too.
"""

import json
import pathlib
import subprocess

NAME = "Stand-in GPU"
# Of eight bytes, so that a compiler that puts them into instructions keeps them together.
EXCHANGED = {b"SOFTGPU_": b"STANDIN_", b"Software": b"Stand-in"}


def stand_in_driver(build, directory, count=1, memory="1GiB"):
    """What to set in the environment of a program, so that it finds a driver with `count` GPUs installed. The GPUs'
    segments are in STANDIN_DIR, for softgpu-ctl."""
    installed = pathlib.Path(directory) / "driver"
    installed.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.13"):
        data = (pathlib.Path(build) / "lib/softgpu" / name).read_bytes()
        for word, other in EXCHANGED.items():
            assert word in data or name == "libcudart.so.13", f"{name} does not say {word}"
            data = data.replace(word, other)
        (installed / name).write_bytes(data)
    return {
        "LD_LIBRARY_PATH": str(installed),
        "STANDIN_DIR": str(installed / "gpus"),
        "STANDIN_COUNT": str(count),
        "STANDIN_MEMORY": memory,
        "STANDIN_CONTEXT": "32MiB",
    }


def launches(programs, environment):
    """Kernels run so far on the stand-in's GPUs, by the account of the devices; `programs` is where softgpu-ctl is."""
    directory = pathlib.Path(environment["STANDIN_DIR"])
    if not directory.exists():
        return 0
    tool = [pathlib.Path(programs) / "softgpu-ctl", "accounts", "--json", "--dir", directory]
    devices = json.loads(subprocess.run(tool, check=True, capture_output=True).stdout)["devices"]
    return sum(process["launches"] for device in devices for process in device["processes"])
