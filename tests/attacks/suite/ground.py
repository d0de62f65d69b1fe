"""The ground of an attack: software GPUs, a broker, an honest neighbour, and attackers that are found and ended whatever they
do. What is read here is the device's own account, never what Sluice says."""

import contextlib
import ctypes
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "oversubscription"))
from support import CONTEXT_MIB, MIB, Box, Holder, wait_until  # noqa: E402, F401

from suite.cases import Broken, hold  # noqa: E402

PATIENCE_S = 60  # for what takes less than a second on an idle machine
PR_SET_CHILD_SUBREAPER = 36
PAGE = "0"  # in which the devices give memory out; 0 = to the byte


def reaper_become():
    """Orphans of this process come to it, so that none is lost."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processes():
    """The parent and state of every process."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            words = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        found[int(entry)] = (int(words[1]), words[0])
    return found


def descendants(root):
    """Living processes below `root`."""
    table = processes()
    found, grown = {root}, True
    while grown:
        more = {pid for pid, (parent, _) in table.items() if parent in found and pid not in found}
        grown = bool(more)
        found |= more
    return {pid for pid in found - {root} if table[pid][1] not in "ZX"}


def program_of(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def killed(pids, number=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def descendants_end(root, patience_s=20):
    """Stops all before it kills them, so that none can be replaced by its child meanwhile."""
    deadline = time.monotonic() + patience_s
    while (pids := descendants(root)) and time.monotonic() < deadline:
        killed(pids, signal.SIGSTOP)
        killed(pids)
        time.sleep(0.01)


def tree_end(root):
    """A process and all below it. The root goes last: it is the one to which orphans come."""
    killed([root], signal.SIGSTOP)
    descendants_end(root)
    killed([root])


class Attack:
    """An attacker under `sluice run`, and what became of it."""

    def __init__(self, ground, quota_mib, words, options=(), before=()):
        sluice = [str(ground.build / "bin/sluice"), "run", "--socket", str(ground.socket), "--memory", f"{quota_mib}MiB", *options, "--"]
        self.ground = ground
        self.process = subprocess.Popen([*sluice, *before, ground.attacker, *map(str, words)], env=ground.environment,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        ground.children.append(self.process)
        self.rows = []
        self.pending = b""
        self.ended = False

    def lines_read(self, timeout_s):
        """What was said within that time, at least one line or the end."""
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        if not ready or self.ended:
            return
        data = os.read(self.process.stdout.fileno(), 65536)
        self.ended = not data
        *whole, self.pending = (self.pending + data).split(b"\n")
        self.rows += [row.decode(errors="replace").split() for row in whole]

    def full(self):
        return [row for row in self.rows if row and row[0] == "full"]

    def wait_full(self, reports, meanwhile=None, patience_s=PATIENCE_S):
        """True once so many have taken what they could. False: some were lost, and time is up or all have ended."""
        deadline = time.monotonic() + patience_s
        while len(self.full()) < reports and not self.ended and time.monotonic() < deadline:
            self.lines_read(0.02 if meanwhile else 0.5)
            if meanwhile:
                meanwhile()
        return len(self.full()) >= reports

    def wait_started(self, patience_s=PATIENCE_S):
        deadline = time.monotonic() + patience_s
        while not self.rows and not self.ended and time.monotonic() < deadline:
            self.lines_read(0.5)
        if not self.rows:
            raise AssertionError("the attacker did not start")
        return self

    def taken(self):
        return sum(int(row[2]) for row in self.full())

    def refused(self):
        return sum(int(row[3]) for row in self.full())


class Ground(Box):
    """A machine for one attack. `roomy`: beside all promises there is memory that no tenant was promised, so that too much shows in
    the account and not only at the neighbour."""

    def __init__(self, build, memory_mib, gpus=1, config="", pacing=False, timed=None):
        super().__init__(build, memory=f"{memory_mib}MiB", gpus=gpus, pacing=pacing)
        self.config = config
        self.attacker = str(self.build / "tests/attacks_attacker")
        self.environment["SOFTGPU_SMS"] = "16"
        self.environment["SOFTGPU_PAGE"] = PAGE
        if timed:
            self.environment["SOFTGPU_TIMED"] = timed

    def __exit__(self, *arguments):
        self.end_attackers()
        super().__exit__(*arguments)
        descendants_end(os.getpid())

    def attackers(self):
        return {pid for pid in descendants(os.getpid()) if program_of(pid) == "attacks_attacker"}

    def end_attackers(self, number=signal.SIGKILL, patience_s=20):
        """Ends all of them, also those that start while the others end."""
        deadline = time.monotonic() + patience_s
        while pids := self.attackers():
            killed(pids, signal.SIGSTOP)
            killed(pids, number)
            if time.monotonic() > deadline:
                raise Broken(f"processes {sorted(pids)} do not end by SIGKILL")
            time.sleep(0.01)

    def stop(self, pids):
        """SIGSTOP, but not inside of the software GPU's own lock: there a stopped process would stop the hardware."""
        for _ in range(20):
            killed(pids, signal.SIGSTOP)
            tool = [self.build / "bin/softgpu-ctl", "list", "--dir", self.environment["SOFTGPU_DIR"]]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(tool, env=self.environment, stdout=subprocess.DEVNULL, timeout=10)
                return
            killed(pids, signal.SIGCONT)
            time.sleep(0.002)

    def used(self, gpu=0):
        return self.devices()[gpu]["used_bytes"]

    def held_by(self, pids, gpu=0):
        return sum(row["memory_bytes"] for row in self.devices()[gpu]["processes"] if row["alive"] and row["pid"] in pids)

    def neighbour(self, quota_mib, *options):
        return self.job("--memory", f"{quota_mib}MiB", *options)

    def broker_figures(self):
        """Memory, descriptors and CPU time of the broker, by the kernel's word."""
        pid = self.broker.pid
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return {"rss": int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024,
                "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "cpu_ns": sum(int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
                              for task in os.listdir(f"/proc/{pid}/task"))}

    def broker_cpu_ns(self):
        return self.broker_figures()["cpu_ns"]

    def log_bytes(self):
        return self.log.stat().st_size if self.log.exists() else 0


def settled(condition, text, patience_s=20):
    """Waits for what the device has to show soon; a Broken with the text's numbers if it never does."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(f"for {patience_s} s: {text()}")
        time.sleep(0.02)


def promise_kept(neighbour, mib, what):
    word = neighbour.ask(f"alloc {mib} 1")
    hold(word == "done", f"{what}: the neighbour is refused the {mib} MiB that it was promised: {word}")
