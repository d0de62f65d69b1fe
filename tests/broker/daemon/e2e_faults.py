"""Every system call of the broker fails once, the first, the second, ... until none is left: while it serves a job from
admission to end, and while it starts. Whatever fails, the broker answers or hangs up, goes on or ends with a sentence, and
the next job is served by it or its successor, with no descriptor left behind.

    e2e_faults.py INSTALLATION TRACER [unittest arguments]

Not made to fail: clocks, timers that are set, futexes, memory of its own (the program ends with a sentence when it has none),
getrandom (which cannot fail for eight bytes), signals.
"""

import mmap
import os
import re
import signal

import e2e_support
from e2e_support import *

ARM, COUNTED, FAILED, PID, BEGUN, KILLS = range(6)
WRITE = 1     # write(2)
SHORT_S = 10  # for an answer that comes in milliseconds or is known not to come


class Control:
    """The words that the tracer and the test share."""

    def __init__(self, directory):
        self.path = directory / "control"
        self.path.write_bytes(bytes(48))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 48)

    def __getitem__(self, word):
        return struct.unpack_from("<Q", self.map, 8 * word)[0]

    def __setitem__(self, word, value):
        struct.pack_into("<Q", self.map, 8 * word, value)

    def arm(self, k):
        self[COUNTED], self[FAILED] = 0, 0
        self[ARM] = k

    def failed(self):
        """The number of the call that failed; None = it was not come to."""
        self[ARM] = 0
        return self[FAILED] - 1 if self[FAILED] else None


class TracedBroker(Broker):
    TRACER = None  # set by main()

    def __init__(self, directory, armed=0, config="", env=None):
        self.control = Control(directory)
        if armed:
            self.control.arm(armed)
        super().__init__(config, options=["--state", str(directory / "state")], env=env)

    def start(self):
        self.control[BEGUN] = 0
        reader, writer = os.pipe()
        self.errors = open(self.directory / "stderr", "a")
        self.process = subprocess.Popen(
            [self.TRACER, self.control.path, "sluice.toml", program("sluiced"), "--config", self.config, "--socket", self.socket,
             "--log", self.log_path, "--ready-fd", str(writer), *self.options],
            env=self.env, pass_fds=[writer], stdin=subprocess.DEVNULL, stderr=self.errors)
        os.close(writer)
        with os.fdopen(reader) as word:
            self.word = word.read()

    def stop(self):
        self.errors.close()
        self.control.map.close()
        return super().stop()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.control[PID]}/fd"))

    def said(self):
        return (self.directory / "stderr").read_text() + (self.log() if self.log_path.exists() else "")


def lived(path):
    """A job from admission to end, in a process of its own. What it came to: "done", or where it ended and how."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        word = "nothing"
        try:
            word = life(path)
        except socket.timeout:
            word = "hangs: no answer"
        except OSError as fault:
            word = f"hung up: {fault!r}"
        finally:
            os.write(writer, word.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        word = lines.read()
    os.waitpid(pid, 0)
    return word


def life(path):
    founder, shim, asker = (Client(path) for _ in range(3))
    for client in (founder, shim, asker):
        client.socket.settimeout(SHORT_S)
    granted = founder.ask(admit(memory=64 * MIB, flags=NO_WAIT))
    if granted is None or granted.kind != ADMITTED:
        return f"admission: {granted.text if granted else 'hung up'}"
    joined = shim.ask(register(granted.tenant, granted.key))
    if joined is None or joined.kind != REGISTERED or len(joined.fds) != 2:
        return f"registration: {joined.text if joined else 'hung up'}"
    lease = mmap.mmap(joined.fds[0], 0, prot=mmap.PROT_READ)
    epoch_offset = 128 + 16 + 5 * 8  # LeaseEntry.lease of the first GPU
    word = lambda: struct.unpack_from("<I", lease, epoch_offset)[0]
    shim.send(gate_note(GATE_WANT, 0, word() >> 3))
    deadline = time.monotonic() + SHORT_S
    while not word() & OPEN:
        if time.monotonic() > deadline:
            return "hangs: no lease"
        if not shim.silent() and shim.receive() is None:
            return "hung up on the shim"
    snapshot = asker.ask(message(SNAPSHOT_REQUEST))
    if snapshot is None or snapshot.kind != SNAPSHOT_REPLY:
        return f"snapshot: {snapshot.text if snapshot else 'hung up'}"
    released = founder.ask(message(RELEASE, struct.pack("<QQ", granted.tenant, granted.key)))
    if released is None or released.kind != DONE:
        return f"release: {released.text if released else 'hung up'}"
    return "done"


class Faults(BrokerTest):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-faults-"))
        self.addCleanup(shutil.rmtree, self.directory, True)

    def assert_served(self, server, context):
        for _ in range(3):  # what could not be written may close one more connection
            word = lived(server.socket)
            if word == "done":
                return
        self.fail(f"{context}: afterwards {word}; {server.said()[-800:]}")

    def test_while_it_serves(self):
        server = TracedBroker(self.directory)
        self.addCleanup(server.stop)
        self.assertEqual(server.word, "ready\n", server.said())
        self.assert_served(server, "at first")
        before = self.settled(server)
        outcomes = {}
        k = 0
        while True:
            k += 1
            server.control.arm(k)
            word = lived(server.socket)
            number = server.control.failed()
            if number is None:
                self.assertEqual(word, "done")
                break
            context = f"call {number}, the {k}th"
            self.assertIsNone(server.process.poll(), f"{context} ended it: {server.said()[-800:]}")
            self.assertFalse(word.startswith("hangs"), f"{context}: {word}; {server.said()[-800:]}")
            outcomes[number] = outcomes.get(number, 0) + 1
            self.assert_served(server, context)
            wait_until(f"everything is given back after {context}", lambda: server.descriptors() <= before)
        print(f"{k - 1} calls failed once each, by number: {outcomes}", flush=True)
        self.assertGreater(k, 50, "there were calls to fail")
        self.assertEqual(server.stop(), 0)

    def reloads(self, server):
        return re.findall(r"event=(reloaded|reload_failed)", server.log())

    def test_while_it_reloads(self):
        """The file is read, or the settings stay as they are and that is said; it is served either way."""
        server = TracedBroker(self.directory)
        self.addCleanup(server.stop)
        self.assertEqual(server.word, "ready\n", server.said())
        self.assert_served(server, "at first")
        before = self.settled(server)
        k = taken = kept = 0
        while True:
            k += 1
            sure = len(self.reloads(server))
            server.control.arm(k)
            os.kill(server.control[PID], signal.SIGHUP)
            # A heartbeat may have the fault instead: then another one has the reload's.
            wait_until("the call comes, or the reload is over", lambda: server.control[FAILED] or len(self.reloads(server)) > sure)
            number = server.control.failed()
            context = f"call {number}, the {k}th"
            self.assertIsNone(server.process.poll(), f"{context} ended it: {server.said()[-800:]}")
            self.assert_served(server, context)
            said = self.reloads(server)[sure:]
            taken += "reloaded" in said
            kept += "reload_failed" in said
            if number is None or k == 60:
                break
            wait_until(f"everything is given back after {context}", lambda: server.descriptors() <= before)
        print(f"{k - 1} calls failed once each: {taken} times the file was read, {kept} times the settings stayed", flush=True)
        self.assertGreater(k, 8, "there were calls to fail")
        self.assertGreater(taken, 0)
        self.assertGreater(kept, 0, "a file that cannot be read is told of")
        self.assertEqual(server.stop(), 0)

    def settled(self, server):
        """How many descriptors it has with nobody there: of several looks the least."""
        wait_until("the job is over", lambda: "event=ended" in server.log())
        return min(server.descriptors() for _ in range(20))

    def starts(self, part, parts):
        k = part
        ended = went_on = 0
        while True:
            k += parts
            shutil.rmtree(self.directory / "state", ignore_errors=True)
            server = TracedBroker(self.directory, armed=k)
            number = server.control.failed()
            context = f"call {number}, the {k}th of the start"
            untold = server.word == "" and number == WRITE  # to its starter: who hears nothing looks himself
            if server.word == "ready\n" or untold:
                went_on += 1
                self.assert_served(server, context)
                self.assertEqual(server.stop(), 0, context)
            else:
                ended += 1
                code = server.process.wait(PATIENCE_S)
                self.assertLess(code, 128, f"{context}: ended by a signal; {server.said()[-800:]}")
                self.assertNotEqual(code, 0, context)
                self.assertIn("sluice: ", server.word + server.said(), context)
                server.stop()
            if number is None:
                break
        print(f"{ended} times it ended with a sentence, {went_on} times it went on", flush=True)
        self.assertGreater(k, 20, "there were calls to fail")

    def test_while_it_starts_even(self):
        self.starts(0, 2)

    def test_while_it_starts_odd(self):
        self.starts(-1, 2)


if __name__ == "__main__":
    TracedBroker.TRACER = sys.argv.pop(2)
    e2e_support.main()
