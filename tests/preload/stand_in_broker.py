"""A broker for one tenant that can be told to misbehave: not to accept, not to answer, not to read, to stop its heart.
It speaks the protocol as it is (broker/protocol)."""
import ctypes
import mmap
import os
import pathlib
import re
import socket
import struct
import threading
import time

MESSAGE_MAGIC, LEASE_MAGIC, CLAIMS_MAGIC = 0x4D434C53, 0x31504C53, 0x31504353
WORDS = pathlib.Path(__file__).parents[2] / "broker/protocol/words.h"
VERSION = int(re.search(r"\bkVersion = (\d+);", WORDS.read_text())[1])
REFUSED, REGISTER, REGISTERED, GATE_WANT, GATE_IDLE, DRAINED = 4, 5, 6, 7, 8, 9
OPEN = 1
ENTRY = 128  # offset of the first GPU in the lease page, and the size of each
LEASE_BYTES, CLAIMS_BYTES = 4096, (128 + 128 * (128 + 8 * 128) + 8 * 512 * 8 + 4095) // 4096 * 4096 + 128 * 19 * 4096 + 128 * 8 * 8
BATCH, EXCLUSIVE = 2, 3
TENANT = "0000000000000007-0123456789abcdef"


def refusal(text):
    """A message Refused; its code is that of an unknown tenant."""
    return struct.pack("<IHHIIIIQ320s", MESSAGE_MAGIC, VERSION, REFUSED, 352, 1, 3, 0, 0, text.encode())


class Page:
    def __init__(self, name, size):
        self.fd = os.memfd_create(name)
        os.ftruncate(self.fd, size)
        self.bytes = mmap.mmap(self.fd, size)

    def put(self, offset, form, *values):
        struct.pack_into("<" + form, self.bytes, offset, *values)

    def get(self, offset, form):
        return struct.unpack_from("<" + form, self.bytes, offset)[0]


class StandInBroker:
    def __init__(self, path, uuid, memory=0, tenant_class=BATCH, accepts=True, answers=True, backlog=8, percent=100,
                 is_open=True, context=0):
        self.path = str(path)
        self.lease, self.claims = Page("lease", LEASE_BYTES), Page("claims", CLAIMS_BYTES)
        self.lease.put(0, "IHBBQII", LEASE_MAGIC, VERSION, tenant_class, 0, 7, 1, os.getpid())
        self.lease.put(ENTRY, "16sQQQQQ", uuid, memory, memory, context, 0, 1_000_000)
        self.lease.put(ENTRY + 64, "I", percent)
        self.claims.put(0, "IHHII", CLAIMS_MAGIC, VERSION, 0, 128, 1)
        self.epoch = 0
        self.answers, self.reads, self.beats = answers, True, True
        self.registrations, self.notes = 0, []
        self.connections = []
        self.ended = threading.Event()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(self.path)
        self.socket.listen(backlog)
        self.gate(is_open)
        self.threads = [threading.Thread(target=self.beat, daemon=True)]
        if accepts:
            self.threads.append(threading.Thread(target=self.accept, daemon=True))
        self.beat_once()
        for thread in self.threads:
            thread.start()

    def gate(self, is_open):
        self.epoch += 1
        self.lease.put(ENTRY + 56, "I", self.epoch << 3 | (OPEN if is_open else 0))
        word = ctypes.addressof(ctypes.c_uint32.from_buffer(self.lease.bytes, ENTRY + 56))
        ctypes.CDLL(None).syscall(202, ctypes.c_void_p(word), 1, 1 << 30, None, None, 0)  # futex wake

    def hold(self, is_set):
        self.lease.put(ENTRY + 60, "I", int(is_set))

    def held(self, slot=0):
        return self.claims.get(128 + slot * (128 + 8 * 128) + 128 + 16, "Q")

    def beat_once(self):
        self.lease.put(24, "Q", time.monotonic_ns())

    def beat(self):
        while not self.ended.wait(0.1):
            if self.beats:
                self.beat_once()

    def accept(self):
        while not self.ended.is_set():
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.connections.append(connection)
            thread = threading.Thread(target=self.serve, args=(connection,), daemon=True)
            thread.start()

    def serve(self, connection):
        while not self.ended.is_set():
            try:
                message = connection.recv(1024)
            except OSError:
                return
            if not message:
                return
            kind, = struct.unpack_from("<H", message, 6)
            if kind == REGISTER and self.answers:
                answer = struct.pack("<IHHIIQII", MESSAGE_MAGIC, VERSION, REGISTERED, 32, 1, 7, self.registrations, 0)
                pid, = struct.unpack_from("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                self.claims.put(128 + self.registrations * (128 + 8 * 128), "I", pid)
                self.registrations += 1
                socket.send_fds(connection, [answer], [self.lease.fd, self.claims.fd])
            elif kind != REGISTER:
                self.notes.append(kind)
            while not self.reads and not self.ended.wait(0.05):
                pass

    def die(self):
        """As a killed broker: the sockets are closed, the pages stay what they were."""
        self.ended.set()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for connection in self.connections:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        os.unlink(self.path)
