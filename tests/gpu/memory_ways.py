#!/usr/bin/env python3
"""Every way of tests/attacks to take device memory, under a quota on this machine's GPU, judged by NVML's figure of the processes.

  memory_ways.py --build BUILD [--output FILE] [--jobs N] [--only PATTERN] [--soft DIRECTORY]

At rest the processes of an attack hold at most its quota; the most that was seen at any moment is printed beside it, as is what
was taken: an attack that takes less than half of what its context leaves has not tried. With --jobs 1 what the whole device has more
than before is judged, too, but for 10 MiB of each process: NVML counts memory that came by a descriptor at no process. Exit status: 0 all held, 1 one did not.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

import ground

MIB = 1 << 20
REST_S = 1.5       # what is charged late is charged within a second
PATIENCE_S = 40
UNCOUNTED_MIB = 10  # of each process: on the device, and in no figure of NVML (7 to 9 seen on an H100)
SIZES = f"{9 * MIB},{MIB * 33 // 10}"
# Processes that report, and a quota in MiB: contexts of some 500 MiB (H100), and as much again for data.
SHAPES = {"one": (1, 1200), "threads": (4, 1200), "eight": (8, 6200), "exec": (5, 1800), "tree": (7, 5600)}
DENSE = ("alloc", "async", "module", "mapped")  # these meet every shape


class Watch:
    """Looks at NVML all the time, for all attacks at once."""

    def __init__(self, nvml):
        self.nvml, self.roots, self.now, self.most, self.owners = nvml, {}, {}, {}, {}
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def add(self, name, root):
        with self.lock:
            self.roots[name] = root

    def owner_of(self, pid):
        if pid not in self.owners:
            self.owners[pid] = next((name for name, root in self.roots.items() if ground.lies_below(pid, root)), None)
        return self.owners[pid]

    def _run(self):
        while not self.ended.wait(0.002):
            listed = self.nvml.processes()
            with self.lock:
                sums = dict.fromkeys(self.roots, 0)
                for pid, used in listed.items():
                    if (name := self.owner_of(pid)) is not None:
                        sums[name] += used
                self.now = sums
                for name, used in sums.items():
                    self.most[name] = max(self.most.get(name, 0), used)

    def figures(self, name):
        with self.lock:
            return self.now.get(name, 0), self.most.get(name, 0)


def family(root):
    return [pid for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()) if ground.lies_below(pid, root)]


def lines_read(process, reports):
    """How many have taken what they could, what they took, and how often they were refused."""
    full, pending, deadline = [], b"", time.monotonic() + PATIENCE_S
    while len(full) < reports and time.monotonic() < deadline:
        if not select.select([process.stdout], [], [], 0.2)[0]:
            continue
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            break
        *whole, pending = (pending + data).split(b"\n")
        full += [line.split() for line in whole if line.startswith(b"full")]
    return len(full), sum(int(row[2]) for row in full), sum(int(row[3]) for row in full)


def attack(broker, watch, way, shape, alone):
    reports, quota_mib = SHAPES[shape]
    before = watch.nvml.used()
    allowed = (quota_mib + UNCOUNTED_MIB * (reports + 1)) * MIB  # one more: a partner that memory is handed to
    name = f"{way}.{shape}"
    process = broker.start(["--memory", f"{quota_mib}MiB"], [broker.build / "tests/attacks_attacker", "--way", way, "--shape", shape,
                                                             "--sizes", SIZES], stderr=subprocess.DEVNULL, start_new_session=True)
    watch.add(name, process.pid)
    try:
        told, taken, refused = lines_read(process, reports)
        time.sleep(REST_S)
        rest, most = watch.figures(name)
        device = watch.nvml.used() - before
    finally:
        for pid in family(process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
    return {"attack": name, "quota": quota_mib * MIB, "reports": told, "taken": taken, "refused": refused, "rest": rest, "most": most,
            **({"device": device} if alone else {}), "held": rest <= quota_mib * MIB and (not alone or device <= allowed)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", action="append", help="pattern of way.shape, may be repeated (all)")
    parser.add_argument("--soft", help="the libraries of the software GPU")
    options = parser.parse_args()
    attacker = options.build / "tests/attacks_attacker"
    with ground.Broker(options.build, soft=options.soft) as broker:
        ways = subprocess.run([attacker, "--names"], check=True, capture_output=True, text=True, env=broker.environment).stdout.split()
        todo = [(way, "one") for way in ways] + [(way, shape) for way in DENSE for shape in SHAPES if shape != "one"]
        only = options.only or ["*"]
        todo = [one for one in todo if any(fnmatch.fnmatch(".".join(one), pattern) for pattern in only)]
        nvml = ground.Nvml(*([f"{options.soft}/libnvidia-ml.so.1"] if options.soft else []))
        before, watch, results = nvml.used(), Watch(nvml), []
        print(f"{'attack':28}{'quota':>9}{'at rest':>9}{'most':>9}{'taken':>9}{'device':>9}  MiB, refusals" if options.jobs == 1 else
              f"{'attack':28}{'quota':>9}{'at rest':>9}{'most':>9}{'taken':>9}  MiB, refusals")
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for result in pool.map(lambda one: attack(broker, watch, *one, options.jobs == 1), todo):
                results.append(result)
                figures = "".join(f"{result[key] / MIB:9.1f}" for key in ("quota", "rest", "most", "taken", "device") if key in result)
                print(f"{result['attack']:28}{figures}  {result['refused']}{'' if result['held'] else '  ABOVE ITS QUOTA'}", flush=True)
        watch.ended.set()
        watch.thread.join()
        deadline = time.monotonic() + 10
        while nvml.used() > before and time.monotonic() < deadline:
            time.sleep(0.05)
        left = nvml.used() - before
    above = [result["attack"] for result in results if not result["held"]]
    print(f"{len(results)} attacks, {len(above)} above their quota; {left / MIB:.1f} MiB are left on the device")
    if options.output:
        options.output.write_text(json.dumps({"attacks": results, "left_bytes": left}, indent=1) + "\n")
    return 1 if above or left > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
