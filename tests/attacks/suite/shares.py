"""Shares: a victim that always wants the GPU, beside every pattern of launches of an adversary.

The promise: over 2 to 10 s, as long as PATTERNS says for the pattern, the victim has its percentage of the device's time, less a
tolerance of 15 % of it. A case is broken if it fails twice and an honest tenant in the adversary's place does not fail. Both figures are the device's: the victim's busy time and the time that the device has lived. Kernels have a given time and are not
executed, so that the host's speed hardly counts; where it does, an honest tenant in the adversary's place shows it, and nothing is
said."""

import signal
import threading
import time

from suite.cases import Case, Undecided, hold
from suite.ground import PATIENCE_S, Attack, Ground, killed

TIMED = "k_tiny=20us/skip,k_mid=2ms/skip,k_long=100ms/skip,k_huge=700ms/skip,k_endless=3600s/skip"
DEVICE_MIB = 320
VICTIM_MIB, ADVERSARY_MIB = 32, 160
TOLERANCE = 0.15
WINDOW_NS = 2e9
WARM_NS = 1e9

PATTERNS = {  # text, windows of two seconds that make one figure: long kernels overshoot a turn and pay later
    "tiny": ("a flood of tiny kernels", 1),
    "tiny_many_streams": ("tiny kernels in 64 streams", 1),
    "mid_many_streams": ("kernels in 32 streams", 1),
    "long": ("kernels of ten quanta", 2),
    "long_many_streams": ("kernels of ten quanta in eight streams", 2),
    "huge": ("kernels of 700 ms, each below the limit of a runaway", 3),
    "huge_queued": ("four kernels of 700 ms queued at a time", 3),
    "waits_each": ("a launch and a wait, again and again", 1),
    "long_behind_tiny": ("a long kernel behind 300 tiny ones", 2),
    "endless": ("a kernel that never ends", 3),
    "endless_many": ("eight kernels that never end", 3),
    "graphs_small": ("graphs of four tiny kernels", 1),
    "graphs_deep": ("graphs of a hundred kernels in a row", 2),
    "graphs_wide": ("graphs of sixty kernels beside each other", 2),
    "graphs_long": ("graphs of six long kernels", 2),
    "graphs_new": ("a new graph for every launch", 1),
    "cooperative": ("cooperative launches", 1),
    "legacy_calls": ("the launch calls of old", 1),
    "launch_ex": ("cuLaunchKernelEx", 1),
    "during_captures": ("launches while another stream captures", 1),
    "idle_then_burst": ("bursts after pauses", 1),
    "exits_mid": ("processes that launch and end, again and again", 1),
    "exits_long": ("processes that end behind long kernels", 2),
    "crowd_mid": ("eight processes", 1),
    "crowd_tiny": ("sixteen processes with tiny kernels", 1),
    "crowd_long": ("six processes with long kernels", 2),
    "resets": ("contexts reset while everything is in flight", 1),
    "streams_destroyed": ("a stream for every launch, destroyed at once", 1),
    "priorities": ("streams of the highest priority", 1),
    "threads_many": ("twelve threads", 1),
    "dammed_up": ("work dammed up behind a word in memory", 1),
    "host_functions": ("host functions between kernels", 1),
    "holds": ("host functions of 30 ms between tiny kernels", 1),
    "copies": ("copies that hold a lease", 1),
    "fills": ("memsets that hold a lease", 1),
    "hogs_its_turn": ("pauses just below the idle grace", 1),
    "ranks_uneven": ("a gang with kernels of 700 ms on one GPU and next to none on the other", 3),
    "kept_endless": ("processes that die and leave a kernel without end to one that shares their address space", 5),
}
# What the victim asks for: options, its per cent of the GPU.
VICTIMS = {
    "half": (["--sm", "50"], 50),
    "most": (["--sm", "70"], 70),
    "little": (["--sm", "20"], 20),
    "equal": (["--sm", "50", "--sm-mode", "equal"], 50),
    "fixed": (["--sm", "40", "--sm-mode", "fixed"], 40),
    "inference": (["--sm", "50", "--class", "inference"], 50),
}


def stops(ground, attack_pids, random_s, end):
    """Stops all processes of the adversary at random moments, for half a second each."""
    while not end.wait(random_s()):
        pids = attack_pids()
        ground.stop(pids)
        end.wait(0.5)
        killed(pids, signal.SIGCONT)


def one_stops(ground, attack_pids, random_s, end):
    """One of several processes is stopped for good: it may hold what all of its tenant need."""
    end.wait(random_s())
    ground.stop(sorted(attack_pids())[-1:])
    end.wait()


HANDS = {"stops": stops, "one_stops": one_stops}


class Contest:
    def __init__(self, ground, rng, victim, adversary):
        self.ground, self.rng = ground, rng
        options, self.percent = VICTIMS[victim]
        self.victim = Attack(ground, VICTIM_MIB, ["--launches", "steady"], [*options, "--gpu", "0"]).wait_started()
        self.pattern, self.others, self.hands, self.tenants = adversary
        self.running = []
        self.end = threading.Event()

    def begin(self, pattern):
        self.running = [Attack(self.ground, ADVERSARY_MIB // self.tenants, ["--launches", pattern], self.others).wait_started()
                        for _ in range(self.tenants)]
        self.end = threading.Event()
        if self.hands and pattern == self.pattern:
            mine = lambda: self.ground.attackers() - {self.victim.process.pid}  # noqa: E731
            self.thread = threading.Thread(target=HANDS[self.hands], args=(self.ground, mine, lambda: self.rng.uniform(0.0, 0.3), self.end))
            self.thread.start()
        self.passes(WARM_NS)

    def stop(self):
        if self.hands:
            self.end.set()
            if hasattr(self, "thread"):
                self.thread.join()
        while pids := self.ground.attackers() - {self.victim.process.pid}:
            killed(pids)
            time.sleep(0.01)

    def figures(self):
        device = self.ground.devices()[0]
        mine = [row for row in device["processes"] if row["pid"] == self.victim.process.pid]
        return device["elapsed_ns"], sum(row["busy_ns"] for row in mine), device["busy_ns"]

    def passes(self, span_ns):
        """The per cent of the device's time that the victim had while that much of it passed."""
        began, busy, _ = self.figures()
        now, deadline = began, time.monotonic() + PATIENCE_S
        while now < began + span_ns and time.monotonic() < deadline:
            time.sleep(min(0.5, max(0.01, (began + span_ns - now) / 1e9)))
            now, had, _ = self.figures()
        return 100 * (had - busy) / (now - began)


def check(build, rng, victim, pattern, others, hands="", tenants=1):
    windows = PATTERNS[pattern][1]
    with Ground(build, DEVICE_MIB, gpus=2 if "--gpus" in others else 1, pacing=True, timed=TIMED) as ground:
        ground.start_broker()
        contest = Contest(ground, rng, victim, (pattern, others, hands, tenants))
        least = contest.percent * (1 - TOLERANCE)

        def shares(adversary):
            contest.begin(adversary)
            had = [round(contest.passes(WINDOW_NS * windows), 1) for _ in range(2)]
            contest.stop()
            return had
        first = shares(pattern)
        numbers = {"promised_percent": contest.percent, "had_percent": first}
        if min(first) >= least:
            return numbers
        honest = shares("steady")
        again = shares(pattern)
        numbers.update(honest_percent=honest, again_percent=again)
        if min(again) >= least:
            return numbers
        if min(honest) < least:
            raise Undecided(f"beside an honest tenant the victim had {honest} % of its {contest.percent} %, beside the attack {first + again}")
        hold(False, f"of its {contest.percent} % of the device's time the victim had {first}, again {again} %, beside an honest tenant {honest}")


def check_fresh(build, rng, options, at_once, pattern):
    """Jobs of one kernel each, one after the other."""
    least = 50 * (1 - TOLERANCE)
    with Ground(build, DEVICE_MIB, gpus=2 if "--gpus" in options else 1, pacing=True, timed=TIMED) as ground:
        ground.start_broker()
        contest = Contest(ground, rng, "half", ("steady", options, "", 1))
        end, ended = threading.Event(), []

        def jobs():
            while not end.is_set():
                process = Attack(ground, ADVERSARY_MIB // at_once, ["--launches", f"one_{pattern}"], options).process
                process.wait(PATIENCE_S)
                ended.append(process)
        threads = [threading.Thread(target=jobs) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        contest.passes(WARM_NS)
        had = [round(contest.passes(PATTERNS[pattern][1] * WINDOW_NS), 1) for _ in range(3)]
        end.set()
        for thread in threads:
            thread.join()
        if len(ended) < 5:
            raise AssertionError(f"only {len(ended)} jobs came to an end")
        hold(min(had) >= least, f"of its 50 % of the device's time the victim had {had}")
        return {"promised_percent": 50, "had_percent": had, "jobs": len(ended)}


def check_cap(build, rng, pattern, percent):
    """A fixed share is a cap, too, also on an idle GPU; what is above it is time that others were promised."""
    with Ground(build, DEVICE_MIB, pacing=True, timed=TIMED) as ground:
        ground.start_broker()
        attack = Attack(ground, ADVERSARY_MIB, ["--launches", pattern], ["--sm", str(percent), "--sm-mode", "fixed"]).wait_started()

        def busy():
            device = ground.devices()[0]
            return device["elapsed_ns"], device["busy_ns"]
        def passes(span_ns):
            began, had = busy()
            now = began
            while now < began + span_ns:
                time.sleep(0.1)
                now, has = busy()
            return round(100 * (has - had) / (now - began), 1)
        passes(WARM_NS)
        had = [passes(2 * WINDOW_NS * PATTERNS[pattern][1]) for _ in range(2)]
        hold(min(had) <= percent * (1 + TOLERANCE), f"of a cap of {percent} % it had {had} % of the device's time")
        del attack
        return {"cap_percent": percent, "had_percent": had}


def others_of(victim, pattern):
    """The adversary asks for what the victim leaves."""
    return ["--sm", str(100 - VICTIMS[victim][1]), *(("--gpus", "2") if pattern == "ranks_uneven" else ())]


def cases():
    found = []

    def add(name, text, *arguments, quick=False):
        found.append(Case("shares", name, text, lambda build, rng, a=arguments: check(build, rng, *a), quick, alone=True))
    victims = list(VICTIMS)
    for i, (pattern, (text, _)) in enumerate(PATTERNS.items()):
        for victim in ("half", victims[1 + i % (len(victims) - 1)]):
            add(f"{pattern}.{victim}", f"{text}, beside a victim of kind {victim} ({VICTIMS[victim][1]} %)", victim, pattern,
                others_of(victim, pattern), quick=(pattern, victim) == ("long_behind_tiny", "half"))
    for pattern in ("tiny", "mid_many_streams", "graphs_deep", "idle_then_burst", "holds", "copies"):
        add(f"{pattern}.as_inference", f"{PATTERNS[pattern][0]} by a tenant of class inference", "half", pattern,
            ["--sm", "50", "--class", "inference"])
    for name, options, pattern in (("quarter", ["--sm", "25"], "long"), ("inference", ["--sm", "25", "--class", "inference"], "long"),
                                   ("fixed", ["--sm", "10", "--sm-mode", "fixed"], "long"), ("gang", ["--sm", "25", "--gpus", "2"], "long"),
                                   ("gang_huge", ["--sm", "25", "--gpus", "2"], "huge")):
        for at_once in (1,) if "--gpus" in options else (1, 2):  # two may have a ninth more: too near to the bound
            found.append(Case("shares", f"fresh_jobs.{name}_{at_once}", f"a new job for each kernel ({PATTERNS[pattern][0]}), {at_once} at a time, {name}",
                              lambda build, rng, o=options, n=at_once, p=pattern: check_fresh(build, rng, o, n, p), alone=True))
    for pattern in ("tiny", "long", "crowd_mid"):
        add(f"{pattern}.five_tenants", f"{PATTERNS[pattern][0]} by five tenants at once", "half", pattern, ["--sm", "10"], "", 5)
    for pattern in ("long", "mid_many_streams", "graphs_deep", "crowd_long"):
        add(f"{pattern}.stopped", f"{PATTERNS[pattern][0]}, all stopped and continued at random", "half", pattern, ["--sm", "50"], "stops")
    for pattern in ("crowd_mid", "crowd_long", "crowd_tiny"):
        add(f"{pattern}.one_stopped", f"{PATTERNS[pattern][0]}, one stopped for good", "half", pattern, ["--sm", "50"], "one_stops")
    for pattern in ("tiny", "long_behind_tiny", "mid_many_streams", "graphs_deep", "graphs_new", "crowd_mid", "exits_mid", "resets"):
        found.append(Case("shares", f"{pattern}.above_its_cap", f"{PATTERNS[pattern][0]} above a cap of 30 % on an idle GPU",
                          lambda build, rng, pattern=pattern: check_cap(build, rng, pattern, 30), alone=True))
    return found
