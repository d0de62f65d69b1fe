"""What the scripts of this directory share: a broker of their own on the GPUs of this machine, and NVML's word on memory."""

import contextlib
import ctypes
import os
import pathlib
import subprocess
import tempfile


def environment_clean():
    """Without a word of another broker or another shim."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE", "CUDA_VISIBLE")) and k != "LD_PRELOAD"}


class Broker:
    """A sluiced with its socket in a directory of its own. Used in a with statement."""

    def __init__(self, build, config="", soft=None):
        self.build, self.config = pathlib.Path(build).resolve(), config
        self.environment = environment_clean()
        if soft:
            self.environment["LD_LIBRARY_PATH"] = str(soft)

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-gpu-")))
            self.socket = self.directory / "broker.sock"
            config = self.directory / "sluice.toml"
            config.write_text(self.config)
            reader, writer = os.pipe()
            self.process = subprocess.Popen([self.build / "bin/sluiced", "--config", config, "--socket", self.socket, "--log",
                                             self.directory / "log", "--ready-fd", str(writer)], env=self.environment,
                                            pass_fds=[writer], stdin=subprocess.DEVNULL)
            stack.callback(self._end)
            os.close(writer)
            with os.fdopen(reader) as word:
                said = word.read()
            if said != "ready\n":
                raise RuntimeError(f"the broker did not start: {said}")
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def _end(self):
        self.process.terminate()
        self.process.wait()

    def tool(self, command, *words, timeout_s=120):
        """`sluice COMMAND --socket ... WORDS`, run to its end."""
        return subprocess.run([self.build / "bin/sluice", command, "--socket", self.socket, *map(str, words)], env=self.environment,
                              capture_output=True, text=True, timeout=timeout_s)

    def start(self, options, command, **how):
        """A program under `sluice run`."""
        words = [self.build / "bin/sluice", "run", "--socket", self.socket, *options, "--", *map(str, command)]
        return subprocess.Popen(words, env=self.environment, text=True, stdout=subprocess.PIPE, **how)


class _Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """Device memory by NVML, of GPU 0: by process, and of the whole device. Bytes."""

    LISTED_MAX = 256

    def __init__(self, library="libnvidia-ml.so.1"):
        self.library = ctypes.CDLL(library)
        self.device = ctypes.c_void_p()
        self._check(self.library.nvmlInit_v2())
        self._check(self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)))

    @staticmethod
    def _check(result):
        if result != 0:
            raise RuntimeError(f"NVML answers {result}")

    def processes(self):
        count = ctypes.c_uint(self.LISTED_MAX)
        rows = (_Process * self.LISTED_MAX)()
        self._check(self.library.nvmlDeviceGetComputeRunningProcesses_v3(self.device, ctypes.byref(count), rows))
        return {rows[i].pid: rows[i].used for i in range(count.value)}

    def used(self):
        memory = _Memory()
        self._check(self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory)))
        return memory.used


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def lies_below(pid, root):
    while pid > 1 and pid != root:
        pid = parent_of(pid)
    return pid == root
