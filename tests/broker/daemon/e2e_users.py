"""Two users at one broker: whatever one of them does in quantity, the other one is served. The other user is root here, since
only root can act as somebody else; without root nothing can be shown, and that is said."""

import fcntl
import os
import pwd
import signal
import stat
import unittest.mock

import e2e_support
from e2e_support import *

STRANGER = 65534
TURNED_AWAY = (BrokenPipeError, ConnectionResetError, ConnectionRefusedError)


class Stranger:
    """Code in a process of another user: runs what(report), whose reports are read line by line."""

    def __init__(self, test, what, uid=STRANGER):
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                what(lambda *words: os.write(writer, (" ".join(map(str, words)) + "\n").encode()))
            except BaseException as fault:  # noqa: the parent must hear of it
                os.write(writer, f"error {fault!r}\n".encode())
            os._exit(0)
        os.close(writer)
        self.lines = os.fdopen(self.reader)
        test.addCleanup(self.end)

    def heard(self):
        if not select.select([self.lines], [], [], PATIENCE_S)[0]:
            raise AssertionError("the stranger says nothing")
        line = self.lines.readline().strip()
        if line.startswith("error"):
            raise AssertionError(line)
        return line

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
            self.lines.close()


@unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
class Users(BrokerTest):
    def small(self, descriptors):
        """A broker that has few descriptors."""
        def program(name):
            return str(script) if name == "sluiced" else e2e_support.INSTALLATION / "bin" / name

        directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, directory, True)
        script = directory / "sluiced"
        script.write_text(f'#!/bin/sh\nulimit -n {descriptors}\nexec "{e2e_support.program("sluiced")}" "$@"\n')
        script.chmod(0o755)
        with unittest.mock.patch.object(e2e_support, "program", program):
            return self.broker(open_to_all=True)

    def served(self, server, times=1):
        """Somebody else asks, registers and has the GPU."""
        granted = self.client(server).ask(admit(memory=64 * MIB))
        self.assertEqual(granted.kind, ADMITTED, getattr(granted, "text", ""))
        for _ in range(times):
            self.registered(server, granted)

    def registered(self, server, granted):
        shim = self.client(server)
        reply = shim.ask(register(granted.tenant, granted.key))
        self.assertEqual(reply.kind, REGISTERED)
        for fd in reply.fds:
            os.close(fd)
        shim.send(gate_note(GATE_WANT, 0, 1))
        self.assertEqual(shim.ask(message(SNAPSHOT_REQUEST)).kind, SNAPSHOT_REPLY)
        shim.close()

    def test_anothers_activity_is_not_told(self):
        server = self.broker(open_to_all=True)
        founder = self.client(server)
        tenant = founder.ask(admit()).tenant

        def curious(report):
            client = Client(server.socket)
            reply = client.ask(message(ACTIVITY_REQUEST, struct.pack("<Q", tenant)))
            report(reply.kind, reply.code, len(reply.fds), reply.text)
            own = client.ask(admit(64 * MIB)).tenant
            reply = Client(server.socket).ask(message(ACTIVITY_REQUEST, struct.pack("<Q", own)))
            report(reply.kind, len(reply.fds))

        stranger = Stranger(self, curious)
        told = stranger.heard()
        self.assertTrue(told.startswith(f"{REFUSED} {NOT_ALLOWED} 0 "), told)
        self.assertIn("is another user's", told)
        self.assertEqual(stranger.heard(), f"{ACTIVITY_REPLY} 1")

    def test_the_exporters_user_may_look_at_everybody(self):
        self.assertEqual(pwd.getpwuid(STRANGER).pw_name, "nobody")
        server = self.broker('[exporter]\nuser = "nobody"\n', open_to_all=True)
        tenant = self.client(server).ask(admit()).tenant

        def look(report):
            reply = Client(server.socket).ask(message(ACTIVITY_REQUEST, struct.pack("<Q", tenant)))
            report(reply.kind, fcntl.fcntl(reply.fds[0], fcntl.F_GETFL) & os.O_ACCMODE)
            try:
                os.open(f"/proc/self/fd/{reply.fds[0]}", os.O_RDWR)
                report("opened to be written")
            except PermissionError:
                report("read only")

        exporter = Stranger(self, look)
        self.assertEqual(exporter.heard(), f"{ACTIVITY_REPLY} {os.O_RDONLY}")
        self.assertEqual(exporter.heard(), "read only")

        # A name of nobody gives nobody anything, and that is said; the rest works.
        server.config_write('[exporter]\nuser = "nobody-of-here"\n')
        server.process.send_signal(signal.SIGHUP)
        wait_until("it is read", lambda: server.status()["broker"]["reloads_ok"] == 1)
        self.assertIn("there is no user 'nobody-of-here' on this machine", server.log())

        def refused(report):
            reply = Client(server.socket).ask(message(ACTIVITY_REQUEST, struct.pack("<Q", tenant)))
            report(reply.kind, reply.code)

        self.assertEqual(Stranger(self, refused).heard(), f"{REFUSED} {NOT_ALLOWED}")
        other = Broker('[exporter]\nuser = "nobody-of-here"\n')
        self.addCleanup(other.stop)
        self.assertEqual(other.word, "ready\n")
        self.assertIn("event=config_account", other.log())

    def test_connections(self):
        server = self.small(264)

        def flood(report):
            held = []
            while True:
                client = Client(server.socket)
                try:
                    client.send(message(RELEASE, struct.pack("<QQ", 1, 1)))
                    reply = client.receive()
                except TURNED_AWAY:
                    continue
                if reply is not None and reply.kind == REFUSED and reply.code == USER_LIMIT:
                    report(len(held), reply.text)
                    break
                held.append(client)
            signal.pause()

        had = []
        for uid in (STRANGER, STRANGER - 1):  # each takes all that he gets
            held, text = Stranger(self, flood, uid).heard().split(" ", 1)
            had.append(int(held))
            self.assertIn("as many connections", text)
        self.assertGreater(had[0], 5)
        self.assertGreater(had[1], 1, "there is something for the second one")
        self.served(server)  # and for a third

    def test_requests_in_line_and_descriptors_of_two(self):
        server = self.small(400)
        full = self.client(server).ask(admit(memory=4000 * MIB))  # of this GPU there is no more
        self.assertEqual(full.kind, ADMITTED)

        def gather(report):
            waiting = []
            while True:
                client = Client(server.socket)
                try:
                    reply = client.ask(admit(memory=3000 * MIB))
                except TURNED_AWAY:
                    reply = None
                if reply is None or reply.kind == REFUSED:
                    report(len(waiting), getattr(reply, "text", "closed"))
                    break
                waiting.append(client)
            signal.pause()

        had = [int(Stranger(self, gather, uid).heard().split(" ", 1)[0]) for uid in (STRANGER, STRANGER - 1)]
        self.assertGreater(had[0], 5)
        self.assertGreater(had[1], 1)
        self.served(server)

    def test_a_request_that_waits_keeps_no_other_user_out(self):
        server = self.broker(open_to_all=True)
        gpus = len(server.status()["gpus"])

        def occupy(report):
            clients = [Client(server.socket) for _ in range(3)]
            running = clients[0].ask(admit(memory=512 * MIB, gpus=gpus))
            waiting = [clients[1].ask(admit(tenant_class=EXCLUSIVE, memory=0, gpus=gpus)), clients[2].ask(admit(memory=4000 * MIB))]
            report(running.kind, *[reply.kind for reply in waiting])
            signal.pause()

        sleeper = Stranger(self, occupy)
        self.assertEqual(sleeper.heard(), f"{ADMITTED} {QUEUED} {QUEUED}")
        other = Stranger(self, lambda report: (report(Client(server.socket).ask(admit(tenant_class=EXCLUSIVE, memory=0, gpus=gpus)).kind),
                                               signal.pause()), STRANGER - 1)
        self.assertEqual(other.heard(), str(QUEUED))
        self.served(server)

    def test_messages(self):
        server = self.broker(open_to_all=True)

        def flood(report):
            clients = [Client(server.socket) for _ in range(40)]
            for client in clients:
                client.socket.setblocking(False)
            sent = 0
            told = False
            while True:
                for client in clients:
                    try:
                        for _ in range(20):
                            client.send(message(RELEASE, struct.pack("<QQ", 1, 1)))
                            sent += 1
                        while client.receive() is not None:
                            pass
                    except BlockingIOError:
                        pass
                    except TURNED_AWAY:
                        client.close()
                        client.__init__(server.socket)
                        client.socket.setblocking(False)
                if sent > 2000 and not told:
                    told = True
                    report("flooding")

        stranger = Stranger(self, flood)
        self.assertEqual(stranger.heard(), "flooding")
        self.served(server, 20)
        self.assertEqual(os.waitpid(stranger.pid, os.WNOHANG), (0, 0), "it floods all the time")

    def test_descriptors(self):
        server = self.small(264)
        before = server.descriptors()

        def gather(report):
            granted = Client(server.socket).ask(admit(memory=64 * MIB))
            if granted.kind != ADMITTED:
                raise AssertionError(granted.text)
            for count in range(500):
                ready, told = os.pipe()
                if os.fork() == 0:
                    shim = Client(server.socket)
                    reply = shim.ask(register(granted.tenant, granted.key))
                    shim.close()  # unregistered, but alive: the broker keeps its pidfd
                    os.write(told, b"%d %s\n" % (reply.kind, getattr(reply, "text", "").encode()))
                    signal.pause()
                kind, text = os.read(ready, 1000).decode().split(" ", 1)
                os.close(ready)
                os.close(told)
                if int(kind) == REFUSED:
                    report(count, text.strip())
                    break
            signal.pause()

        os.setpgid(0, 0)
        count, text = Stranger(self, gather).heard().split(" ", 1)
        self.addCleanup(self.others_kill)
        self.assertGreater(int(count), 10)
        self.assertIn("file descriptors", text)
        self.assertLess(server.descriptors() - before, 264 // 2)
        self.served(server)
        self.others_kill()
        wait_until("everything is given back", lambda: server.descriptors() <= before + 10)

    def others_kill(self):
        """The stranger's children: whoever is in our group and his."""
        for name in os.listdir("/proc"):
            try:
                if (name.isdigit() and os.stat(f"/proc/{name}").st_uid == STRANGER and
                        os.getpgid(int(name)) == os.getpgid(0)):
                    os.kill(int(name), signal.SIGKILL)
            except ProcessLookupError:
                pass
            except FileNotFoundError:
                pass


@unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
class Owner(BrokerTest):
    def test_a_strangers_socket_is_not_asked(self):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-e2e-"))
        self.addCleanup(shutil.rmtree, directory, True)
        os.chown(directory, STRANGER, STRANGER)
        directory.chmod(0o755)

        def listen(report):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(str(directory / "broker.sock"))
            listener.listen()
            report("listening")
            while True:
                connection, _ = listener.accept()
                report("asked" if connection.recv(1024) else "nothing was said")

        stranger = Stranger(self, listen)
        self.assertEqual(stranger.heard(), "listening")
        self.assertTrue(stat.S_ISSOCK((directory / "broker.sock").stat().st_mode))
        for command in (["status"], ["run", "true"]):
            answer = self.sluice(command[0], "--socket", directory / "broker.sock", *command[1:])
            self.assertNotEqual(answer.returncode, 0)
            self.assertIn(f"belongs to uid {STRANGER}, which is neither root nor you", answer.stderr)
            self.assertEqual(stranger.heard(), "nothing was said")


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: only root can act as another user", flush=True)
    e2e_support.main()
