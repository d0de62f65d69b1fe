"""Hostile clients of the broker (hostile.py), beside an honest program that takes memory, launches and frees.

The promises: every step of the honest program completes and its memory is given; the broker's memory, descriptors and log are
bounded, and come back; between a question and its answer the broker spends little processor time. All by the kernel's account."""

import os
import re
import time

from suite import hostile
from suite.cases import Case, Broken, hold
from suite.ground import MIB, PATIENCE_S, Ground, descendants, killed, promise_kept, settled

STRANGER = 65534
ATTACK_S = 2.0
DEVICE_MIB = 256
LARGER = {"moves_unordered": (4.0, 4096)}  # a real-time broker that does not sleep is ended by the kernel after 2 s
HONEST_MIB, PROMISE_MIB = 48, 40
MEMORY_ABOVE = 48 * MIB      # of the broker; a user's part of connections and places in line is far below
LOG_BYTES, LOG_BYTES_S = 64 * 1024, 16 * 1024  # a few lines a second of each kind
ANSWER_CPU_NS = 50e6         # five turns of at most 10 ms: one that is under way, other users', and its own
QUIET_CPU_NS = 0.2e9         # in a second after the attack


def text_of(function):
    line = (function.__doc__ or function.__name__.replace("_", " ")).strip().split("\n")[0].rstrip(".")
    return line[0].lower() + line[1:]


def attack_start(ground, function, seed, seconds):
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
        function(hostile.Hostile(ground.socket, seed, seconds))
    except BaseException as fault:  # noqa: told to the parent by the status
        os.write(2, f"{function.__name__}: {fault!r}\n".encode())
        os._exit(3)
    os._exit(0)


def answer_cpu_ns(ground):
    """What the broker spends between an honest question and its answer."""
    hold(ground.broker.poll() is None, f"the broker has ended with {ground.broker.poll()}")
    client = hostile.Client(ground.socket)
    client.socket.settimeout(PATIENCE_S)
    before = ground.broker_cpu_ns()
    try:
        reply = client.ask(hostile.message(hostile.SNAPSHOT_REQUEST))
    except OSError as fault:
        raise Broken(f"an honest question is not answered: {fault}") from fault
    finally:
        spent = ground.broker_cpu_ns() - before
        client.close()
    hold(reply is not None, "an honest question is answered by hanging up")
    for descriptor in reply.fds:
        os.close(descriptor)
    return spent


def honest_round(neighbour):
    promise_kept(neighbour, PROMISE_MIB, "during the attack")
    for line in ("step", "free"):
        word = neighbour.ask(line)
        hold(word == "done", f"the neighbour's {line} says {word}")


def log_clean(ground):
    """No control characters, and every line is the broker's own."""
    data = ground.log.read_bytes()
    bad = re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", data)
    hold(bad is None, f"the log has the byte {bad and bad[0]!r}")
    forged = [line for line in data.split(b"\n") if line.startswith(b"level=error event=forged")]
    hold(not forged, f"a client wrote a line of the log: {forged[:1]}")


def check(build, rng, name):
    seconds, device_mib = LARGER.get(name, (ATTACK_S, DEVICE_MIB))
    with Ground(build, device_mib) as ground:
        ground.directory.chmod(0o755)
        ground.start_broker(options=["--realtime"])  # as the unit does
        neighbour = ground.neighbour(HONEST_MIB)
        honest_round(neighbour)
        before, log_before, begin = ground.broker_figures(), ground.log_bytes(), time.monotonic()
        pid = attack_start(ground, hostile.ATTACKS[name], rng.randrange(1 << 30), seconds)
        spent, rounds, most = [], 0, before
        deadline = time.monotonic() + PATIENCE_S
        while (os.waitpid(pid, os.WNOHANG) == (0, 0)) and time.monotonic() < deadline:
            honest_round(neighbour)
            spent.append(answer_cpu_ns(ground))
            most = max(most, ground.broker_figures(), key=lambda figures: figures["rss"])
            rounds += 1
        strays = descendants(os.getpid()) - descendants(ground.broker.pid) - {ground.broker.pid, neighbour.process.pid}
        killed(strays)
        lasted = time.monotonic() - begin
        hold(ground.broker.poll() is None, f"the broker has ended with {ground.broker.poll()}")
        logged = ground.log_bytes() - log_before
        settled(lambda: ground.broker_figures()["descriptors"] <= before["descriptors"] + 4,
                lambda: f"the broker has {ground.broker_figures()['descriptors']} descriptors, and had {before['descriptors']}")
        quiet = ground.broker_cpu_ns()
        time.sleep(1)  # the figure is processor time in a second that is over
        quiet = ground.broker_cpu_ns() - quiet
        numbers = {"rounds": rounds, "answer_cpu_ms": round(sorted(spent)[len(spent) * 9 // 10] / 1e6, 2) if spent else None,
                   "rss_above_mib": (most["rss"] - before["rss"]) // MIB, "log_bytes": logged, "quiet_cpu_ms": round(quiet / 1e6, 1)}
        hold(rounds > 0, "no honest round was completed")
        hold(most["rss"] - before["rss"] <= MEMORY_ABOVE, f"the broker's memory grew by {most['rss'] - before['rss']} bytes")
        hold(logged <= LOG_BYTES + LOG_BYTES_S * lasted, f"{logged} bytes of log in {lasted:.1f} s")
        hold(sorted(spent)[len(spent) * 9 // 10] <= ANSWER_CPU_NS, f"the broker spent {max(spent) / 1e6:.0f} ms on one answer, {numbers}")
        hold(quiet <= QUIET_CPU_NS, f"after the attack the broker spends {quiet / 1e6:.0f} ms of a second")
        log_clean(ground)
        honest_round(neighbour)
        neighbour.end()
        settled(lambda: ground.used() == 0, lambda: f"at the end {ground.used()} bytes are left")
        return numbers


def cases():
    return [Case("broker", name, text_of(function), lambda build, rng, name=name: check(build, rng, name), quick=name == "rubbish")
            for name, function in hostile.ATTACKS.items()]
