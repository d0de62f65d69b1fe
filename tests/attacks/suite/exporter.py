"""Hostile clients of the exporter's port, and tenants that lie in the pages that it reads, beside an honest scrape.

The promises: an honest scrape is answered while the attack goes on or soon after it; the exporter's memory and descriptors are
bounded and come back; nothing but metrics and the wall page is served; it lives. By the kernel's account of the process."""

import http.client
import mmap
import os
import pathlib
import re
import resource
import socket
import struct
import threading
import time

from suite import hostile
from suite.broker import attack_start
from suite.cases import Case, Undecided, hold
from suite.ground import MIB, PATIENCE_S, Ground, settled

ATTACK_S = 3.0
MEMORY_ABOVE = 24 * MIB   # 128 connections of 16 KiB and their answers are far below
DESCRIPTORS_ABOVE = 128   # the connections that the exporter has at most (kWebConnections)


class Client:
    """What an attack has in hand."""

    def __init__(self, ground, port, rng):
        self.ground, self.port, self.random, self.until = ground, port, rng, time.monotonic() + ATTACK_S

    def going(self):
        return time.monotonic() < self.until

    def connect(self, timeout_s=0.5):
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)

    def again(self, step):
        while self.going():
            try:
                with self.connect() as link:
                    step(link)
            except OSError:
                pass

    def many(self, number, begin, step, pause_s=0.1):
        """So many connections at once; each is given a step now and then, and replaced when it is closed."""
        links = [None] * number
        while self.going():
            for i in range(number):
                if not self.going():
                    break
                try:
                    if links[i] is None:
                        links[i] = self.connect()
                        links[i].sendall(begin)
                    step(links[i])
                except OSError:
                    if links[i] is not None:
                        links[i].close()
                    links[i] = None
            time.sleep(pause_s)
        for link in links:
            if link is not None:
                link.close()


GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


def slow_headers(self):
    """Forty connections that send a byte now and then."""
    self.many(40, b"GET /met", lambda link: link.send(b"r"))


def slow_readers(self):
    """Forty connections that ask and never read."""
    self.many(40, GET + b"\r\n", lambda link: None)


def silent(self):
    """Two hundred connections that say nothing."""
    self.many(200, b"", lambda link: None)


def wrong_hosts(self):
    """Hosts of others, empty ones, and several at once."""
    hosts = [b"evil.example", b"", b"[::", b"a" * 4000, b"localhost\r\nHost: evil.example", b"127.0.0.1:1@evil", b"\xff\xfe"]

    def step(link):
        link.sendall(b"GET / HTTP/1.1\r\nHost: " + self.random.choice(hosts) + b"\r\n\r\n")
        link.recv(65536)
    self.again(step)


def huge_header(self):
    """One header line of 4 MiB."""
    self.again(lambda link: (link.sendall(GET + b"X: " + b"a" * (4 * MIB)), link.recv(1024)))


def many_headers(self):
    """A hundred thousand header lines."""
    self.again(lambda link: (link.sendall(GET + b"X: y\r\n" * 100000), link.recv(1024)))


def huge_path(self):
    """A path of a megabyte."""
    self.again(lambda link: (link.sendall(b"GET /" + b"a" * MIB + b" HTTP/1.1\r\n\r\n"), link.recv(1024)))


def paths_above(self):
    """Paths that lead out of what is served."""
    paths = [b"/../../../../etc/passwd", b"//etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/metrics/../../../etc/passwd", b"/\x00/etc/passwd",
             b"file:///etc/passwd", b"/wall/..%5c..%5cetc/passwd"]

    def step(link):
        link.sendall(b"GET " + self.random.choice(paths) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = link.recv(65536)
        hold(b"root:" not in answer, f"the exporter serves a file of the system: {answer[:200]!r}")
    self.again(step)


def lengths(self):
    """Bodies whose length is a lie."""
    def step(link):
        length = self.random.choice([b"-1", b"18446744073709551616", b"99999999", b"0x10", b""])
        link.sendall(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n")
        link.recv(1024)
    self.again(step)


def rubbish(self):
    """Random bytes."""
    self.again(lambda link: (link.sendall(self.random.randbytes(self.random.randrange(1, 20000))), link.recv(1024)))


def pipelined(self):
    """Thousands of requests in a row, of which no answer is read."""
    self.again(lambda link: link.sendall((GET + b"\r\n") * 5000))


def resets(self):
    """Connections that are reset in the middle."""
    def step(link):
        link.sendall(GET[:self.random.randrange(len(GET))])
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    self.again(step)


def methods(self):
    """Methods and versions that do not exist."""
    def step(link):
        link.sendall(self.random.choice([b"DELETE", b"CONNECT", b"X" * 3000, b"get", b"\x16\x03\x01"]) + b" / HTTP/9.9\r\n\r\n")
        link.recv(1024)
    self.again(step)


def half_closed(self):
    """Asks, and closes its own half at once."""
    self.again(lambda link: (link.sendall(GET + b"\r\n"), link.shutdown(socket.SHUT_WR), link.recv(100)))


def scrapes_all_the_time(self):
    """Eight clients that scrape without pause, of the 128 places."""
    def work():
        self.again(lambda link: (link.sendall(GET + b"\r\n"), link.recv(1 << 20)))
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# The rings of a process in its tenant's claims page (broker/protocol/pages.h).
SLOT_AT, SLOT_BYTES, OWN_PID_AT = 128, 128 + 8 * 128, 8
RING = 256
GPU_BYTES = 64 + RING * 32
ACTIVITY_AT, ACTIVITY_BYTES, WAITS_AT, GPUS_AT = 184320, 77824, 64 + 64 * 16, 64 + 64 * 16 + RING * 32
LIARS = 6


class Rings:
    """The rings of a registered process, which writes them itself."""

    def __init__(self, liar):
        self.link, reply = liar.registered(memory=8 * MIB)
        assert self.link is not None, "the liar was not registered"
        self.slot, self.at, self.written = SLOT_AT + reply.slot * SLOT_BYTES, ACTIVITY_AT + reply.slot * ACTIVITY_BYTES, 0
        self.page = mmap.mmap(reply.fds[1], ACTIVITY_AT + 128 * ACTIVITY_BYTES)
        self.own_pid_set(os.getpid())

    def own_pid_set(self, number):
        struct.pack_into("<I", self.page, self.slot + OWN_PID_AT, number)

    def fill(self, thread, settles):
        """A whole ring of gaps and one of waits, each the next microsecond's and of a thread with the next number."""
        now = time.monotonic_ns()
        for i in range(RING):
            number, begin = self.written + i, now - (RING - i) * 1000
            at = number % RING * 32
            struct.pack_into("<QQQII", self.page, self.at + WAITS_AT + at, number + 1, begin, begin + 900, thread(number), 2)
            struct.pack_into("<QQQII", self.page, self.at + GPUS_AT + 64 + at, number + 1, begin, begin + 900, thread(number + 1), 0)
        self.written += RING
        struct.pack_into("<Q", self.page, self.at, self.written)
        struct.pack_into("<QQ", self.page, self.at + GPUS_AT, self.written, now if settles else 1)


def liars(self, act):
    """So many tenants, each with a process that writes its rings until time is up. What they have written is read meanwhile."""
    def lie(liar):
        rings = Rings(liar)
        while liar.going():
            act(rings)
            time.sleep(0.005)
    children = [attack_start(self.ground, lie, k, 3 * ATTACK_S) for k in range(LIARS)]
    time.sleep(2 * ATTACK_S)
    unseen = re.search(r'(?m)^sluice_exporter_idle_unseen_tenants{reason="not_observed"} (\d+)$', scrape(self.port, 10))[1]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert not any(codes), f"the liars ended with {codes}"
    if unseen != "0":
        raise Undecided("the exporter could not look at the liars")


def rings_of_new_threads(self):
    """Tenants tell of gaps and waits of ever new threads, which no process has."""
    liars(self, lambda rings: rings.fill(lambda number: 1000 + number, True))


def rings_of_a_namespace(self):
    """The same from processes that say that they see themselves under another number."""
    def act(rings):
        rings.own_pid_set(1)
        rings.fill(lambda number: 1000 + number, True)
    liars(self, act)


def rings_never_settled(self):
    """Tenants tell of gaps and waits of their own thread, and never that anything is settled."""
    liars(self, lambda rings: rings.fill(lambda _: os.getpid(), False))


RINGS = (rings_of_new_threads, rings_of_a_namespace, rings_never_settled)
ATTACKS = (slow_headers, slow_readers, silent, wrong_hosts, huge_header, many_headers, huge_path, paths_above, lengths, rubbish, pipelined,
           resets, methods, half_closed, scrapes_all_the_time, *RINGS)


def scrape(port, timeout_s):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        link.request("GET", "/metrics")
        return link.getresponse().read().decode()
    finally:
        link.close()


def served(port):
    """An honest scrape, as patient as Prometheus that tries again."""
    last, deadline = "", time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            text = scrape(port, 10)
            if "\nsluice_up 1\n" in text:
                return
            last = text[:100]
        except (OSError, http.client.HTTPException) as fault:
            last = repr(fault)
        time.sleep(0.1)
    hold(False, f"no honest scrape was answered for {PATIENCE_S} s: {last}")


def figures(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd"))


def check(build, rng, function):
    # An exporter without rights looks only at programs of its own user, and one of root's gives its rights up. BPF goes on.
    flags = () if function in RINGS and os.geteuid() == 0 else ("--no-bpf",)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Ground(build, 256) as ground:
        ground.directory.chmod(0o755)
        ground.start_broker()
        exporter = ground.launch([ground.build / "bin/sluice-exporter", *flags, "--listen", "127.0.0.1:0", "--socket", ground.socket])
        line = ""
        while "serving " not in line:
            line = exporter.stderr.readline()
            if not line:
                raise AssertionError("the exporter did not start")
        port = int(re.search(r":(\d+)", line)[1])
        served(port)
        before = figures(exporter.pid)
        client, faults = Client(ground, port, rng), []

        def attack():
            try:
                function(client)
            except BaseException as fault:  # noqa: handed on below
                faults.append(fault)
        thread = threading.Thread(target=attack)
        thread.start()
        most = before
        while thread.is_alive():
            most = tuple(map(max, most, figures(exporter.pid)))
            thread.join(0.1)
        if faults:
            raise faults[0]
        hold(exporter.poll() is None, f"the exporter has ended with {exporter.poll()}")
        served(port)
        settled(lambda: figures(exporter.pid)[1] <= before[1] + 8,
                lambda: f"the exporter has {figures(exporter.pid)[1]} descriptors, and had {before[1]}")
        numbers = {"rss_above_mib": (most[0] - before[0]) // MIB, "descriptors_above": most[1] - before[1]}
        hold(most[0] - before[0] <= MEMORY_ABOVE, f"the exporter's memory grew by {most[0] - before[0]} bytes")
        hold(most[1] - before[1] <= DESCRIPTORS_ABOVE, f"the exporter had {most[1]} descriptors, {before[1]} before")
        return numbers


def cases():
    return [Case("exporter", function.__name__, function.__doc__.rstrip(".")[0].lower() + function.__doc__.rstrip(".")[1:],
                 lambda build, rng, function=function: check(build, rng, function), quick=function is rubbish) for function in ATTACKS]
