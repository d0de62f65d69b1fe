"""kill -9 of clients at any instant of their lives: what they had is back as soon as the broker hears of it, to the last byte and
descriptor. How soon is printed (from before the kill to the broker's own line); that it comes to pass is what is tested.
"""

import mmap
import os
import random
import re
import signal

import e2e_support
from e2e_support import *

ROUNDS = 150
HELD = 16  # ClaimsGpu.held_bytes
SLOTS, SLOT_BYTES, GPU_BYTES = 128, 128 + 8 * 128, 128


def life(path):
    """Asks, registers, claims memory and takes turns until it is killed."""
    granted = Client(path).ask(admit(memory=64 * MIB))
    if granted is None or granted.kind != ADMITTED:
        return
    shim = Client(path)
    joined = shim.ask(register(granted.tenant, granted.key))
    if joined is None or joined.kind != REGISTERED:
        return
    lease = mmap.mmap(joined.fds[0], 0, prot=mmap.PROT_READ)
    claims = mmap.mmap(joined.fds[1], 0)
    struct.pack_into("<Q", claims, 128 + joined.slot * SLOT_BYTES + 128 + HELD, 50 * MIB)
    word = lambda: struct.unpack_from("<I", lease, 128 + 56)[0]
    while True:
        seen = word()
        if seen & OPEN:
            shim.send(gate_note(GATE_IDLE, 0, seen >> 3))
        else:
            shim.send(gate_note(DRAINED, 0, seen >> 3))
            shim.send(gate_note(GATE_WANT, 0, seen >> 3))
        deadline = time.monotonic() + 0.05
        while word() == seen and time.monotonic() < deadline:
            time.sleep(0.0005)


class Kills(BrokerTest):
    def test_clients_at_any_instant(self):
        seed = int(os.environ.get("SLUICE_STORM_SEED", random.SystemRandom().randrange(1 << 32)))
        print(f"seed {seed} (SLUICE_STORM_SEED replays the choices)", flush=True)
        choose = random.Random(seed)
        server = self.broker("[scheduler]\nquantum = \"5ms\"\n")
        stays = self.job(server, "--memory", "128MiB")
        stays.ask("register")
        stays.ask(f"claim 0 held {100 * MIB}")
        before = [(g["promised_bytes"], g["held_bytes"]) for g in server.status()["gpus"]]
        descriptors = server.descriptors()
        killed = {}
        people = []
        for _ in range(ROUNDS):
            pid = os.fork()
            if pid == 0:
                try:
                    life(server.socket)
                finally:
                    os._exit(0)
            people.append(pid)
            time.sleep(choose.random() * 0.02)  # any instant will do; this spreads them
            if len(people) > choose.randrange(4):
                pid = people.pop(choose.randrange(len(people)))
                killed[pid] = time.monotonic()
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for pid in people:
            killed[pid] = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        wait_until("the others are gone", lambda: len(server.tenants()) == 1)
        self.assertEqual([(g["promised_bytes"], g["held_bytes"]) for g in server.status()["gpus"]], before)
        wait_until("all descriptors are closed", lambda: server.descriptors() <= descriptors)
        self.assertEqual(stays.ask("hello"), "hello")
        heard = {}
        for moment, pid in re.findall(r"time=([\d.]+) .*event=(?:process_ended|founder_ended) .*\bpid=(\d+)", server.log()):
            heard[int(pid)] = max(heard.get(int(pid), 0), float(moment))
        took = sorted(1000 * (heard[pid] - killed[pid]) for pid in killed if pid in heard)
        self.assertGreater(len(took), ROUNDS // 3, "most had come far enough to be known")
        print(f"{len(took)} of {ROUNDS} had a job; from the kill to the broker's word, ms: median {took[len(took) // 2]:.2f}, "
              f"p99 {took[int(len(took) * 0.99)]:.2f}, most {took[-1]:.2f}", flush=True)


if __name__ == "__main__":
    e2e_support.main()
