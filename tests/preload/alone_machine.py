"""A software GPU of a test's own, programs under the shim on it, and its accounts, which are the judge of their limits."""
import argparse
import contextlib
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import typing

import cuda_driver

WAIT_S = 300  # for anything that has to happen; it ends a test that hangs, and judges none


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


@contextlib.contextmanager
def file_size_limit(limit_bytes):
    """What is started in the meantime has this soft limit on the size of its files. This process's own is put back."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_until(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        expect(time.monotonic() < end, f"in vain: {what}")
        time.sleep(0.02)


class Gpu:
    """A software GPU of its own, and programs under the shim."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-alone-", dir="/dev/shm"))
        self.children = []
        self.accounted = False
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("SLUICE_", "SOFTGPU_", "CUDA_")) and name != "LD_PRELOAD"}
        self.environment.update(
            LD_LIBRARY_PATH=arguments.softgpu, SOFTGPU_DIR=str(self.directory / "gpus"), SOFTGPU_COUNT="1",
            SOFTGPU_MEMORY="1GiB", SOFTGPU_CONTEXT="32MiB", SOFTGPU_TIMED="spin=1ms/skip,long=200ms/skip",
            SLUICE_SOCKET=str(self.directory / "nobody.sock"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream:
                    stream.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, code, *words, shim=None, pass_fds=(), **variables):
        environment = {**self.environment, "LD_PRELOAD": shim or self.arguments.shim, **variables}
        child = cuda_driver.python(code, *words, env=environment, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=pass_fds)
        self.children.append(child)
        return child

    def run(self, code, *words, **variables):
        child = self.start(code, *words, **variables)
        out, err = child.communicate(timeout=WAIT_S)
        expect(child.returncode == 0, f"exit {child.returncode}: {out!r} {err!r}")
        return out.split("\n")[:-1], err

    def accounts(self):
        text = subprocess.run([self.arguments.ctl, "accounts", "--json", "--dir", self.environment["SOFTGPU_DIR"]],
                              check=True, capture_output=True, text=True).stdout
        return [process for device in json.loads(text)["devices"] for process in device["processes"]]

    def peak_mib(self):
        """The most memory that was ever in use on the device, of all processes together."""
        text = subprocess.run([self.arguments.ctl, "accounts", "--json", "--dir", self.environment["SOFTGPU_DIR"]],
                              check=True, capture_output=True, text=True).stdout
        return json.loads(text)["devices"][0]["peak_bytes"] / (1 << 20)

    def busy_ns(self, pids):
        """GPU time of these processes by the device's own account, also after their end."""
        return sum(account["busy_ns"] for account in self.accounts() if account["pid"] in pids)


class CheapGpu(Gpu):
    """Contexts cost nothing but where a case says so: what counts is what programs allocate."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.environment["SOFTGPU_CONTEXT"] = "0MiB"


WORKER = """
driver = Driver()
say(driver.context() or driver.load())
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(16): driver.launch()
    driver.synchronize()
"""


class Share(typing.NamedTuple):
    """Fractions of the wall time of a measurement."""
    busy: float     # on the device, by its own account
    starved: float  # in which threads of the processes were ready to run and had no processor; a sum over all threads


def runqueue_ns(pids):
    """How long all threads of the processes have waited for a processor (the second field of schedstat)."""
    total = 0
    for pid in pids:
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                total += int(path.read_text().split()[1])
    return total


def share_measure(gpu, pids, seconds):
    """The share of processes that want the GPU all the time."""
    before_ns, waited_ns, begin_ns = gpu.busy_ns(pids), runqueue_ns(pids), time.monotonic_ns()
    time.sleep(seconds)
    elapsed_ns = time.monotonic_ns() - begin_ns
    return Share((gpu.busy_ns(pids) - before_ns) / elapsed_ns, max(0, runqueue_ns(pids) - waited_ns) / elapsed_ns)


def share_of(gpu, workers, seconds):
    """The share of workers that have just been started."""
    for worker in workers:
        expect(worker.stdout.readline() == "0\n", "a worker did not start")
    time.sleep(1)
    return share_measure(gpu, [worker.pid for worker in workers], seconds)


def expect_share(share, percent, what):
    """Never more than a little above what was asked for, and not much less of the time in which the processes could run."""
    text = f"{what}: {percent} % asked, {100 * share.busy:.2f} % of the wall time on the device"
    print(f"{text}, {100 * share.starved:.2f} % without a processor")
    expect(0.9 * (1 - share.starved) <= share.busy / (percent / 100) <= 1.03, text)


def main(cases, machine_make, *further_options):
    """The program of a file of cases: one of them by name, on a machine of its own."""
    cases = {name[5:]: function for name, function in cases.items() if name.startswith("case_")}
    parser = argparse.ArgumentParser()
    for option in ("shim", "softgpu", "ctl", *further_options):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("case", choices=sorted(cases))
    options = parser.parse_args()
    with machine_make(options) as machine:
        try:
            cases[options.case](machine)
        except AssertionError as failure:
            print(f"{pathlib.Path(sys.argv[0]).name}: {options.case}: {failure}", file=sys.stderr)
            sys.exit(1)
