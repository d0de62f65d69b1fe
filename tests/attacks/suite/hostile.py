"""Hostile clients of the broker's socket. Each runs in a process of its own, as another user where the suite is root's, until its
time is up. It knows the protocol and keeps to nothing."""

import contextlib
import ctypes
import mmap
import os
import pathlib
import random
import resource
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "broker/daemon"))
from e2e_program import CLAIMS_BYTES  # noqa: E402
from e2e_support import (ACTIVITY_REQUEST, ADMIT, ADMITTED, COMMAND, DRAIN, DRAINED, GATE_IDLE, GATE_WANT, HELD, JOB_REPORT,  # noqa: E402
                         MIB, MOVE, NO_WAIT, REGISTER, REGISTERED, RELEASE, RESUME, SNAPSHOT_REQUEST, SUSPEND, SWAP, UNDRAIN,
                         Client, admit, command, gate_note, header, memory_want, message, moved, register)

GONE = (BrokenPipeError, ConnectionResetError, ConnectionRefusedError, BlockingIOError, TimeoutError, OSError)
KINDS = range(0, 24)


class Hostile:
    def __init__(self, path, seed, seconds):
        self.path, self.random, self.until = path, random.Random(seed), time.monotonic() + seconds
        self.kept = []
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))

    def going(self):
        return time.monotonic() < self.until

    def client(self, timeout_s=2, keep=False):
        client = Client(self.path)
        client.socket.settimeout(timeout_s)
        if keep:
            self.kept.append(client)
        return client

    def clients(self, number):
        found = []
        with contextlib.suppress(*GONE):
            for _ in range(number):
                found.append(self.client(keep=True))
                found[-1].socket.setblocking(False)
        return found

    def again(self, step):
        """Repeats until time is up, whatever the broker answers. The step is given a new connection."""
        while self.going():
            with contextlib.suppress(*GONE), contextlib.closing(self.client()) as client:
                step(client)

    def tenant(self, keep=True, **wishes):
        """An admitted tenant and its answer, or None."""
        client = self.client(keep=keep)
        reply = client.ask(admit(**{"memory": 64 * MIB, "flags": NO_WAIT, **wishes}))
        return (client, reply) if reply is not None and reply.kind == ADMITTED else (client, None)

    def registered(self, **wishes):
        """A connection of a registered process, with its pages."""
        _, granted = self.tenant(**wishes)
        if granted is None:
            return None, None
        shim = self.client(keep=True)
        reply = shim.ask(register(granted.tenant, granted.key))
        return (shim, reply) if reply is not None and reply.kind == REGISTERED else (None, None)

    def children(self, number, work):
        pids = []
        for _ in range(number):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    work()
                os._exit(0)
            pids.append(pid)
        return pids

    def end(self, pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def flood(self, number, data):
    """Sends without reading a word."""
    open_ones = self.clients(number)
    while self.going():
        for i, client in enumerate(open_ones):
            try:
                for _ in range(50):
                    client.socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                with contextlib.suppress(*GONE):
                    open_ones[i] = self.client()
                    open_ones[i].socket.setblocking(False)


def snapshots_unread(self):
    flood(self, 1, message(SNAPSHOT_REQUEST))


def snapshots_from_forty(self):
    flood(self, 40, message(SNAPSHOT_REQUEST))


def wrong_keys(self):
    flood(self, 10, message(RELEASE, struct.pack("<QQ", self.random.randrange(1 << 63), 1)))


def other_versions(self):
    self.again(lambda client: client.ask(message(SNAPSHOT_REQUEST, version=self.random.randrange(1 << 16))))


def rubbish(self):
    self.again(lambda client: client.ask(self.random.randbytes(self.random.randrange(1, 1500))))


def empty_messages(self):
    flood(self, 10, b"")


def half_messages(self):
    """Headers that promise more than comes, on as many connections as there are to be had."""
    for client in self.clients(600):
        with contextlib.suppress(*GONE):
            client.socket.send(header(ADMIT, 400))
    while self.going():
        time.sleep(0.05)


def oversized(self):
    self.again(lambda client: client.ask(message(ADMIT, b"\xff" * self.random.choice([4096, 60000, 150000]))))


def silent(self):
    while self.going():
        self.clients(300)
        time.sleep(0.2)


def connects(self):
    self.again(lambda client: None)


def descriptors(self):
    """As many descriptors in a message as the kernel takes."""
    ends = [end for _ in range(100) for end in os.pipe()]
    self.again(lambda client: client.ask(message(SNAPSHOT_REQUEST), ends[:200]))


def descriptor_rings(self):
    """Sockets that hold each other in flight."""
    def step(client):
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(one, [b"x"], [one.fileno(), other.fileno()])
        client.ask(message(SNAPSHOT_REQUEST), [one.fileno(), other.fileno(), client.socket.fileno()])
    self.again(step)


def slow_readers(self):
    """Asks much, and reads a byte now and then."""
    open_ones = self.clients(60)
    while self.going():
        for client in open_ones:
            with contextlib.suppress(*GONE):
                client.socket.send(message(SNAPSHOT_REQUEST))
        for client in self.random.sample(open_ones, min(3, len(open_ones))):
            with contextlib.suppress(*GONE):
                client.socket.recv(1)
        time.sleep(0.01)


def small_buffers(self):
    def step(client):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.socket.setblocking(False)
        for _ in range(200):
            client.socket.send(admit(memory=1 << 50))
    self.again(step)


def refusals(self):
    self.again(lambda client: [client.ask(admit(memory=1 << 50, flags=NO_WAIT)) for _ in range(20)])


def admitted_and_gone(self):
    self.again(lambda client: client.send(admit(memory=16 * MIB)))


def queue_filled(self):
    """Waits in line as often as it may, leaves, and comes again."""
    while self.going():
        clients = self.clients(80)
        for client in clients:
            with contextlib.suppress(*GONE):
                client.socket.send(admit(memory=300 * MIB))
        time.sleep(0.1)
        for client in clients:
            client.close()


def tenants_churned(self):
    def step(client):
        granted = client.ask(admit(memory=16 * MIB, flags=NO_WAIT))
        if granted is not None and granted.kind == ADMITTED:
            client.ask(message(RELEASE, struct.pack("<QQ", granted.tenant, granted.key)))
    self.again(step)


def all_tenants(self):
    """Every tenant it may have, with a process each."""
    for _ in range(80):
        if not self.going():
            break
        with contextlib.suppress(*GONE):
            self.registered(memory=8 * MIB)
    while self.going():
        time.sleep(0.05)


def names(self):
    """Names and commands that forge lines, colours, markup and paths."""
    ugly = [b"\x1b[2J\x1b[31m", b"x\nlevel=error event=forged uid=0", b"\xff\xfe\x80", b"a\rb\tc", b"\"><script>", b"../../etc/passwd",
            b"%s%n%x", b"\x00hidden", b"=" * 32, "\u202e\u2066".encode()]

    def step(client):
        name = self.random.choice(ugly)
        granted = client.ask(admit(memory=16 * MIB, flags=NO_WAIT, name=name[:32], profile=self.random.choice([b"", name[:32]])))
        if granted is not None and granted.kind == ADMITTED:
            with contextlib.closing(self.client()) as shim:
                shim.ask(register(granted.tenant, granted.key, name[:32]))
    self.again(step)


def fields_out_of_range(self):
    def step(client):
        pick = self.random.choice
        client.ask(admit(memory=pick([0, 1, 2 ** 64 - 1, 64 * MIB]), tenant_class=pick([0, 3, 4, 200]), sm=pick([0, 100, 101, 2 ** 32 - 1]),
                         memory_min=pick([0, 2 ** 64 - 1, 128 * MIB]), wait_ns=pick([0, 1, 2 ** 64 - 1]), gpus=pick([0, 1, 8, 2 ** 32 - 1]),
                         flags=pick([0, 1, 2, 4, 255, 2 ** 32 - 1]), sm_mode=pick([0, 1, 2, 3, 255]),
                         pinned=[self.random.randbytes(16) for _ in range(pick([0, 1, 8]))]))
    self.again(step)


def bits_flipped(self):
    good = [admit(memory=16 * MIB, flags=NO_WAIT), message(SNAPSHOT_REQUEST), register(1, 1), command(SUSPEND, 1), gate_note(GATE_WANT, 0, 1),
            moved(0, 1, 1), memory_want(0, 1, MIB)]

    def step(client):
        for _ in range(10):
            data = bytearray(self.random.choice(good))
            for _ in range(self.random.randrange(1, 6)):
                data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            client.send(bytes(data))
    self.again(step)


def any_order(self):
    """Well-made messages in any order."""
    def step(client):
        for _ in range(10):
            body = self.random.randbytes(self.random.choice([0, 8, 16, 24, 32, 64, 256]))
            client.send(message(self.random.choice(KINDS), body))
    self.again(step)


def asked_twice(self):
    """A second wish while the first one waits, and a third."""
    def step(client):
        for data in (admit(memory=300 * MIB), admit(memory=300 * MIB), register(1, 1), command(SUSPEND, 1), message(SNAPSHOT_REQUEST)):
            client.send(data)
        client.receive()
    self.again(step)


def halves_shut(self):
    def step(client):
        client.send(admit(memory=self.random.choice([16, 300]) * MIB))
        client.socket.shutdown(self.random.choice([socket.SHUT_RD, socket.SHUT_WR]))
        client.receive()
    self.again(step)


def wrong_registrations(self):
    self.again(lambda client: [client.ask(register(self.random.randrange(1, 40), self.random.randrange(1 << 60))) for _ in range(20)])


def default_tenants(self):
    self.again(lambda client: client.ask(register(0, 0)))


def killed_in_registration(self):
    def work():
        client = self.client()
        granted = client.ask(admit(memory=16 * MIB, flags=NO_WAIT))
        while granted is not None and granted.kind == ADMITTED:
            self.client(keep=True).ask(register(granted.tenant, granted.key))
    while self.going():
        pids = self.children(8, work)
        time.sleep(self.random.uniform(0.0, 0.03))
        self.end(pids)


def fork_bomb(self):
    """Bounded: a hundred processes at a time, each of which asks and registers."""
    while self.going():
        pids = self.children(100, lambda: (self.registered(), time.sleep(0.05)))
        self.end(pids)


def too_many_processes(self):
    """More processes of one tenant than it has places."""
    _, granted = self.tenant()
    if granted is None:
        return

    def work():
        self.client(keep=True).ask(register(granted.tenant, granted.key))
        time.sleep(60)
    pids = self.children(140, work)
    while self.going():
        time.sleep(0.05)
    self.end(pids)


def zombies(self):
    """Registered processes that have ended and are never collected."""
    self.children(60, self.registered)
    while self.going():
        time.sleep(0.05)


def many_mappings(self):
    """Processes with 65,000 mappings that register and lose their connection, again and again."""
    def work():
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        for i in range(65000):  # neighbours of other rights are not joined
            libc.mmap(None, 4096, mmap.PROT_READ if i % 2 else mmap.PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        client, granted = self.tenant()
        while granted is not None and self.going():
            with contextlib.closing(self.client()) as shim:
                reply = shim.ask(register(granted.tenant, granted.key))
                for descriptor in reply.fds if reply is not None else ():
                    os.close(descriptor)
    pids = self.children(2, work)
    while self.going():
        time.sleep(0.05)
    self.end(pids)


def many_descriptors(self):
    """Processes with thousands of open descriptors that register and lose their connection."""
    for _ in range(3000):
        with contextlib.suppress(OSError):
            os.open("/dev/null", os.O_RDONLY)
    client, granted = self.tenant()
    if granted is not None:
        self.again(lambda shim: [os.close(d) for d in getattr(shim.ask(register(granted.tenant, granted.key)), "fds", ())])


def long_command_line(self):
    """A process whose name, command line and environment are as large as the kernel allows."""
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from suite import hostile as h\n"
            "s = h.Hostile(sys.argv[2], 1, 1.5)\n"
            "s.again(lambda c: (c.ask(h.admit(memory=16 << 20, flags=1)), c.ask(h.message(h.SNAPSHOT_REQUEST))))")
    suite = str(pathlib.Path(__file__).resolve().parents[1])
    while self.going():
        pids = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(OSError):
                    os.execve(sys.executable, [sys.executable, "-c", code, suite, str(self.path), *["\x1b" * 100000] * 8],
                              {"X" * 1000: "y" * 100000, "SLUICE_TENANT": "z" * 100000})
                os._exit(1)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)


def commands(self):
    """Suspends, resumes, moves and drains everything that there may be."""
    def step(client):
        for verb in (SUSPEND, RESUME, MOVE, DRAIN, UNDRAIN, 77):
            with contextlib.suppress(*GONE):
                client.ask(command(verb, self.random.randrange(0, 20), self.random.randbytes(16), self.random.choice([0, 1, 255])))
    self.again(step)


def own_suspended(self):
    """Suspends and resumes a tenant of its own that never obeys."""
    shim, _ = self.registered(flags=NO_WAIT | SWAP)
    def step(client):
        client.socket.settimeout(0.05)
        for verb in (SUSPEND, RESUME):
            client.ask(command(verb, self.random.randrange(1, 20)))
    self.again(step)


def activity_of_others(self):
    self.again(lambda client: [client.ask(message(ACTIVITY_REQUEST, struct.pack("<Q", tenant))) for tenant in range(0, 30)])


def reports(self):
    self.again(lambda client: [client.send(message(JOB_REPORT, self.random.randbytes(size))) for size in (8, 64, 128, 256, 512)])


def notes(self, kinds):
    """A registered process that sends notes of any epoch, to any GPU."""
    shim, _ = self.registered()
    if shim is None:
        return
    shim.socket.setblocking(False)
    while self.going():
        try:
            shim.send(self.random.choice(kinds)(self.random.choice([0, 0, 0, 1, 7, 2 ** 32 - 1]), self.random.choice([0, 1, 2, 3, 2 ** 29])))
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            break


def gate_notes(self):
    notes(self, [lambda gpu, epoch, kind=kind: gate_note(kind, gpu, epoch, 2 ** 63) for kind in (GATE_WANT, GATE_IDLE, DRAINED, HELD)])


def memory_notes(self):
    notes(self, [lambda gpu, epoch: memory_want(gpu, epoch, 2 ** 63), lambda gpu, epoch: moved(gpu, epoch, 2 ** 63, self.random.choice([0, 1, -5]))])


def moves_unordered(self):
    """Answers to orders that were not given, from a process in each of its jobs, as fast as the broker reads them."""
    shims = []
    for _ in range(60):
        shim, _ = self.registered(memory=48 * MIB)
        if shim is None:
            break
        shim.socket.setblocking(False)
        shims.append(shim)
    data = moved(0, 1 << 3 | 1 | 2, 1)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while self.going():
            for shim in shims:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        shim.socket.send(data)


def pages(self, spoil):
    """A registered process that spoils its claims page while it asks for turns."""
    shim, reply = self.registered(flags=NO_WAIT | SWAP)
    if shim is None:
        return
    page = mmap.mmap(reply.fds[1], CLAIMS_BYTES)
    shim.socket.setblocking(False)
    epoch = 0
    while self.going():
        spoil(self, page, reply.fds[1])
        with contextlib.suppress(*GONE):
            epoch += 1
            shim.send(gate_note(self.random.choice([GATE_WANT, DRAINED, GATE_IDLE]), 0, epoch % 64))


def page_noise(self):
    pages(self, lambda me, page, _: page.__setitem__(slice(0, CLAIMS_BYTES), me.random.randbytes(CLAIMS_BYTES)))


def page_ones(self):
    pages(self, lambda _, page, __: page.__setitem__(slice(0, CLAIMS_BYTES), b"\xff" * CLAIMS_BYTES))


def page_emptied(self):
    libc = ctypes.CDLL(None)
    pages(self, lambda _, __, fd: libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(CLAIMS_BYTES)))


def page_cut(self):
    def cut(_, __, fd):
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
    pages(self, cut)


def never_drains(self):
    """Takes turns and gives none back; its page says that it is in the middle of a launch."""
    shim, _ = self.registered(sm=50)
    if shim is None:
        return
    while self.going():
        with contextlib.suppress(*GONE):
            for epoch in range(16):
                shim.send(gate_note(GATE_WANT, 0, epoch))
        time.sleep(0.02)


def stopped_processes(self):
    """Registered processes that are stopped for good."""
    pids = self.children(20, lambda: (self.registered(), os.kill(os.getpid(), signal.SIGSTOP)))
    while self.going():
        time.sleep(0.05)
    self.end(pids)


def polled_elsewhere(self):
    """One connection in the hands of many processes, which all write and read at once."""
    client = self.client()

    def work():
        while self.going():
            with contextlib.suppress(*GONE):
                client.send(message(SNAPSHOT_REQUEST))
                client.receive()
    pids = self.children(6, work)
    work()
    self.end(pids)


ATTACKS = {name: globals()[name] for name in (
    "snapshots_unread snapshots_from_forty wrong_keys other_versions rubbish empty_messages half_messages oversized silent connects "
    "descriptors descriptor_rings slow_readers small_buffers refusals admitted_and_gone queue_filled tenants_churned all_tenants names "
    "fields_out_of_range bits_flipped any_order asked_twice halves_shut wrong_registrations default_tenants killed_in_registration "
    "fork_bomb too_many_processes zombies many_mappings many_descriptors long_command_line commands own_suspended activity_of_others "
    "reports gate_notes memory_notes moves_unordered page_noise page_ones page_emptied page_cut never_drains stopped_processes polled_elsewhere").split()}
