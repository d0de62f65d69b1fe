"""What the broker's end-to-end tests share: starting sluiced on doubles of the hardware libraries, speaking its protocol,
and steering programs that act as the shim does. Standard library only.

The first argument of every suite is an installation: bin/{sluice,sluiced,sluice-probe}, lib/libsluice.so, lib/softgpu/.
"""

import json
import os
import pathlib
import pwd
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

INSTALLATION = None  # set by main()
PATIENCE_S = 240     # for things that happen in milliseconds on an idle machine; it ends a test that hangs, and judges none
MAGIC = 0x4D434C53
ME = pwd.getpwuid(os.getuid()).pw_name
WORDS = pathlib.Path(__file__).resolve().parents[3] / "broker/protocol/words.h"
VERSION = int(re.search(r"\bkVersion = (\d+);", WORDS.read_text())[1])
(ADMIT, QUEUED, ADMITTED, REFUSED, REGISTER, REGISTERED, GATE_WANT, GATE_IDLE, DRAINED, JOB_REPORT, RELEASE, DONE,
 SNAPSHOT_REQUEST, SNAPSHOT_REPLY, HELD, MOVED, MEMORY_WANT, COMMAND, COMMAND_DONE, ACTIVITY_REQUEST,
 ACTIVITY_REPLY) = range(1, 22)
(OTHER_VERSION, MALFORMED, UNKNOWN_TENANT, BELOW_CONTEXT, TOO_LARGE, NO_SUCH_GPU, NO_ROOM, TOO_MANY_PROCESSES, USER_LIMIT,
 TIMEOUT, CLASS_NOT_ALLOWED, SHUTTING_DOWN, TOO_MANY_GPUS, NOT_ALLOWED, CANNOT_MOVE, HOST_MEMORY_LIMIT) = range(1, 17)
SUSPEND, RESUME, MOVE, DRAIN, UNDRAIN = range(1, 6)
INFERENCE, DEBUG, BATCH, EXCLUSIVE = range(4)
NO_WAIT, DRY_RUN, SWAP, WEIGHT = 1, 2, 4, 8
SHARE = 6  # why it waits
MIB, GIB = 1 << 20, 1 << 30
OPEN = 1
HERE = pathlib.Path(__file__).resolve().parent


def wait_until(what, condition):
    """Polls; the tests never depend on how long something takes, only on its happening."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.01)
    raise AssertionError(f"never happened: {what}")


def header(kind, size, request=1, version=VERSION):
    return struct.pack("<IHHII", MAGIC, version, kind, size, request)


def message(kind, body=b"", request=1, version=VERSION):
    return header(kind, 16 + len(body), request, version) + body


def admit(memory=256 * MIB, tenant_class=BATCH, sm=0, memory_min=0, wait_ns=0, gpus=1, flags=0, name=b"job", profile=b"",
          sm_mode=0, pinned=()):
    body = struct.pack("<BBxxIQQQQIIII", tenant_class, sm_mode, sm, memory, memory_min, 0, wait_ns, gpus, flags,
                       len(pinned), 0)
    body += b"".join(pinned).ljust(128, b"\0") + struct.pack("<32s32s", name, profile)
    return message(ADMIT, body)


def register(tenant, key, command=b"prog"):
    return message(REGISTER, struct.pack("<QQ16x32s", tenant, key, command))


def gate_note(kind, gpu, epoch, busy_ns=0):
    return message(kind, struct.pack("<IIQ", gpu, epoch, busy_ns), request=0)


def moved(gpu, word, size, result=0, taken_ns=1000):
    return message(MOVED, struct.pack("<IIiIQQ", gpu, word, result, 0, size, taken_ns), request=0)


def memory_want(gpu, room, size):
    return message(MEMORY_WANT, struct.pack("<IIQ", gpu, room, size), request=0)


def command(verb, tenant=0, gpu=bytes(16), flags=0, until_s=0, reason=b""):
    return message(COMMAND, struct.pack("<IIQ16sQ96s", verb, flags, tenant, gpu, until_s, reason))


class Reply:
    """A received message, its fields by name."""

    def __init__(self, data, fds):
        self.magic, self.version, self.kind, self.size, self.request = struct.unpack_from("<IHHII", data)
        self.fds = list(fds)
        body = data[16:]
        if self.kind == QUEUED:
            self.position, self.reason, self.limit, self.promised, self.capacity, ahead, text = struct.unpack(
                "<IBBxxQQ32s320s", body)
            self.ahead, self.text = ahead.rstrip(b"\0"), text.split(b"\0")[0].decode()
        elif self.kind == ADMITTED:
            (self.tenant, self.key, self.memory_max, self.memory_min, self.sm_percent, self.gpu_count, self.tenant_class,
             self.sm_mode, self.cut, self.sm_kind, gpus, profile) = struct.unpack("<QQQQIIBBBBxxxx128s32s", body)
            self.gpus = [gpus[16 * i:16 * i + 16] for i in range(self.gpu_count)]
            self.profile = profile.rstrip(b"\0")
        elif self.kind == REFUSED:
            self.code, _, self.minimum, text = struct.unpack("<IIQ320s", body)
            self.text = text.split(b"\0")[0].decode()
        elif self.kind == COMMAND_DONE:
            self.bytes, self.taken_ns = struct.unpack("<QQ", body)
        elif self.kind == REGISTERED:
            self.tenant, self.slot, self.host_pid = struct.unpack("<QII", body)


class Client:
    """One connection."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_S)
        self._connect(str(path))

    def _connect(self, path):
        """Waits while the line before the socket is full, as a blocking connect does."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.socket.connect(path)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)

    def send(self, data, fds=()):
        if fds:
            socket.send_fds(self.socket, [data], list(fds))
        else:
            self.socket.send(data)

    def receive(self):
        """The next message, or None when the broker has closed."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1024, 4)
        except ConnectionResetError:
            return None
        return Reply(data, fds) if data else None

    def ask(self, data, fds=()):
        self.send(data, fds)
        return self.receive()

    def ask_while_queued(self, data):
        """The answer to a second message. The broker may tell the queued request its place anew at any time."""
        reply = self.ask(data)
        while reply is not None and reply.kind == QUEUED:
            reply = self.receive()
        return reply

    def silent(self):
        """True when nothing is to be read now."""
        return not select.select([self.socket], [], [], 0)[0]

    def close(self):
        self.socket.close()


def environment(**settings):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("SLUICE_", "FAKE_", "LD_", "CUDA_VISIBLE", "NOTIFY_", "LISTEN_", "XDG_RUNTIME"))}
    env["LD_LIBRARY_PATH"] = str(INSTALLATION / "lib/softgpu")
    env.update(settings)
    return env


def program(name):
    return str(INSTALLATION / "bin" / name)


class Broker:
    """sluiced in a directory of its own."""

    def __init__(self, config="", *, options=(), env=None, open_to_all=False, before=()):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        if open_to_all:
            self.directory.chmod(0o755)
        self.socket = self.directory / "broker.sock"
        self.config = self.directory / "sluice.toml"
        self.log_path = self.directory / "log"
        self.config_write(config)
        self.options, self.env, self.before = options, env or environment(), before
        self.start()

    def start(self):
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [*self.before, program("sluiced"), "--config", self.config, "--socket", self.socket, "--log", self.log_path,
             "--ready-fd", str(writer), *self.options],
            env=self.env, pass_fds=[writer], stdin=subprocess.DEVNULL)
        os.close(writer)
        with os.fdopen(reader) as word:
            self.word = word.read()

    def kill(self):
        """Gone at once, without a word to anybody."""
        self.process.kill()
        self.process.wait()

    def config_write(self, text):
        self.config.write_text('[broker]\nlog_level = "debug"\n' + text)
        self.config.chmod(0o644)

    def client(self):
        return Client(self.socket)

    def log(self):
        return self.log_path.read_text()

    def status(self):
        result = subprocess.run([program("sluice"), "status", "--json", "--socket", self.socket], env=environment(),
                                capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return json.loads(result.stdout)

    def tenants(self):
        return self.status()["tenants"]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)
        shutil.rmtree(self.directory, ignore_errors=True)
        return self.process.returncode


class Job:
    """`sluice run` with a python program that acts as the shim does (see e2e_program.py), steered by lines."""

    def __init__(self, broker, *options, start=True):
        # In a session of its own: the kernel continues what is stopped in a group that loses its last parent within a session,
        # as the group of a whole test run does.
        self.process = subprocess.Popen(
            [program("sluice"), "run", "--socket", broker.socket, *options, "--", sys.executable,
             str(HERE / "e2e_program.py")],
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
            start_new_session=True)
        if start:
            self.ask("hello")

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        if not ready:
            raise AssertionError("the job does not answer")
        line = self.process.stdout.readline().strip()
        if line.startswith("error"):
            raise AssertionError(line)
        return line

    def ask(self, line):
        self.send(line)
        return self.answer()

    def word(self, gpu=0):
        return int(self.ask(f"word {gpu}"))

    def hold(self, gpu=0):
        return int(self.ask(f"hold {gpu}"))

    def is_open(self, gpu=0):
        return bool(self.word(gpu) & OPEN)

    def epoch(self, gpu=0):
        return self.word(gpu) >> 3

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass
        if self.process.poll() is None:
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


class Loner(Job):
    """The same program without `sluice run`: it asks for its user's default tenant."""

    def __init__(self, broker):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "e2e_program.py")],
            env=environment(SLUICE_TENANT="0-0", SLUICE_SOCKET=str(broker.socket)), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.ask("hello")


class BrokerTest(unittest.TestCase):
    """Starts and stops brokers and jobs; what a test starts never outlives it."""

    def broker(self, config="", **settings):
        broker = Broker(config, **settings)
        self.addCleanup(broker.stop)
        self.assertEqual(broker.word, "ready\n")
        return broker

    def client(self, broker):
        client = broker.client()
        self.addCleanup(client.close)
        return client

    def job(self, broker, *options, **settings):
        job = Job(broker, *options, **settings)
        self.addCleanup(job.kill)
        return job

    def loner(self, broker):
        loner = Loner(broker)
        self.addCleanup(loner.kill)
        return loner

    def sluice(self, *arguments, env=None, **settings):
        return subprocess.run([program("sluice"), *map(str, arguments)], env=env or environment(), text=True,
                              capture_output=True, timeout=PATIENCE_S * 2, stdin=subprocess.DEVNULL, **settings)

    def assert_refused(self, reply, code):
        self.assertIsNotNone(reply, "the broker closed without a word")
        self.assertEqual(reply.kind, REFUSED)
        self.assertEqual((reply.code, reply.version), (code, VERSION), reply.text)


def alive(pid):
    """Whether a process that is not ours still runs (a zombie does not)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def main():
    global INSTALLATION
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    INSTALLATION = pathlib.Path(sys.argv.pop(1)).resolve()
    signal.alarm(170)
    unittest.main(verbosity=2)
