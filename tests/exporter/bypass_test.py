"""Programs that get past the shim, each in its own way, beside one that does not: all of the first are found and stopped.

Usage: bypass_test.py BUILD. As root: BPF is needed, and a policy of stopping.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402

SKIPPED = 77
# A driver of the kernel whose devices nobody opens by chance, if there is one: it stands for a GPU's.
DEVICE = "cpu/cpuid"
CONFIG = """
[bypass]
policy = "{policy}"
grace = "1s"
exempt_users = []
exempt_paths = ["{folder}/exempt"]
figures = "{folder}/figures"
"""
OPENER = "import ctypes, sys\ncuda = ctypes.CDLL('libcuda.so.1')\nassert cuda.cuInit(0) == 0\nprint('started', flush=True)\nsys.stdin.read()\n"
# Those that have the device from before anybody watched: one that only holds it, as a user of its own; one that calls it; and a
# managed program with a worker that has its descriptors.
HOLDER = """import os, sys
held = os.open(sys.argv[1], os.O_RDONLY)
os.set_inheritable(held, True)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.execv('/bin/sh', ['sh', '-c', 'echo started; exec sleep 1000'])
"""
CALLER = """import fcntl, sys, time
held = open(sys.argv[1], 'rb', buffering=0)
print('started', flush=True)
while True:
    try:
        fcntl.ioctl(held, 0)
    except OSError:
        pass
    time.sleep(0.1)
"""
PARENT = """import ctypes, os, subprocess, sys
held = os.open(sys.argv[1], os.O_RDONLY)
cuda = ctypes.CDLL('libcuda.so.1')
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
worker = subprocess.Popen(['cat'], stdin=subprocess.PIPE, pass_fds=[held])  # ends with its parent
print('started', worker.pid, flush=True)
sys.stdin.read()
"""
TOUCHER = "import sys\nheld = open(sys.argv[1], 'rb', buffering=0)\nprint('started', flush=True)\nsys.stdin.read()\n"


def device_make(folder):
    """A node of that driver under another name, or nothing."""
    listed = re.search(rf"(?m)^ *(\d+) {DEVICE}$", pathlib.Path("/proc/devices").read_text())
    if not listed:
        return None, None
    node = folder / "gpu"
    os.mknod(node, 0o600 | 0o020000, os.makedev(int(listed[1]), 0))
    try:
        os.close(os.open(node, os.O_RDONLY))
    except OSError:
        return None, None
    return node, listed[1]


def scrape(url, name):
    with urllib.request.urlopen(url, timeout=300) as answer:
        rows = re.findall(rf"(?m)^{name}(\{{.*\}})? (\S+)$", answer.read().decode())
    return {labels: float(value) for labels, value in rows}


def unit_rights(source):
    """How the watcher is started with no more rights than its service has."""
    listed = re.search(r"(?m)^CapabilityBoundingSet=(.*)$", (source / "config/systemd/sluice-watch.service").read_text())[1].split()
    return ["setpriv", "--bounding-set", ",".join(["-all"] + ["+" + name.removeprefix("CAP_").lower() for name in listed])]


def watcher_start(machine, policy, *flags, rights=()):
    config = machine.directory / f"{policy}.toml"
    config.write_text(CONFIG.format(policy=policy, folder=machine.directory))
    watcher = machine.launch([*rights, machine.build / "bin/sluice-watch", "--socket", machine.socket, "--config", config, *flags])
    os.set_blocking(watcher.stderr.fileno(), False)
    said = []

    def has_said(text):
        try:
            said.append(os.read(watcher.stderr.fileno(), 1 << 16).decode())
        except BlockingIOError:
            pass
        assert watcher.poll() is None, "".join(said)
        return text in "".join(said)

    wait_until("it watches", lambda: has_said(f"(policy {policy})"))
    return watcher, has_said, said


def bypassers_start(machine, node):
    """By name: the program, and what finds it."""
    bare = ["env", "-i"] + [f"{name}={machine.environment[name]}" for name in machine.environment if name.startswith(("LD_", "SOFTGPU_"))]
    unloaded = ["env", "-u", "LD_PRELOAD"]
    start = lambda *command: machine.start(machine.slice(*command, memory="64MiB", sm=5), stdin=subprocess.PIPE)  # noqa: E731
    out = {
        "env -i": (start(*bare, machine.program("module_variables")), {"calls of the driver library", "NVML's list"}),
        "static runtime": (start(*unloaded, machine.program("module_variables_static")), {"calls of the driver library", "NVML's list"}),
        "dlopen": (start(*unloaded, sys.executable, "-c", OPENER), {"calls of the driver library"}),
    }
    if node:
        out["device"] = (start(*unloaded, sys.executable, "-c", TOUCHER, str(node)), {"opening the driver's device"})
    return out


def earlier_start(machine, node):
    """Those that opened the device before the watcher begins, and what finds them; and the worker, whom nothing may find."""
    python = lambda program: [sys.executable, "-c", program, str(node)]  # noqa: E731
    parent = machine.start(machine.slice(*python(PARENT), memory="64MiB", sm=5), stdin=subprocess.PIPE)
    wait_until("the parent is managed", lambda: parent.pid in [p["pid"] for t in machine.status()["tenants"] for p in t["processes"]])
    children = pathlib.Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    return {
        "holder": (machine.start(python(HOLDER)), {"holding the driver's device open"}),
        "caller": (machine.start(python(CALLER)), {"calls of the driver's device", "holding the driver's device open"}),
    }, parent, int(children[0])


def mounted_start(machine):
    """In its own mounts another program is where the exempt one is."""
    exempt = machine.directory / "exempt"
    program = machine.start(["unshare", "-Urm", "sh", "-c", f"mount --bind {machine.program('module_variables')} {exempt} && exec {exempt}"],
                            stdin=subprocess.PIPE)
    wait_until("it has a context", lambda: machine.account(program.pid)["memory_bytes"] > 0)
    return program


def main():
    if os.geteuid() != 0:
        print("skipped: only root may watch the driver's calls and stop others' programs")
        return SKIPPED
    with Machine(sys.argv[1], rate=2e7) as machine:
        # Libraries of its own: who calls the build's may be another test's program, and is not to be stopped.
        libraries = machine.directory / "lib"
        shutil.copytree(machine.build / "lib/softgpu", libraries, ignore=shutil.ignore_patterns("*.a", "*trace*"))
        machine.environment["LD_LIBRARY_PATH"] = str(libraries)
        machine.start_broker()
        (machine.directory / "exempt").write_bytes(pathlib.Path(machine.program("module_variables")).read_bytes())
        (machine.directory / "exempt").chmod(0o755)
        node, major = device_make(machine.directory)
        earlier, parent, worker = earlier_start(machine, node) if node else ({}, None, None)
        earlier["mounted"] = (mounted_start(machine), {"NVML's list"})
        watcher, has_said, said = watcher_start(machine, "stop", *(["--device-major", major] if major else []),
                                                rights=unit_rights(pathlib.Path(__file__).parents[2]))
        has_said("")
        if "only NVML's list" in "".join(said) or "in part" in "".join(said):
            print("skipped: " + "".join(said))
            return SKIPPED
        exporter_config = machine.directory / "stop.toml"
        exporter = machine.launch([machine.build / "bin/sluice-exporter", "--no-bpf", "--listen", "127.0.0.1:0", "--socket", machine.socket,
                                   "--config", exporter_config])
        line = ""
        while "serving " not in line:
            line = exporter.stderr.readline()
            assert line, "the exporter ended"
        url = re.search(r"serving (http://\S+) ", line)[1]

        twin = machine.start(machine.slice(machine.program("launch_loop"), memory="64MiB", sm=5))
        waiting = machine.start(machine.slice(machine.program("module_variables"), memory="64MiB", sm=5), stdin=subprocess.PIPE)
        exempt = machine.start([machine.directory / "exempt"], stdin=subprocess.PIPE)
        for name, (program, _) in earlier.items():
            wait_until(f"'{name}' is stopped", lambda p=program: has_said("") and p.poll() is not None, 30)
        time.sleep(10)  # ten lines in ten seconds are written at most
        bypassers = earlier | bypassers_start(machine, node)
        for name, (program, _) in bypassers.items():
            wait_until(f"'{name}' is stopped", lambda p=program: has_said("") and p.poll() is not None, 30)
        wait_until("the counts tell it", lambda: scrape(url, "sluice_unmanaged_stopped_total") == {"": float(len(bypassers))})
        left_alone = [one for one in (twin, waiting, exempt, parent) if one]
        assert all(one.poll() is None for one in left_alone), "".join(said)

        has_said("")
        text = "".join(said)
        for name, (program, by) in bypassers.items():
            found = re.findall(rf"process {program.pid} of user \d+ \((\S+)\) uses a GPU without Sluice; found by (.*?)(?:;.*)?\n", text)
            assert len(found) == 1, (name, program.pid, text)
            # What was open before is told by just that: nobody saw it being opened.
            assert (by == set(found[0][1].split(", "))) if name in earlier else (by <= set(found[0][1].split(", "))), (name, found)
        for process in [program.pid for program in left_alone] + [worker]:
            assert f"process {process} " not in text, text
        assert worker is None or os.path.exists(f"/proc/{worker}"), "a worker of a managed program is stopped"

        assert scrape(url, "sluice_bypass_watcher_up") == {"": 1}
        left = {'{exempt="false"}': 0, '{exempt="true"}': 1}
        wait_until(f"only the exempt one is left: {scrape(url, 'sluice_unmanaged_processes')}", lambda: scrape(url, "sluice_unmanaged_processes") == left)
        assert scrape(url, "sluice_unmanaged_memory_bytes")[""] == machine.account(exempt.pid)["memory_bytes"]
        found = scrape(url, "sluice_unmanaged_found_total")
        assert found['{source="driver"}'] >= 3 and found['{source="nvml"}'] >= 2 and found['{source="device"}'] == (1 if node else 0), found
        assert not node or found['{source="held"}'] >= 2 and found['{source="ioctl"}'] >= 1, found
        assert set(scrape(url, "sluice_bypass_source").values()) == {1 if node else 0, 1}

        # Reported and let go on; and while the broker is away nobody is judged.
        machine.stop(watcher)
        wait_until("nobody watches", lambda: scrape(url, "sluice_bypass_watcher_up") == {"": 0})
        watcher, has_said, said = watcher_start(machine, "report")  # of no devices, as on a machine without a GPU
        assert "in part" not in "".join(said) and "only NVML" not in "".join(said), said
        lone = machine.start([machine.program("module_variables")], stdin=subprocess.PIPE)
        wait_until("it is reported", lambda: has_said(f"process {lone.pid} of user 0 "))
        machine.kill_broker()
        wait_until("the broker is missed", lambda: has_said("until it answers nobody is judged"))
        assert all(one.poll() is None for one in (lone, twin, waiting, exempt, watcher)), "".join(said)
        print(f"{len(bypassers)} found and stopped" + ("" if node else f"; no {DEVICE} here to stand for a device"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
