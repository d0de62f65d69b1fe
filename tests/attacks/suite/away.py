"""The broker is away: killed, stopped, or not the one that the program asks. A process of an announced tenant keeps its limits."""

import os
import signal
import subprocess
import time

from suite import memory
from suite.cases import Case, hold
from suite.ground import PATIENCE_S, Attack, Ground, descendants, promise_kept, settled

GRACE_S = 3  # gates open, and whatever else changes without a broker, two seconds after it has gone


class Away(memory.Memory):
    """The attacker waits for a line before it begins, so that the broker can go first."""

    def attack(self, options=()):
        return Attack(self.ground, memory.QUOTA_MIB, self.words, options, before=["sh", "-c", 'read line; exec "$@"', "sh"])

    def go(self, attack):
        attack.process.stdin.write(b"go\n")
        attack.process.stdin.flush()


def admitted(ground):
    """Until `sluice run` has become the program: it has asked the broker and waits for the line."""
    shells = lambda: [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if named(pid)]  # noqa: E731

    def named(pid):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as words:
                text = words.read()
        except OSError:
            return False
        return text.startswith(b"sh\0-c\0read line") and ground.attacker.encode() in text and pid in below
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        below = descendants(os.getpid())
        if shells():
            return
        time.sleep(0.01)
    raise AssertionError("the job was not admitted")


def broker_killed(ground):
    ground.kill_broker()


def broker_killed_and_waited(ground):
    ground.kill_broker()
    time.sleep(GRACE_S)  # the event is the passing of the grace itself


def broker_stopped(ground):
    ground.broker.send_signal(signal.SIGSTOP)


def broker_restarted(ground):
    ground.kill_broker()
    ground.start_broker(remembering=True)


def broker_restarted_anew(ground):
    ground.kill_broker()
    ground.start_broker()


def socket_removed(ground):
    os.unlink(ground.socket)


def socket_replaced(ground):
    """Something else answers at the socket's path, and never says a word."""
    import socket
    os.unlink(ground.socket)
    ground.stand_in = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ground.stand_in.bind(str(ground.socket))
    ground.stand_in.listen(8)


EVENTS = {
    "killed": ("the broker is killed", broker_killed),
    "killed_and_waited": ("the broker is killed and its grace has passed", broker_killed_and_waited),
    "stopped": ("the broker is stopped", broker_stopped),
    "restarted": ("the broker is killed and another one remembers", broker_restarted),
    "restarted_anew": ("the broker is killed and another one remembers nothing", broker_restarted_anew),
    "socket_removed": ("the broker's socket is removed", socket_removed),
    "socket_replaced": ("something else listens at the broker's socket", socket_replaced),
}
WHEN = {"first": "before the tenant's first call", "middle": "while it takes memory", "child": "before its children's first call"}


def check(build, rng, event, when, way, shape_name):
    shape = memory.SHAPES[shape_name]
    sizes = memory.SIZES["mixed"]
    words = ["--way", way, "--shape", shape_name, "--sizes", ",".join(map(str, sizes)), "--seed", rng.randrange(1 << 20)]
    with Ground(build, memory.QUOTA_MIB + memory.NEIGHBOUR_MIB + memory.SPARE_MIB) as ground:
        ground.start_broker(remembering=True)
        away = Away(ground, words, shape, sizes, memory.WAYS[way])
        away.begin()
        attack = away.attack()
        admitted(ground)
        if when == "first":
            EVENTS[event][1](ground)
        away.go(attack)
        if when != "first":
            attack.wait_full(1, patience_s=rng.uniform(0.02, 0.4) if when == "middle" else PATIENCE_S)
            EVENTS[event][1](ground)
        away.numbers["whole"] = attack.wait_full(shape.reports, patience_s=30)
        away.numbers["taken_bytes"] = attack.taken()
        away.rest()
        # A broker that starts opens a context to learn what one takes (docs/administrators.md).
        away.peak(contexts=2 if event.startswith("restarted") else 1)
        promise_kept(away.neighbour, memory.PROMISE_MIB, "afterwards")
        away.rest("beside the neighbour")
        ground.end_attackers()
        settled(lambda: away.tenant() == 0, lambda: f"after the end {away.tenant()} bytes are left")
        if ground.broker is not None:
            ground.broker.send_signal(signal.SIGCONT)
        return away.numbers


def check_setting(build, rng, setting):
    """The program changes its own environment before its first call."""
    sizes = memory.SIZES["mixed"]
    shape = memory.SHAPES["one"]
    with Ground(build, memory.QUOTA_MIB + memory.NEIGHBOUR_MIB + memory.SPARE_MIB) as ground:
        ground.start_broker()
        words = ["--way", "alloc", "--sizes", ",".join(map(str, sizes))]
        for option, value in setting:
            words += [option, value.replace("OTHER", str(ground.directory / "other.sock"))]
        other = other_broker(ground) if any("OTHER" in value for _, value in setting) else None
        away = memory.Memory(ground, words, shape, sizes, memory.WAYS["alloc"])
        away.begin()
        attack = away.attack()
        attack.wait_full(1)
        away.numbers["taken_bytes"] = attack.taken()
        away.rest()
        away.peak()
        promise_kept(away.neighbour, memory.PROMISE_MIB, "afterwards")
        ground.end_attackers()
        settled(lambda: away.tenant() == 0, lambda: f"after the end {away.tenant()} bytes are left")
        if other:
            other.terminate()
        return away.numbers


def other_broker(ground):
    """A broker of the same user that promises everything."""
    reader, writer = os.pipe()
    path = ground.directory / "other.toml"
    path.write_text("")
    process = subprocess.Popen([ground.build / "bin/sluiced", "--socket", ground.directory / "other.sock", "--config", path,
                                "--log", ground.directory / "other.log", "--ready-fd", str(writer)],
                               env=ground.environment, pass_fds=[writer], stdout=subprocess.DEVNULL)
    ground.children.append(process)
    os.close(writer)
    with os.fdopen(reader) as ready:
        hold(ready.read() == "ready\n", "the other broker did not start")
    return process


SETTINGS = {
    "tenant_unset": ("unsets SLUICE_TENANT", [("--unsetenv", "SLUICE_TENANT")]),
    "tenant_made_up": ("sets a SLUICE_TENANT that is none", [("--setenv", "SLUICE_TENANT=77-1234567890abcdef")]),
    "tenant_rubbish": ("sets a SLUICE_TENANT of rubbish", [("--setenv", "SLUICE_TENANT=../../\x7f")]),
    "tenant_default": ("claims to be its user's default tenant", [("--setenv", "SLUICE_TENANT=0-0")]),
    "socket_unset": ("unsets SLUICE_SOCKET", [("--unsetenv", "SLUICE_SOCKET")]),
    "socket_nowhere": ("names a socket that is not there", [("--setenv", "SLUICE_SOCKET=/nonexistent/sluiced.sock")]),
    "socket_long": ("names a socket with a path too long", [("--setenv", "SLUICE_SOCKET=/" + "x" * 300)]),
    "socket_others": ("names another broker of the same user", [("--setenv", "SLUICE_SOCKET=OTHER")]),
    "default_at_others": ("claims to be the default tenant of another broker",
                          [("--setenv", "SLUICE_SOCKET=OTHER"), ("--setenv", "SLUICE_TENANT=0-0")]),
    "untold_at_others": ("has no tenant at another broker",
                         [("--setenv", "SLUICE_SOCKET=OTHER"), ("--unsetenv", "SLUICE_TENANT")]),
    "limits_own": ("sets limits of its own above its quota", [("--setenv", "SLUICE_MEMORY=1GiB"), ("--setenv", "SLUICE_SM=100%")]),
    "limits_alone": ("sets limits of its own and has no tenant",
                     [("--unsetenv", "SLUICE_TENANT"), ("--unsetenv", "SLUICE_SOCKET"), ("--setenv", "SLUICE_MEMORY=1GiB")]),
    "preload_unset": ("unsets LD_PRELOAD", [("--unsetenv", "LD_PRELOAD")]),
    "everything_unset": ("unsets all of it", [("--unsetenv", "LD_PRELOAD"), ("--unsetenv", "SLUICE_TENANT"), ("--unsetenv", "SLUICE_SOCKET"),
                                              ("--unsetenv", "CUDA_VISIBLE_DEVICES")]),
}
COMBINATIONS = [(event, when) for event in EVENTS for when in WHEN]


def cases():
    found = []
    ways, shapes = ("alloc", "async", "mapped", "module"), {"first": ("one", "eight", "exec"), "middle": ("eight", "tree", "threads"),
                                                             "child": ("exec_tree", "exec", "spawned")}
    for i, (event, when) in enumerate(COMBINATIONS):
        way, shape = ways[i % len(ways)], shapes[when][i // 3 % 3]
        found.append(Case("away", f"{event}.{when}.{way}.{shape}",
                          f"{EVENTS[event][0]} {WHEN[when]}; {memory.WAYS[way].text}, {memory.SHAPES[shape].text}",
                          lambda build, rng, c=(event, when, way, shape): check(build, rng, *c), quick=(event, when) == ("killed", "middle")))
    for name, (text, setting) in SETTINGS.items():
        found.append(Case("away", f"setting.{name}", f"the program {text} before its first call",
                          lambda build, rng, setting=setting: check_setting(build, rng, setting)))
    return found
