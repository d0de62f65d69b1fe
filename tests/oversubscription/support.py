"""What the tests and benches of this folder share: a small machine of their own, a program that holds memory and knows what must
stand in it, and what is asked of both."""

import contextlib
import json
import os
import pathlib
import re
import select
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "programs"))
from machine import MIB, Machine, wait_until  # noqa: E402, F401

PATIENCE_S = 120  # for things that happen in less than a second on an idle machine
CONTEXT_MIB = 4
OVERSOLD = '[memory]\noversell = 16.0\nswap_quantum = "200ms"\n'

# The beginning of a program in Python that calls the driver itself.
CUDA = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def context(device):
    made = ctypes.c_void_p()
    return cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), device)
def say(*words): print(*words, flush=True)
"""


class Holder:
    """tests/oversubscription/holder.cpp, under `sluice run` or on its own."""

    def __init__(self, machine, command, environment=None, begin=True):
        self.process = machine.launch(command, stdin=subprocess.PIPE, environment=environment)
        if begin:
            self.begin()

    def begin(self):
        word = self.answer()
        if word != "started":
            raise AssertionError(f"{word!r}: {self.process.stderr.read()!r}")
        return self

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def answer(self):
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise AssertionError("the program does not answer")
        return self.process.stdout.readline().strip()

    def ask(self, line):
        self.send(line)
        return self.answer()

    def done(self, line):
        word = self.ask(line)
        if word != "done":
            raise AssertionError(f"{line}: {word}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Ends it in good order; what it has said on stderr."""
        _, said = self.process.communicate("exit\n", timeout=PATIENCE_S)
        if self.process.returncode != 0:
            raise AssertionError(f"ended with {self.process.returncode}: {said}")
        return said


class Box(Machine):
    """A machine with a small GPU and cheap contexts, so that what counts is data."""

    def __init__(self, build, memory="256MiB", config="", gpus=1, pacing=False, rate=None):
        super().__init__(build, memory=memory, pacing=pacing, rate=rate, config='[broker]\nlog_level = "debug"\n' + config)
        self.environment.update(SOFTGPU_CONTEXT=f"{CONTEXT_MIB}MiB", SOFTGPU_COUNT=str(gpus))

    def job(self, *options, begin=True):
        command = [str(self.build / "bin" / "sluice"), "run", "--socket", str(self.socket), *options, "--",
                   str(self.build / "tests" / "oversubscription_holder")]
        return Holder(self, command, begin=begin)

    def unannounced(self):
        """As a machine-wide preload starts it."""
        return {**self.environment, "LD_PRELOAD": str(self.build / "lib" / "libsluice.so"), "SLUICE_SOCKET": str(self.socket)}

    def loner(self, begin=False):
        return Holder(self, [str(self.build / "tests" / "oversubscription_holder")], self.unannounced(), begin)

    def sluice(self, *arguments):
        return self.run([str(self.build / "bin" / "sluice"), arguments[0], "--socket", str(self.socket), *arguments[1:]],
                        timeout_s=PATIENCE_S)

    def tenants(self):
        return self.status()["tenants"]

    def waiting(self):
        return [tenant for tenant in self.tenants() if tenant["state"] == "queued"]

    def free_mib(self):
        """What the device itself says is free."""
        device = self.device()
        return (device["capacity_bytes"] - device["used_bytes"]) // MIB

    def devices(self):
        tool = [self.build / "bin" / "softgpu-ctl", "accounts", "--json", "--dir", self.environment["SOFTGPU_DIR"]]
        done = self.run(tool)
        expect(done.returncode == 0, f"softgpu-ctl ended with {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)["devices"]


@contextlib.contextmanager
def box(build, remembering=False, **settings):
    with Box(build, **settings) as machine:
        machine.start_broker(remembering)
        yield machine


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def equal(found, wanted, what=""):
    expect(found == wanted, f"{what}: {found!r}, not {wanted!r}")


def line_of(holder):
    """What a program that waits says first."""
    expect(select.select([holder.process.stderr], [], [], PATIENCE_S)[0], "it says nothing")
    return holder.process.stderr.readline()


def row(machine, name):
    found = [tenant for tenant in machine.tenants() if tenant["name"] == name and tenant["state"] != "queued"]
    equal(len(found), 1, f"jobs called {name}")
    return found[0]


def commanded(machine, *arguments):
    result = machine.sluice(*arguments)
    equal((result.returncode, result.stderr), (0, ""), " ".join(arguments))
    return result.stdout


def orders_seen(machine, order, name=""):
    return len(re.findall(f"event=hold .*{name and f'name={name} '}.*order={order}\n", machine.broker_log()))


def order_await(machine, order, name=""):
    """Returns in the middle of a move: it has been ordered, and may have been done by a part."""
    before = orders_seen(machine, order, name)
    wait_until(f"the next order {order}", lambda: orders_seen(machine, order, name) > before, PATIENCE_S, every_s=0.001)
