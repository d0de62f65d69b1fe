"""A program that acts towards the broker as the shim does, one command per line of standard input, one answer per line.

register | await | fork-register | fork-obey | obey | hand-over | word GPU | hold GPU | room GPU | flags GPU | held GPU |
moved GPU RESULT BYTES | memory GPU BYTES | limits GPU | window GPU | want GPU | idle GPU | drain GPU | claim GPU held|busy|movable|swapped NANOS-OR-BYTES | detach |
exec | pid | environ NAME | exit CODE. A child of fork-register registers again on SIGUSR1. `register` answers "queued
POSITION REASON AHEAD" where it waits in line, and `await` the next word from the broker. `held` and `moved` acknowledge the present hold word, in the
slot and by message. `drain` reports the present epoch as drained, in the slot and by message.
`obey`: from now on it reports every drain, acknowledges every hold, carries out every order and registers again whenever it is hung up on; fork-obey
is fork-register with a child that does, and that ends with its parent.
"""

import ctypes
import mmap
import os
import pathlib
import re
import select
import signal
import socket
import struct
import sys
import threading
import time

MAGIC = 0x4D434C53
WORDS = pathlib.Path(__file__).resolve().parents[3] / "broker/protocol/words.h"
VERSION = int(re.search(r"\bkVersion = (\d+);", WORDS.read_text())[1])
QUEUED, REGISTER, REGISTERED, GATE_WANT, GATE_IDLE, DRAINED, HELD, MOVED, MEMORY_WANT = 2, 5, 6, 7, 8, 9, 15, 16, 17
PR_SET_PDEATHSIG = 1
LEASE_BYTES, CLAIMS_BYTES = 128 + 8 * 128, 128 + 128 * (128 + 8 * 128)
FIELDS = {"held": 16, "context": 24, "peak": 32, "busy": 40, "launches": 48, "movable": 112, "swapped": 120}
DRAINED_EPOCH, HELD_EPOCH, MOVED_WORD = 92, 100, 108
SET, OUT, IN = 1, 2, 4
OPEN = 1


class Shim:
    def __init__(self):
        self.socket = None
        self.lease = None
        self.claims = None
        self.slot = None

    def register(self):
        tenant, key = (int(part, 16) for part in os.environ["SLUICE_TENANT"].split("-"))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(os.environ["SLUICE_SOCKET"])
        self.socket.send(struct.pack("<IHHIIQQ16x32s", MAGIC, VERSION, REGISTER, 80, 1, tenant, key, b"program"))
        return self.registered()

    def registered(self):
        data, fds, _, _ = socket.recv_fds(self.socket, 1024, 2)
        kind = struct.unpack_from("<H", data, 6)[0]
        if kind == QUEUED:
            position, reason = struct.unpack_from("<IB", data, 16)
            return f"queued {position} {reason} {data[40:72].rstrip(bytes(1)).decode()}".strip()
        if kind != REGISTERED:
            return "refused " + data[32:].split(b"\0")[0].decode()
        _, self.slot, _ = struct.unpack("<QII", data[16:])
        self.lease = mmap.mmap(fds[0], LEASE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        self.claims = mmap.mmap(fds[1], CLAIMS_BYTES)
        for fd in fds:
            os.close(fd)
        return f"slot {self.slot}"

    def entry(self, gpu, at):
        return struct.unpack_from("<I", self.lease, 128 + 128 * gpu + at)[0]

    def word(self, gpu):
        return self.entry(gpu, 56)

    def hold(self, gpu):
        return self.entry(gpu, 60)

    def room(self, gpu):
        return self.entry(gpu, 72)

    def limits(self, gpu):
        at = 128 + 128 * gpu
        memory_max, memory_min = struct.unpack_from("<QQ", self.lease, at + 16)
        return f"{memory_max} {memory_min} {struct.unpack_from('<I', self.lease, at + 64)[0]}"

    def offset(self, gpu):
        return 128 + self.slot * 1152 + 128 + 128 * gpu

    def note(self, kind, gpu):
        self.socket.send(struct.pack("<IHHIIIIQ", MAGIC, VERSION, kind, 32, 0, gpu, self.word(gpu) >> 3, 0))

    def drain(self, gpu):
        struct.pack_into("<I", self.claims, self.offset(gpu) + DRAINED_EPOCH, self.word(gpu) >> 3)
        if self.socket:
            self.note(DRAINED, gpu)

    def held(self, gpu):
        epoch = self.hold(gpu) >> 3
        struct.pack_into("<I", self.claims, self.offset(gpu) + HELD_EPOCH, epoch)
        if self.socket:
            self.socket.send(struct.pack("<IHHIIIIQ", MAGIC, VERSION, HELD, 32, 0, gpu, epoch, 0))

    def moved(self, gpu, result, size):
        word = self.hold(gpu)
        if result == 0:
            struct.pack_into("<I", self.claims, self.offset(gpu) + MOVED_WORD, word)
        if self.socket:
            self.socket.send(struct.pack("<IHHIIIIiIQQ", MAGIC, VERSION, MOVED, 48, 0, gpu, word, result, 0, size, 1000))

    def memory(self, gpu, size):
        self.socket.send(struct.pack("<IHHIIIIQ", MAGIC, VERSION, MEMORY_WANT, 32, 0, gpu, self.room(gpu), size))

    def stored(self, gpu, at):
        return struct.unpack_from("<I", self.claims, self.offset(gpu) + at)[0]

    def obey_gpu(self, gpu):
        lease, word = self.word(gpu), self.hold(gpu)
        if not lease & OPEN and self.stored(gpu, DRAINED_EPOCH) != lease >> 3:
            self.drain(gpu)
        if not word & SET:
            return
        if self.stored(gpu, HELD_EPOCH) != word >> 3:
            self.held(gpu)
        if word & (OUT | IN) and self.stored(gpu, MOVED_WORD) != word:
            movable = struct.unpack_from("<Q", self.claims, self.offset(gpu) + FIELDS["movable"])[0]
            self.claim(gpu, "swapped", movable if word & OUT else 0)
            self.moved(gpu, 0, movable)

    def obey(self):
        """For ever. A message that cannot be sent is in the slot all the same."""
        while True:
            try:
                if self.socket is None:
                    self.register()
                while select.select([self.socket], [], [], 0)[0]:
                    if not self.socket.recv(1024):
                        raise ConnectionResetError
                self.obey_gpu(0)
            except OSError:
                if self.socket is not None:
                    self.socket.close()
                self.socket = None
                time.sleep(0.02)
            time.sleep(0.002)

    def claim(self, gpu, field, value):
        struct.pack_into("<Q", self.claims, self.offset(gpu) + FIELDS[field], value)


def fork_register(obeys=False):
    """A child that registers by itself and lives until it is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        shim = Shim()  # kept: its pages and its socket live as long as the child
        signal.signal(signal.SIGUSR1, lambda *_: shim.register())
        os.write(writer, shim.register().encode())
        os.close(writer)
        if obeys:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody else would end it
            shim.claim(0, "held", 1 << 20)
            shim.obey()
        while True:
            signal.pause()
    os.close(writer)
    with os.fdopen(reader) as word:
        return f"{child} {word.read()}"


def hand_over(shim):
    """A child registers and goes on with the commands; the founder ends."""
    reader, writer = os.pipe()
    if os.fork() != 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    answer = shim.register()
    os.close(reader)
    os.close(writer)
    return answer


def execute(shim, words):
    command, arguments = words[0], words[1:]
    if command == "hello":
        return "hello"
    if command == "register":
        return shim.register()
    if command == "await":
        return shim.registered()
    if command == "hold":
        return str(shim.hold(int(arguments[0])))
    if command == "room":
        return str(shim.room(int(arguments[0])))
    if command == "flags":
        return str(shim.entry(int(arguments[0]), 68))
    if command == "fork-register":
        return fork_register()
    if command == "fork-obey":
        return fork_register(obeys=True)
    if command == "obey":
        threading.Thread(target=shim.obey, daemon=True).start()
        return "done"
    if command == "hand-over":
        return hand_over(shim)
    if command == "word":
        return str(shim.word(int(arguments[0])))
    if command == "window":
        return str(struct.unpack_from("<Q", shim.lease, 128 + 128 * int(arguments[0]) + 40)[0])
    if command == "limits":
        return shim.limits(int(arguments[0]))
    if command in ("want", "idle"):
        shim.note(GATE_WANT if command == "want" else GATE_IDLE, int(arguments[0]))
    elif command == "held":
        shim.held(int(arguments[0]))
    elif command == "moved":
        shim.moved(*map(int, arguments))
    elif command == "memory":
        shim.memory(*map(int, arguments))
    elif command == "drain":
        shim.drain(int(arguments[0]))
    elif command == "claim":
        shim.claim(int(arguments[0]), arguments[1], int(arguments[2]))
    elif command == "detach":
        shim.socket.close()
        shim.socket = None
    elif command == "exec":
        os.execv(sys.executable, [sys.executable, __file__])
    elif command == "pid":
        return str(os.getpid())
    elif command == "environ":
        return os.environ.get(arguments[0], "")
    elif command == "closed":  # whether the broker has closed the connection
        return str(bool(select.select([shim.socket], [], [], 0)[0]))
    elif command == "exit":
        sys.exit(int(arguments[0]))
    else:
        return f"error: no command {command}"
    return "done"


def lines():
    # Unbuffered: after exec the next program must find what this one has not read.
    pending = b""
    while True:
        byte = os.read(0, 1)
        if not byte:
            return
        if byte == b"\n":
            yield pending.decode()
            pending = b""
        else:
            pending += byte


def main():
    # The kernel hangs up a process group that is orphaned while one of it is stopped, as these tests stop processes.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    shim = Shim()
    for line in lines():
        try:
            print(execute(shim, line.split()), flush=True)
        except Exception as fault:  # the driver of the test wants to know, whatever it was
            print(f"error: {fault!r}", flush=True)


if __name__ == "__main__":
    main()
