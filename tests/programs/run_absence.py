"""A job of `sluice run` whose broker is stopped, killed, cut off or restarted, and what it starts meanwhile: all of its processes
together keep its quota, by the software GPU's own account. tests/preload/absence_test.py has what a broker can do wrong besides."""

import argparse
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys

from machine import MIB, Machine, wait_until

QUOTA = 256
DRIVER = pathlib.Path(__file__).resolve().parents[1] / "preload"
# Starts a process for each line that it reads, and says what that says first. None of them ends before the job. Behind BARE it has
# none of the job's variables, and the name of a socket without a listener.
BARE = "bare; "
ROOT = f"""
import os, subprocess, sys
children = []
for line in sys.stdin:
    bare = line.startswith({BARE!r})
    line = line.removeprefix({BARE!r})
    environment = {{name: value for name, value in os.environ.items() if not (bare and name.startswith("SLUICE_"))}}
    if bare: environment["SLUICE_SOCKET"] = "/nonexistent"
    code = "import sys; sys.path.insert(0, {str(DRIVER)!r}); from cuda_driver import *; driver = Driver(); " + line
    child = subprocess.Popen([sys.executable, "-c", code + "\\nimport time; time.sleep(600)"], env=environment,
                             stdout=subprocess.PIPE, text=True)
    children.append(child)
    print(child.stdout.readline().strip(), flush=True)
for child in children: child.kill()
"""
HOLD = "say(driver.context(), driver.allocate(60))"
FILL = "say(driver.context(), driver.fill())"
ENVIRONMENT = "import os; say(os.environ['SLUICE_SOCKET'])"


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


class Job:
    def __init__(self, machine, command=None, environment=None):
        self.machine = machine
        self.child = machine.launch((command or machine.slice)(sys.executable, "-c", ROOT), stdin=subprocess.PIPE,
                                    environment=environment)

    def start(self, code):
        """What a new process of the job says."""
        self.child.stdin.write(code + "\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def within_quota(self):
        """A new process takes what is left, and the job has its quota and no more."""
        line = self.start(FILL)
        peak = self.machine.device()["peak_bytes"] / MIB
        print(f"a new process: {line}; {peak} MiB on the device at most")
        words = line.split()
        expect(len(words) == 2 and words[0] == "0" and int(words[1]) >= 90, f"a new process: {line!r}")
        expect(peak <= QUOTA, f"{peak} MiB of {QUOTA} on the device")
        expect(self.start(FILL).startswith("2") or self.machine.device()["peak_bytes"] <= QUOTA * MIB, "a second quota")
        expect(self.machine.device()["peak_bytes"] <= QUOTA * MIB, "more than the quota")

    def end(self):
        self.child.stdin.close()
        self.child.wait(60)


def held(machine):
    """Of the job's registered processes, in the broker's account and in the device's."""
    tenants = machine.status()["tenants"]
    expect(len(tenants) == 1, tenants)
    return sum(gpu["held_bytes"] for gpu in tenants[0]["gpus"]), machine.device()["used_bytes"], tenants[0]


def taken_back(machine, count):
    of_broker, of_device, tenant = held(machine)
    return tenant["unregistered"] == 0 and len(tenant["processes"]) >= count and of_broker == of_device


def begun(machine):
    job = Job(machine)
    expect(job.start(HOLD) == "0 0", "the job did not start")
    return job


def case_stopped(build):
    """SIGSTOP: a new process waits five seconds for the answer. The broker that goes on takes it in."""
    with Machine(build) as machine:
        machine.start_broker()
        job = begun(machine)
        machine.broker.send_signal(signal.SIGSTOP)
        try:
            job.within_quota()
        finally:
            machine.broker.send_signal(signal.SIGCONT)
        wait_until("all are registered", lambda: taken_back(machine, 2), timeout_s=60)
        job.end()


def case_killed(build):
    """kill -9, and nothing comes after it."""
    with Machine(build) as machine:
        machine.start_broker()
        job = begun(machine)
        machine.kill_broker()
        job.within_quota()
        job.end()


def case_executed_bare(build):
    """A program of the job that is executed without its variables asks the job's broker, and without that keeps the job's quota."""
    with Machine(build) as machine:
        machine.start_broker()
        job = begun(machine)
        expect(job.start(BARE + HOLD) == "0 0", "a bare process did not start")
        wait_until("both are registered", lambda: taken_back(machine, 2), timeout_s=60)
        machine.kill_broker()
        line = job.start(BARE + FILL)
        peak = machine.device()["peak_bytes"] / MIB
        print(f"a bare process: {line}; {peak} MiB on the device at most")
        expect(line.startswith("0 ") and peak <= QUOTA, f"{peak} MiB of {QUOTA} on the device, {line!r}")
        job.end()


def case_cut_off(build):
    """The name of the socket is removed; the broker serves those that are registered."""
    with Machine(build) as machine:
        machine.start_broker()
        job = begun(machine)
        machine.socket.unlink()
        job.within_quota()
        job.end()


def case_restarted(build):
    """The next broker has the journal of the one before: it takes all of the job's processes in."""
    with Machine(build) as machine:
        machine.start_broker(remembering=True)
        job = begun(machine)
        machine.kill_broker()
        job.within_quota()
        machine.start_broker(remembering=True)
        wait_until("all are registered", lambda: taken_back(machine, 2), timeout_s=60)
        expect(machine.device()["used_bytes"] <= QUOTA * MIB, "more than the quota")  # the probe is in the peak
        job.end()


def case_restarted_forgetful(build):
    """The next broker knows nothing of the job: what runs keeps its limits, and a new process is refused."""
    with Machine(build) as machine:
        machine.start_broker()
        job = begun(machine)
        machine.kill_broker()
        job.within_quota()
        machine.start_broker()
        line = job.start(FILL)
        expect(line.startswith("800"), f"a new process: {line!r}")
        expect(machine.device()["used_bytes"] <= QUOTA * MIB, "more than the quota")
        job.end()


def case_private(build):
    """The private broker that `sluice run` started for the command dies."""
    with Machine(build) as machine:
        def command(*arguments):
            return [str(machine.build / "bin/sluice"), "run", "--soft", "1", "--memory", f"{QUOTA}MiB", "--sm", "25", "--",
                    *arguments]

        machine.directory.joinpath("run").mkdir(mode=0o700)
        environment = {**machine.environment, "XDG_RUNTIME_DIR": str(machine.directory / "run")}
        job = Job(machine, command, environment)
        path = job.start(ENVIRONMENT)
        expect(job.start(HOLD) == "0 0", "the job did not start")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            pid, _, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        os.kill(pid, signal.SIGKILL)
        job.within_quota()
        job.end()


CASES = {name.removeprefix("case_"): case for name, case in globals().copy().items() if name.startswith("case_")}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("case", choices=sorted(CASES))
    options = parser.parse_args()
    try:
        CASES[options.case](options.build)
    except AssertionError as failure:
        sys.exit(f"run_absence.py: {options.case}: {failure}")
