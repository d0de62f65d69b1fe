"""A claims page that lies, that is emptied, or that its tenant tries to take away: whatever it does, nobody else's account,
promise, turn or admission changes, the broker lives, and people can see whose figures are not to be trusted."""

import ctypes
import mmap
import os
import random

import e2e_support
from e2e_program import CLAIMS_BYTES
from e2e_support import *

LIBC = ctypes.CDLL(None, use_errno=True)
PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
SLOT, GPU = 128, 128 + 128  # of the first slot in the page; of its first GPU in the page
HELD_AT, BUSY_AT, MOVABLE_AT, SWAPPED_AT = GPU + 16, GPU + 40, GPU + 112, GPU + 120
LEASE_WORD, HOLD_WORD, ROOM_WORD = 56, 60, 72  # in an entry of the lease page


class Liar:
    """A tenant whose process has the pages, and no shim to keep it honest."""

    def __init__(self, server):
        self.founder, self.shim = server.client(), server.client()
        granted = self.founder.ask(admit(memory=256 * MIB, flags=NO_WAIT | SWAP, name=b"liar", pinned=(gpu_of(server),)))
        self.tenant, self.key = granted.tenant, granted.key
        joined = self.shim.ask(register(granted.tenant, granted.key))
        self.fd = joined.fds[1]
        self.lease = mmap.mmap(joined.fds[0], 0, prot=mmap.PROT_READ)
        self.page = mmap.mmap(self.fd, CLAIMS_BYTES)

    def close(self):
        self.founder.close()
        self.shim.close()
        os.close(self.fd)

    def put(self, at, value):
        struct.pack_into("<Q", self.page, at, value)

    def fill(self, data):
        self.page[:] = data[:CLAIMS_BYTES]

    def empty(self):
        if LIBC.fallocate(self.fd, PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(CLAIMS_BYTES)) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")


def gpu_of(server):
    return bytes.fromhex(server.status()["gpus"][0]["uuid"][4:].replace("-", ""))


class Lies(BrokerTest):
    def setUp(self):
        self.server = self.broker('[memory]\noversell = 4.0\nswap_quantum = "50ms"\n')
        self.honest = self.job(self.server, "--gpu", "0", "--memory", "256MiB", "--name", "honest")
        self.honest.ask("register")
        self.honest.ask(f"claim 0 held {64 * MIB}")
        self.honest.ask("claim 0 busy 1000")
        self.liar = Liar(self.server)
        self.addCleanup(self.liar.close)

    def row(self, name):
        [row] = [tenant for tenant in self.server.tenants() if tenant["name"] == name]
        return row

    def promised(self):
        return [(gpu["promised_bytes"], gpu["promised_max_bytes"], gpu["tenants"]) for gpu in self.server.status()["gpus"]]

    def others(self):
        """What of the neighbour and of the GPU no word of the liar may change."""
        honest = self.row("honest")
        part = honest["gpus"][0]
        return (self.promised(), honest["trusted"], honest["state"], part["held_bytes"], part["busy_ns"], part["memory_max_bytes"])

    def assert_others_go_on(self, what):
        """The neighbour gets its turn, memory and company are admitted as before, and the GPU's sum is possible."""
        gpu = self.server.status()["gpus"][0]
        self.assertGreaterEqual(gpu["held_bytes"], 64 * MIB, what)
        self.assertLessEqual(gpu["held_bytes"], (64 + 256) * MIB, what)
        self.honest.ask("want 0")
        wait_until(f"{what}: the neighbour has its turn", self.honest.is_open)
        self.honest.ask("idle 0")
        newcomer = self.client(self.server)
        reply = newcomer.ask(admit(memory=GIB, flags=NO_WAIT, name=b"new", pinned=(gpu_of(self.server),)))
        self.assertEqual(reply.kind, ADMITTED, what)
        self.assertEqual(newcomer.ask(message(RELEASE, struct.pack("<QQ", reply.tenant, reply.key))).kind, DONE)

    def distrusted(self, kind):
        wait_until(f"that is seen: {kind}", lambda: kind in self.row("liar")["distrust"])
        row = self.row("liar")
        self.assertFalse(row["trusted"])
        self.assertEqual(self.server.status()["broker"]["untrusted_tenants"], 1)
        table = self.sluice("status", "--socket", self.server.socket).stdout
        self.assertEqual(table.count("NOT TRUSTED"), 1)
        self.assertRegex(self.server.log(), rf"event=claims_lie tenant={row['tenant']} name=liar uid=\d+ kinds=\S*{kind}")

    def test_honest_claims_are_trusted(self):
        before = self.others()
        self.liar.put(HELD_AT, 256 * MIB)
        self.liar.put(MOVABLE_AT, 200 * MIB)
        self.liar.put(BUSY_AT, 10 ** 6)
        time.sleep(2.5)  # ten looks and more
        self.assertTrue(self.row("liar")["trusted"])
        self.assertEqual(self.server.status()["broker"]["untrusted_tenants"], 0)
        self.assertEqual(self.others(), before)

    def test_more_than_there_is(self):
        before = self.others()
        for at in (HELD_AT, MOVABLE_AT, SWAPPED_AT):
            self.liar.put(at, 2 ** 64 - 1)
        self.distrusted("memory")
        self.assertEqual(self.others(), before)
        self.assert_others_go_on("more than there is")

    def test_parts_above_the_whole(self):
        self.liar.put(HELD_AT, 64 * MIB)
        self.liar.put(MOVABLE_AT, 65 * MIB)
        self.distrusted("memory")

    def test_time_that_runs_backwards(self):
        before = self.others()
        self.liar.put(BUSY_AT, 10 ** 6)
        time.sleep(0.6)
        self.liar.put(BUSY_AT, 1)
        self.distrusted("time")
        self.assertEqual(self.others(), before)
        self.assert_others_go_on("time")

    def test_somebody_elses_slot(self):
        self.page_is_seen_as("slot", lambda: self.liar.put(SLOT, 1))

    def test_an_emptied_page(self):
        self.page_is_seen_as("page", self.liar.empty)

    def test_a_page_full_of_ones(self):
        self.page_is_seen_as("page", lambda: self.liar.fill(b"\xff" * CLAIMS_BYTES))

    def page_is_seen_as(self, kind, spoil):
        before = self.others()
        spoil()
        self.distrusted(kind)
        self.assertEqual(self.others(), before)
        self.assert_others_go_on(kind)

    def test_its_size_is_sealed(self):
        for size in (0, 4096, CLAIMS_BYTES * 4):
            with self.assertRaises(PermissionError):
                os.ftruncate(self.liar.fd, size)
        self.assertTrue(self.row("liar")["trusted"], "nothing has changed")

    def test_noise(self):
        """Random pages, one after the other, while the tenant asks for turns and memory and answers holds, and leaves."""
        before = self.others()
        random.seed(7)
        word = lambda at: struct.unpack_from("<I", self.liar.lease, 128 + at)[0]
        for _ in range(60):
            self.liar.fill(random.randbytes(CLAIMS_BYTES))
            self.liar.shim.send(gate_note(GATE_WANT, 0, word(LEASE_WORD) >> 3))
            self.liar.shim.send(memory_want(0, word(ROOM_WORD), 2 ** 40))
            self.liar.shim.send(gate_note(HELD, 0, word(HOLD_WORD) >> 3))
            self.liar.shim.send(gate_note(DRAINED, 0, word(LEASE_WORD) >> 3))
        self.distrusted("page")
        self.assertEqual(self.others(), before)
        self.liar.shim.close()
        self.assert_others_go_on("noise")
        self.assertIsNone(self.server.process.poll(), "the broker lives")


if __name__ == "__main__":
    e2e_support.main()
