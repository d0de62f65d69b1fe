"""What a user can make large, slow or frequent: its memory map and its refused commands. Judged by what the broker reads, as
the kernel counts it, by the processor time of its turns and by its log; never by how long anything takes on this host."""

import ctypes
import os
import re
import select
import shutil
import signal
import sys
import tempfile

import e2e_support
from e2e_support import *

MAPPINGS = 60_000  # the kernel allows 65,530
CPU_MS_MAX = 100   # of one turn


class Victim:
    """A job of its own with a huge memory map, in a fork of the test: "register", "detach", "exec" by line."""

    def __init__(self, path):
        self.reader, writer = os.pipe()
        commands, self.writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            os.close(self.writer)
            try:
                self.live(path, commands, writer)
            finally:
                os._exit(1)
        os.close(writer)
        os.close(commands)

    @staticmethod
    def swell():
        root = tempfile.mkdtemp(prefix="sluice-e2e-maps-")
        path = os.path.join(root, *["x" * 250] * 14)  # each line of /proc/PID/maps has 3.6 KB
        os.makedirs(path)
        file = os.open(path + "/f", os.O_RDWR | os.O_CREAT)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        for _ in range(MAPPINGS):  # each is a mapping of its own: the kernel joins none of the same page
            if libc.mmap(None, 4096, 1, 1, file, 0) == ctypes.c_void_p(-1).value:
                break
        shutil.rmtree(root)

    def live(self, path, commands, writer):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        self.swell()
        admitting = Client(path)
        grant = admitting.ask(admit(name=b"victim"))
        os.write(writer, b"ready\n")
        client = None
        for line in os.fdopen(commands):
            if line == "register\n":
                client = Client(path)
                reply = client.ask(register(grant.tenant, grant.key))
                os.write(writer, b"registered\n" if reply.kind == REGISTERED else b"refused\n")
                for fd in reply.fds:
                    os.close(fd)
            elif line == "detach\n":
                client.close()
                os.write(writer, b"detached\n")
            elif line == "exec\n":
                os.execv("/bin/sleep", ["sleep", "1000"])

    def answer(self):
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self.reader], [], [], 2 * PATIENCE_S)
            byte = os.read(self.reader, 1) if ready else b""
            if not byte:
                raise AssertionError(f"it does not answer after {text}")
            text += byte
        return text.decode().strip()

    def ask(self, line):
        os.write(self.writer, line.encode() + b"\n")
        return self.answer()

    def send(self, line):
        os.write(self.writer, line.encode() + b"\n")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.reader)
        os.close(self.writer)


class Hostile(BrokerTest):
    def bytes_read(self, server):
        with open(f"/proc/{server.process.pid}/io", encoding="utf-8") as io:
            return int(re.search(r"rchar: (\d+)", io.read())[1])

    def assert_no_long_turn(self, server):
        for line in server.log().splitlines():
            if "event=slow_turn" in line:
                self.assertLess(float(re.search(r"cpu_ms=([\d.]+)", line)[1]), CPU_MS_MAX, line)

    def test_a_huge_memory_map_costs_the_broker_nothing(self):
        server = self.broker()
        victim = Victim(server.socket)
        self.addCleanup(victim.kill)
        self.assertEqual(victim.answer(), "ready")
        before = self.bytes_read(server)
        self.assertEqual(victim.ask("register"), "registered")
        self.assertEqual(self.job(server).ask("register").split()[0], "slot")
        # Whether it has called exec is looked at when it comes back and, until then, at heartbeats.
        self.assertEqual(victim.ask("detach"), "detached")
        self.assertEqual(victim.ask("register"), "registered")
        wait_until("it is the same member",
                   lambda: server.log().count("event=registered_again") == 1)
        self.assertEqual(victim.ask("detach"), "detached")
        self.assertEqual(self.job(server).ask("register").split()[0], "slot")
        victim.send("exec")
        wait_until("exec is noticed", lambda: "how=exec" in server.log())
        self.assertEqual(self.job(server).ask("register").split()[0], "slot")
        self.assertLess(self.bytes_read(server) - before, 1 << 20)
        self.assert_no_long_turn(server)

    def test_refused_commands_do_not_fill_the_log(self):
        server = self.broker()
        server.config_write("")
        server.config.write_text('[broker]\nlog_level = "info"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is reloaded", lambda: "event=reloaded" in server.log())
        size, asked = server.log_path.stat().st_size, 5000
        client = self.client(server)
        for _ in range(asked):
            self.assert_refused(client.ask(command(SUSPEND, tenant=1 << 40)), UNKNOWN_TENANT)
        text = server.log()
        for event in ("command", "command_done", "refused"):
            self.assertLess(text.count(f"event={event} "), asked / 4, event)

        def counted(event):
            """Lines that are there and lines that are told to be missing."""
            left = sum(map(int, re.findall(rf"event=lines_left_out of={event} uid=\d+ count=(\d+)", server.log())))
            return server.log().count(f"event={event} ") + left

        for event in ("command", "command_done", "refused"):
            wait_until(f"every {event} is counted", lambda: counted(event) == asked)
        self.assertLess(server.log_path.stat().st_size - size, asked * 100)
        self.assertEqual(self.job(server).ask("register").split()[0], "slot")
        self.assertIn("event=registered", server.log())


if __name__ == "__main__":
    e2e_support.main()
