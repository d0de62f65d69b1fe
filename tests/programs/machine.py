"""A machine for one test: software GPUs of its own, and on request a broker of its own.

Nothing is shared with other tests or with the user's own brokers: the device segments, the socket, the log and the
configuration live in one directory that goes away with the test. Every process started here ends here.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

MIB = 1 << 20


class Machine:
    def __init__(self, build, memory="1GiB", pacing=True, config=None, rate=None):
        self.build = pathlib.Path(build).resolve()
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-programs-", dir="/dev/shm"))
        self.socket = self.directory / "sluiced.sock"
        self.log = self.directory / "sluiced.log"
        self.config = config
        self.children = []
        self.broker = None
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLUICE_", "SOFTGPU_", "CUDA_")) and name != "LD_PRELOAD"
        }
        self.environment.update(
            LD_LIBRARY_PATH=str(self.build / "lib" / "softgpu"),
            SOFTGPU_DIR=str(self.directory / "gpus"),
            SOFTGPU_COUNT="1",
            SOFTGPU_MEMORY=memory,
            SOFTGPU_CONTEXT="32MiB",
            SOFTGPU_PACING="1" if pacing else "0",
        )
        if rate:  # a slow GPU asks little of a busy host, and its kernels last long beside the cost of a call
            self.environment["SOFTGPU_RATE"] = str(rate)

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
        if self.broker is not None:
            self.broker.terminate()
            try:
                self.broker.wait(10)
            except subprocess.TimeoutExpired:
                self.broker.kill()
                self.broker.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start_broker(self, remembering=False, options=()):
        """With a memory of the brokers before it that were started in the same way, if `remembering`."""
        command = [self.build / "bin" / "sluiced", "--socket", self.socket, "--log", self.log, *options]
        if remembering:
            command += ["--state", self.directory / "state"]
        path = self.directory / "sluice.toml"
        path.write_text(self.config or "")
        reader, writer = os.pipe()
        self.broker = subprocess.Popen([*command, "--config", path, "--ready-fd", str(writer)], env=self.environment,
                                       pass_fds=[writer], stdout=subprocess.DEVNULL)
        os.close(writer)
        with os.fdopen(reader) as ready:
            word = ready.read()
        if word != "ready\n":
            raise AssertionError(f"the broker did not start: {word}")

    def program(self, name):
        return str(self.build / "tests" / "programs" / name)

    def slice(self, *arguments, memory="256MiB", sm=25):
        """The command line of a program under `sluice run` of this machine's broker."""
        return [str(self.build / "bin" / "sluice"), "run", "--socket", str(self.socket), "--memory", memory, "--sm",
                str(sm), "--", *arguments]

    def run(self, command, timeout_s=600, environment=None):
        return subprocess.run(command, env=environment or self.environment, capture_output=True, text=True, timeout=timeout_s)

    def kill_broker(self):
        """Gone at once, without a word to anybody; the socket's file stays behind."""
        self.broker.kill()
        self.broker.wait()
        self.broker = None

    def launch(self, command, stdin=None, environment=None):
        child = subprocess.Popen(command, env=environment or self.environment, stdin=stdin, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    def start(self, command, stdin=None, environment=None):
        """Starts a program and waits for its first line, which says that it works on the GPU."""
        child = self.launch(command, stdin, environment)
        first = child.stdout.readline()
        if "started" not in first:
            child.kill()
            raise AssertionError(f"{command} did not start: {first!r} {child.stderr.read()!r}")
        return child

    def stop(self, child, number=signal.SIGTERM, timeout_s=300):
        child.send_signal(number)
        return child.communicate(timeout=timeout_s)

    def device(self):
        """What the software GPU itself accounts; independent of anything Sluice says."""
        tool = [self.build / "bin" / "softgpu-ctl", "accounts", "--json", "--dir", self.environment["SOFTGPU_DIR"]]
        answer = json.loads(subprocess.run(tool, env=self.environment, check=True, capture_output=True).stdout)
        devices = answer["devices"] if isinstance(answer, dict) else answer
        return devices[0]

    def account(self, pid):
        found = [process for process in self.device()["processes"] if process["pid"] == pid]
        if len(found) != 1:
            raise AssertionError(f"{len(found)} accounts for process {pid}, not 1")
        return found[0]

    def status(self):
        tool = [self.build / "bin" / "sluice", "status", "--json", "--socket", self.socket]
        return json.loads(subprocess.run(tool, env=self.environment, check=True, capture_output=True).stdout)

    def broker_log(self):
        return self.log.read_text() if self.log.exists() else ""


def wait_until(what, condition, timeout_s=300, every_s=0.05):
    """Waits for something that happens soon but not at once, such as the noticing of a death."""
    deadline = time.monotonic() + timeout_s
    while True:
        if condition():
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(every_s)
