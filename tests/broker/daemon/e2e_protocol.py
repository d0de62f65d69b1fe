"""The broker against clients that break the rules: it answers with a text, counts, disconnects, and serves the others."""

import os
import random
import socket
import struct

import e2e_support
from e2e_support import *


class Malformed(BrokerTest):
    def setUp(self):
        self.server = self.broker()

    def errors(self):
        return self.server.status()["broker"]["protocol_errors"]

    def test_each_is_refused_counted_and_disconnected(self):
        good = admit()
        cases = {
            "empty header": message(ADMIT),
            "one byte": b"x",
            "another magic": b"ABCD" + good[4:],
            "size field too large": good[:8] + struct.pack("<I", 4000) + good[12:],
            "size field too small": good[:8] + struct.pack("<I", 16) + good[12:],
            "cut short": header(ADMIT, len(good) - 8) + good[16:-8],
            "too long": header(ADMIT, len(good) + 8) + good[16:] + bytes(8),
            "longer than any message": header(ADMIT, 2000) + bytes(1984),
            "unknown type": message(99),
            "type zero": message(0),
            "a reply": message(DONE),
            "no such class": admit(tenant_class=4),
            "no such mode": admit(sm_mode=3),
            "share above 100": admit(sm=101),
            "no GPU at all": admit(gpus=0),
            "more GPUs than a tenant may have": admit(gpus=9),
            "pinned to the same GPU twice": admit(gpus=2, pinned=(bytes(16), bytes(16))),
            "unknown flags": admit(flags=32),
            "name without an end": admit(name=b"x" * 32),
            "gate message before registration": gate_note(GATE_WANT, 0, 1),
            "move reported before registration": moved(0, 1, 5, 0, 0),
            "memory wanted before registration": memory_want(0, 0, 1),
            "no such command": command(6),
            "command with flags": command(SUSPEND, flags=1),
            "report of rank 5 of 2": message(JOB_REPORT, struct.pack("<QQQQQQdII", 1, 1, 0, 0, 0, 0, 1.0, 5, 2)),
        }
        for count, (name, data) in enumerate(cases.items(), 1):
            with self.subTest(name):
                client = self.client(self.server)
                self.assert_refused(client.ask(data), MALFORMED)
                self.assertIsNone(client.receive(), "the connection must be closed")
                self.assertEqual(self.errors(), count)

    def test_refusals_and_errors_are_told_apart(self):
        waiting = admit(4 * GIB, gpus=2)
        self.assertEqual(self.client(self.server).ask(waiting).kind, ADMITTED)
        order = self.client(self.server)
        self.assertEqual(order.ask(admit(1 * GIB)).kind, QUEUED)
        self.assert_refused(order.ask_while_queued(admit(1 * GIB)), MALFORMED)
        for client, data, code in (
            (self.client(self.server), b"x", MALFORMED),
            (self.client(self.server), message(99), MALFORMED),
            (self.client(self.server), message(0), MALFORMED),
            (self.client(self.server), message(ADMIT, version=VERSION + 1), OTHER_VERSION),
            (self.client(self.server), admit(5 * GIB), TOO_LARGE),
            (self.client(self.server), admit(1 * GIB, flags=NO_WAIT), NO_ROOM),
        ):
            self.assert_refused(client.ask(data), code)
        broker = self.server.status()["broker"]
        self.assertEqual({k: n for k, n in broker["refusals_by_reason"].items() if n},
                         {"malformed": 4, "other_version": 1, "memory_too_large": 1, "no_room": 1})
        self.assertEqual(broker["protocol_errors_by_kind"], {"garbage": 1, "version": 1, "malformed": 2, "order": 1})
        self.assertEqual(sum(broker["refusals_by_reason"].values()), broker["refusals"])
        self.assertEqual(sum(broker["protocol_errors_by_kind"].values()), broker["protocol_errors"])

    def test_another_version_is_told_both_versions(self):
        client = self.client(self.server)
        reply = client.ask(message(ADMIT, b"?" * 100, request=77, version=VERSION + 1))
        self.assert_refused(reply, OTHER_VERSION)
        self.assertEqual(reply.request, 77)
        self.assertIn(f"version {VERSION}", reply.text)
        self.assertIn(f"version {VERSION + 1}", reply.text)
        self.assertIsNone(client.receive())

    def test_descriptors_are_refused_and_do_not_pile_up(self):
        before = self.server.descriptors()
        for _ in range(50):
            client = self.client(self.server)
            self.assert_refused(client.ask(admit(), fds=[0, 0]), MALFORMED)
            client.close()
        wait_until("all descriptors are closed", lambda: self.server.descriptors() <= before)

    def test_second_question_while_the_first_waits(self):
        holder = self.client(self.server)
        self.assertEqual(holder.ask(admit(4 * GIB, gpus=2)).kind, ADMITTED)
        waiting = self.client(self.server)
        self.assertEqual(waiting.ask(admit()).kind, QUEUED)
        self.assert_refused(waiting.ask_while_queued(admit()), MALFORMED)
        self.assertIsNone(waiting.receive())
        wait_until("the queue is empty", lambda: len(self.server.tenants()) == 1)

    def test_random_datagrams(self):
        generator = random.Random(20)
        for _ in range(400):
            client = self.client(self.server)
            kind = generator.randrange(0, 17)
            sizes = [0, 16, 48, 96, 248, generator.randrange(0, 1000)]
            body = generator.randbytes(generator.choice(sizes))
            try:
                client.send(message(kind, body) if generator.random() < 0.8 else body or b"\0")
            except (BrokenPipeError, ConnectionResetError):
                pass
            client.close()
        self.assertEqual(self.client(self.server).ask(admit(64 * MIB)).kind, ADMITTED)
        self.assertIsNone(self.server.process.poll())

    def test_who_does_not_read_is_disconnected(self):
        deaf = self.client(self.server)
        deaf.socket.setblocking(False)

        def thrown_out():
            try:
                deaf.send(message(SNAPSHOT_REQUEST))
            except BlockingIOError:
                pass  # the broker is behind with reading, not we with sending
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        wait_until("the broker gives up on it", lambda: any(thrown_out() for _ in range(1000)))
        self.assertEqual(self.client(self.server).ask(admit(64 * MIB)).kind, ADMITTED)


    def assert_unread_do_not_pile_up(self, question, kind):
        """Answers with descriptors live until they are read: their number must not be the asker's choice."""
        deaf = self.client(self.server)
        for _ in range(200):
            try:
                deaf.send(question)
            except (BrokenPipeError, ConnectionResetError):
                break
        self.client(self.server).ask(message(SNAPSHOT_REQUEST))  # the broker has come past the others
        kept = 0
        while (reply := deaf.receive()) is not None and reply.kind == kind:
            kept += 1
            for fd in reply.fds:
                os.close(fd)
        self.assertLess(kept, 50)
        self.assertIsNone(self.server.process.poll())

    def test_unread_snapshots_do_not_pile_up(self):
        self.assert_unread_do_not_pile_up(message(SNAPSHOT_REQUEST), SNAPSHOT_REPLY)

    def test_unread_pages_do_not_pile_up(self):
        tenant = self.client(self.server).ask(admit()).tenant
        self.assert_unread_do_not_pile_up(message(ACTIVITY_REQUEST, struct.pack("<Q", tenant)), ACTIVITY_REPLY)

    def test_who_may_act_for_a_tenant_gets_its_claims_page(self):
        founder, asker = self.client(self.server), self.client(self.server)
        granted = founder.ask(admit())
        reply = asker.ask(message(ACTIVITY_REQUEST, struct.pack("<Q", granted.tenant)))
        self.assertEqual((reply.kind, len(reply.fds)), (ACTIVITY_REPLY, 1))
        self.assertEqual(os.pread(reply.fds[0], 4, 0), b"SCP1")
        os.close(reply.fds[0])
        self.assert_refused(asker.ask(message(ACTIVITY_REQUEST, struct.pack("<Q", 999))), UNKNOWN_TENANT)
        self.assert_refused(self.client(self.server).ask(message(ACTIVITY_REQUEST)), MALFORMED)

    def test_refusals_do_not_fill_the_log(self):
        client = self.client(self.server)
        for _ in range(20000):
            self.assertEqual(client.ask(message(RELEASE, struct.pack("<QQ", 1, 2))).code, UNKNOWN_TENANT)
        self.assertLess(self.server.log().count("event=refused"), 10000)

    def test_a_grant_that_nobody_received_is_taken_back(self):
        # The asker lives on but gave up: nobody knows the key, so nobody could ever use or end the job.
        for _ in range(20):
            client = self.client(self.server)
            client.send(admit())
            client.close()
        wait_until("nothing is promised", lambda: not self.server.tenants())

    def test_a_grant_that_nobody_read_is_taken_back(self):
        client = self.client(self.server)
        client.send(admit())
        wait_until("the answer has come", lambda: not client.silent())
        self.assertEqual(len(self.server.tenants()), 1)
        client.close()
        wait_until("nothing is promised", lambda: not self.server.tenants())

    def test_a_grant_that_was_read_outlives_its_connection(self):
        client = self.client(self.server)
        self.assertEqual(client.ask(admit()).kind, ADMITTED)
        client.close()
        other = self.client(self.server)  # answered after the close has been seen
        self.assertEqual(other.ask(message(RELEASE, struct.pack("<QQ", 1, 2))).code, UNKNOWN_TENANT)
        self.assertEqual(len(self.server.tenants()), 1)

    def test_hostile_names_reach_nobody(self):
        names = (b"\x1b[2J\x1b]0;x\x07", b"\x9b31m\xff\xfe", b"\xc2\x9b2J", b'a" level=error\nb', b"\xe2\x80\xaeexe")
        clients = [self.client(self.server) for _ in names]
        for client, name in zip(clients, names):
            self.assertEqual(client.ask(admit(memory=64 * MIB, name=name)).kind, ADMITTED)
        table = subprocess.run([program("sluice"), "status", "--socket", self.server.socket], env=environment(),
                               capture_output=True, timeout=PATIENCE_S, check=True).stdout
        for text in (table, self.server.log_path.read_bytes(), json.dumps(self.server.status()).encode()):
            decoded = text.decode()  # valid UTF-8
            self.assertFalse([c for c in decoded if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")])


class Identity(BrokerTest):
    def test_keys_and_ids(self):
        server = self.broker()
        founder = self.client(server)
        granted = founder.ask(admit())
        self.assertNotEqual(granted.key, 0)
        for tenant, key in ((granted.tenant, granted.key ^ 1), (granted.tenant, 0), (granted.tenant + 1, granted.key)):
            self.assert_refused(self.client(server).ask(register(tenant, key)), UNKNOWN_TENANT)
        self.assert_refused(self.client(server).ask(message(RELEASE, struct.pack("<QQ", granted.tenant, 5))),
                            UNKNOWN_TENANT)
        reply = self.client(server).ask(register(granted.tenant, granted.key))
        self.assertEqual(reply.kind, REGISTERED)
        self.assertEqual(reply.host_pid, os.getpid())
        self.assertEqual(len(reply.fds), 2)
        for fd in reply.fds:
            os.close(fd)

    @unittest.skipUnless(os.geteuid() == 0, "only root can act as another user")
    def test_the_key_is_no_use_to_another_user(self):
        server = self.broker(open_to_all=True)
        granted = self.client(server).ask(admit())
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            reply = Client(server.socket).ask(register(granted.tenant, granted.key))
            os.write(writer, b"%d %d" % (reply.kind, getattr(reply, "code", 0)))
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(os.read(reader, 100), b"%d %d" % (REFUSED, UNKNOWN_TENANT))

    def test_lease_page_cannot_be_written(self):
        server = self.broker()
        client = self.client(server)
        granted = client.ask(admit())
        reply = self.client(server).ask(register(granted.tenant, granted.key))
        lease, claims = reply.fds
        import mmap
        with self.assertRaises(PermissionError):
            mmap.mmap(lease, 1152)
        with self.assertRaises(PermissionError):
            os.pwrite(lease, b"x", 0)
        mmap.mmap(claims, 147584).close()
        for fd in reply.fds:
            os.close(fd)

    def test_registering_twice_on_one_connection(self):
        server = self.broker()
        granted = self.client(server).ask(admit())
        shim = self.client(server)
        self.assertEqual(shim.ask(register(granted.tenant, granted.key)).kind, REGISTERED)
        self.assert_refused(shim.ask(register(granted.tenant, granted.key)), MALFORMED)
        self.assertIsNone(shim.receive())

    def test_gate_message_for_a_gpu_the_job_does_not_have(self):
        server = self.broker()
        granted = self.client(server).ask(admit())
        shim = self.client(server)
        shim.ask(register(granted.tenant, granted.key))
        self.assert_refused(shim.ask(gate_note(GATE_WANT, 1, 1)), MALFORMED)


if __name__ == "__main__":
    e2e_support.main()
