"""Memory: every way to take it, in every shape of processes, at several moments.

The promises: at rest the tenant holds at most its quota; during calls at most the quota and what the way's row allows; a neighbour
takes what it was promised at any time; after the end nothing is left, and the next tenant takes a whole quota."""

import dataclasses
import mmap
import os
import pathlib
import struct
import subprocess
import time

from suite.cases import Case, Undecided, hold
from suite.ground import CONTEXT_MIB, MIB, PATIENCE_S, Attack, Ground, killed, promise_kept, settled
from suite.hostile import NO_WAIT, Client, admit, register

QUOTA_MIB = 48
NEIGHBOUR_MIB = 24
PROMISE_MIB = NEIGHBOUR_MIB - CONTEXT_MIB
SPARE_MIB = 64     # of a roomy device: more than a second quota, so that every excess shows in the account
REST_S = 8         # what is charged late is charged within a second
GRAIN_MIB = 2      # of pools and virtual memory

SIZES = {  # bytes
    "grains": [2 * MIB],
    "0.2 MiB": [MIB // 5],
    "1.1 MiB": [MIB * 11 // 10],
    "3.3 MiB": [MIB * 33 // 10],
    "9 MiB": [9 * MIB],
    "mixed": [MIB // 5, MIB * 11 // 10, MIB * 33 // 10, 9 * MIB],
    "random": None,  # five of the seed
    "huge": [40 * MIB, 64 * MIB],
}


@dataclasses.dataclass(frozen=True)
class Way:
    text: str
    above: str = ""   # what a call in progress may hold above the quota: "", "pool", "load" or "row"
    fills: bool = True  # takes more than a context when nothing stops it: at least 5 MiB above one


WAYS = {
    "alloc": Way("cuMemAlloc"),
    "pitch": Way("cuMemAllocPitch with odd rows", "row"),
    "managed": Way("managed memory"),
    "prefetched": Way("managed memory, prefetched"),
    "array": Way("arrays"),
    "box": Way("arrays of three dimensions"),
    "levels": Way("mipmapped arrays"),
    "created": Way("cuMemCreate without a mapping"),
    "mapped": Way("mapped virtual memory"),
    "released": Way("mapped memory whose handle is released"),
    "retained": Way("memory held by a retained handle only"),
    "twice_mapped": Way("memory mapped twice and unmapped once"),
    "exported": Way("memory held by an exported descriptor only", fills=False),
    "imported": Way("memory imported again, its first handle released"),
    "revived": Way("memory imported after its last handle has gone", fills=False),
    "external": Way("external memory of a descriptor"),
    "beside_host": Way("cuMemAlloc beside frees of host memory"),
    "wrapping": Way("sizes that wrap, then cuMemAlloc"),
    "async": Way("the device's own pool", "pool"),
    "async_unwaited": Way("the device's own pool in eight streams, never waited for", "pool"),
    "pool": Way("a pool that keeps everything", "pool"),
    "many_pools": Way("a pool for every allocation", "pool"),
    "pool_pieces": Way("a pool whose free memory lies in pieces", "pool"),
    "pool_exported": Way("pools that are exported", "pool"),
    "pool_destroyed": Way("pools destroyed while in use", "pool"),
    "pool_exchanged": Way("the device's own pool exchanged each time", "pool"),
    "pool_unordered": Way("freed in one stream and taken in another", "pool"),
    "graph": Way("allocation nodes of graphs", "pool"),
    "graph_many_nodes": Way("graphs of eight allocation nodes", "pool"),
    "graph_uploaded": Way("graphs that are uploaded and never launched", "pool"),
    "graph_relaunched": Way("graphs launched again and again", "pool"),
    "graph_destroyed": Way("graphs destroyed while their memory is in use", "pool"),
    "graph_child": Way("allocations of a graph within a graph", "pool"),
    "captured": Way("captured allocations", "pool"),
    "while_capturing": Way("cuMemAlloc while a stream captures"),
    "module": Way("variables of modules", "load"),
    "module_churn": Way("modules loaded and unloaded without end", "load"),
    "variable": Way("variables whose address is asked for at once", "load"),
    "library": Way("libraries", "load", fills=False),
    "library_late": Way("libraries that are loaded late", "load"),
    "library_launched": Way("libraries loaded by a launch", "load"),
    "linked": Way("linked modules", "load"),
    "context": Way("contexts and nothing else"),
    "context_filled": Way("a context for every allocation"),
    "context_churn": Way("contexts made and destroyed around allocations"),
    "primary_reset": Way("allocations around resets of the primary context"),
    "stack": Way("a stack limit raised step by step", "load"),
    "stack_each": Way("a stack limit in every context", "load"),
    "local": Way("local memory of kernels", "load"),
    "heap": Way("device heaps", "load"),
    "fifo": Way("printf buffers", "load"),
    "ipc_handed": Way("memory handed to a partner by IPC and freed"),
    "piece_handed": Way("memory handed to a partner by descriptor and released"),
    "pooled_handed": Way("pool memory handed to a partner and freed", "pool"),
    "heap_later": Way("device heaps whose kernels are loaded when the quota is full", "load"),
    "library_graph": Way("libraries loaded by one graph", "load"),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    text: str
    reports: int      # lines "full" that come
    at_once: int = 1  # calls in progress at one moment
    lossy: bool = False  # the driver itself may fail in it, so that little is taken
    before: tuple = ()   # what starts it: a job ends with its first process, unless others are in it by then


SHAPES = {
    "one": Shape("one process", 1),
    "threads": Shape("four threads", 4, 4),
    "eight": Shape("eight processes at once", 8, 8),
    "tree": Shape("a tree of seven processes", 7, 7),
    "exec": Shape("a chain of five programs", 5),
    "exec_tree": Shape("a chain of programs that leave children behind", 9, 5),
    "closed_first": Shape("all descriptors closed before the first call", 1),
    "closed_after": Shape("all descriptors closed after the first call", 1, lossy=True),
    "closing": Shape("descriptors closed all the time", 1, lossy=True),
    "cleared": Shape("a cleared environment", 1),
    "daemon": Shape("a daemon in a session of its own", 1, before=("sh", "-c", '"$@"; exec sleep 600', "sh")),
    "orphans": Shape("children of a parent that is killed", 4, 4),
    "no_descriptors": Shape("no descriptor at the first call", 1, lossy=True),
    "few_descriptors": Shape("descriptors for the driver and for nothing else", 1, lossy=True),
    "no_sockets": Shape("every new socket refused by the kernel", 1, lossy=True),
    "no_threads": Shape("every new thread refused by the kernel", 1, lossy=True),
    "hidden_socket": Shape("the broker's socket covered", 1, lossy=True),
    "other_namespace": Shape("user and network namespaces of its own", 1, lossy=True),
    "undumpable": Shape("a process that is not dumpable", 1, lossy=True),
    "spawned": Shape("spawned copies of itself", 4, 4),
    "bare_forks": Shape("children without fork handlers", 4, 4),
    "forked_late": Shape("children of a process that has a context", 4, 4),
    "mortal": Shape("children killed at random moments, then one", 1, 2),
    "threads_that_end": Shape("threads that end after their work", 3),
    "decoy": Shape("a PID namespace in which another process has its number", 1, lossy=True),
}
KEPT = {
    "kept": Shape("five processes that die, one after the other, and leave their address space to another one", 5),
    "kept_vfork": Shape("five processes killed by a child that shares their address space", 5),
    "kept_exit": Shape("five processes that end by _exit and leave their address space to another one", 5),
    "heirs": Shape("five processes that die, one after the other, and leave their descriptors to another one", 5),
    "heirs_late": Shape("five processes that rest, die, and leave their descriptors to another one", 5),
    "heirs_exec": Shape("a chain of five programs, each of which leaves its descriptors to the next one", 5),
}
MOMENTS = {
    "calm": "",
    "snug": "on a device without a byte to spare, beside a neighbour that takes and frees its promise",
    "killed": "killed as a whole at random moments, four times before",
    "stopped": "with one process stopped in the middle",
}


def allowed_above(way, sizes, at_once):
    """Bytes above the quota while calls are in progress; docs/interposition.md has the reasons."""
    largest = max(size for size in sizes if size <= QUOTA_MIB * MIB)
    grains = -(-largest // (GRAIN_MIB * MIB)) * GRAIN_MIB * MIB
    return at_once * {"": 0, "pool": 2 * grains + GRAIN_MIB * MIB, "load": max(sizes) + MIB, "row": largest // 8 + MIB}[way.above]


class Memory:
    """One attack on memory and its verdict."""

    def __init__(self, ground, words, shape, sizes, way):
        self.ground, self.words, self.shape, self.sizes, self.way = ground, words, shape, sizes, way
        self.numbers = {}
        self.begun = []

    def tenant(self, gpu=0):
        """What is in use on the device and is not the neighbour's."""
        return self.ground.used(gpu) - self.ground.held_by({self.neighbour.process.pid}, gpu)

    def begin(self):
        self.neighbour = self.ground.neighbour(NEIGHBOUR_MIB)

    def attack(self, options=()):
        self.begun.append(Attack(self.ground, QUOTA_MIB, self.words, options, self.shape.before))
        return self.begun[-1]

    def attacks_end(self):
        """The attackers, and what has started them: it would keep their job."""
        self.ground.end_attackers()
        killed([attack.process.pid for attack in self.begun])

    def rest(self, what="at rest"):
        quota = QUOTA_MIB * MIB
        held = self.tenant()
        self.numbers["held_bytes"] = held
        settled(lambda: self.tenant() <= quota,
                lambda: f"{what} the tenant holds {self.tenant()} bytes of its quota of {quota}", REST_S)

    def peak(self, contexts=1):
        """Right only while others have done nothing but open so many contexts at a time."""
        above = allowed_above(self.way, self.sizes, self.shape.at_once)
        most = self.ground.devices()[0]["peak_bytes"] - contexts * CONTEXT_MIB * MIB
        self.numbers["peak_bytes"] = most
        hold(most <= QUOTA_MIB * MIB + above,
             f"during calls the tenant held {most} bytes of its quota of {QUOTA_MIB * MIB}, {above} above it are allowed")

    def something(self):
        """An attack that takes nothing shows nothing."""
        reached = self.ground.devices()[0]["peak_bytes"] - CONTEXT_MIB * MIB
        if self.way.fills and not self.shape.lossy and self.numbers["whole"] and reached < CONTEXT_MIB * MIB + MIB:
            raise AssertionError(f"the attack took only {reached} bytes, so it shows nothing")

    def end(self):
        self.attacks_end()
        settled(lambda: self.tenant() == 0, lambda: f"after the end {self.tenant()} bytes are left")
        successor = self.ground.job("--memory", f"{QUOTA_MIB}MiB")
        word = successor.ask(f"alloc {QUOTA_MIB - CONTEXT_MIB} 1")
        hold(word == "done", f"the next tenant is refused its quota of {QUOTA_MIB} MiB: {word}")
        successor.end()
        self.neighbour.end()
        settled(lambda: self.ground.used() == 0, lambda: f"at the very end {self.ground.used()} bytes are left")


def churn(memory):
    """The neighbour takes its promise and frees it, again and again."""
    last = {"mib": 0}

    def step():
        if last["mib"]:
            memory.neighbour.done("free")
            last["mib"] = 0
        else:
            promise_kept(memory.neighbour, PROMISE_MIB, "meanwhile")
            last["mib"] = PROMISE_MIB
    return step, last


def check(build, rng, way_name, shape_name, size_name, moment, trick="", options=(), extra=()):
    way, shape = WAYS[way_name], SHAPES[shape_name]
    sizes = SIZES[size_name] or [rng.randrange(64 * 1024, 12 * MIB) for _ in range(5)]
    snug = moment == "snug"
    above = allowed_above(way, sizes, shape.at_once) if snug else 0
    memory_mib = QUOTA_MIB + NEIGHBOUR_MIB + (-(-above // MIB) if snug else SPARE_MIB)
    words = ["--way", way_name, "--shape", shape_name, "--sizes", ",".join(map(str, sizes)), "--seed", rng.randrange(1 << 20), *extra]
    if trick:
        words += ["--trick", trick]
    with Ground(build, memory_mib) as ground:
        ground.start_broker()
        memory = Memory(ground, words, shape, sizes, way)
        memory.begin()
        step, last = churn(memory) if snug else (None, {"mib": 0})
        for _ in range(4 if moment == "killed" else 0):
            attack = memory.attack(options)
            attack.wait_full(shape.reports, patience_s=rng.uniform(0.01, 0.25))
            memory.attacks_end()
        attack = memory.attack(options)
        if moment == "stopped":
            attack.wait_full(1, patience_s=rng.uniform(0.02, 0.3))
            ground.stop(sorted(ground.attackers())[-1:])
        patience_s = 4 if moment == "stopped" else PATIENCE_S  # one of them says nothing any more
        whole = attack.wait_full(shape.reports, step, patience_s)
        memory.numbers.update(whole=whole, taken_bytes=attack.taken(), refusals=attack.refused())
        if last["mib"]:
            memory.neighbour.done("free")
        memory.rest()
        if not snug:
            memory.peak()
        memory.something()
        promise_kept(memory.neighbour, PROMISE_MIB, "afterwards")
        memory.rest("beside the neighbour")
        memory.end()
        return memory.numbers


def check_other_gpu(build, rng, way_name, two):
    """A tenant of GPU 0 names GPU 1 as well; or a tenant of both is bounded on each."""
    way, shape = WAYS[way_name], SHAPES["one"]
    sizes = SIZES["mixed"]
    words = ["--way", way_name, "--sizes", ",".join(map(str, sizes)), "--device", 1]
    if not two:
        words += ["--setenv", "CUDA_VISIBLE_DEVICES=0,1"]
    with Ground(build, QUOTA_MIB + NEIGHBOUR_MIB + SPARE_MIB, gpus=2) as ground:
        ground.start_broker()
        # The broker measures what a context takes on each GPU, once, before there is a tenant.
        brokers = {row["pid"] for row in ground.devices()[1]["processes"]}
        options = ["--gpus", "2"] if two else ["--gpu", "0"]
        attack = Attack(ground, QUOTA_MIB, words, options)
        attack.wait_full(shape.reports)
        quota = QUOTA_MIB * MIB if two else 0
        settled(lambda: ground.used(1) <= quota, lambda: f"on GPU 1 the tenant holds {ground.used(1)} bytes of {quota}", REST_S)
        most = sum(row["memory_peak_bytes"] for row in ground.devices()[1]["processes"] if row["pid"] not in brokers)
        above = allowed_above(way, sizes, 1) if two else 0
        hold(most <= quota + above, f"on GPU 1 the tenant held {most} bytes of {quota}, {above} above it are allowed")
        ground.end_attackers()
        settled(lambda: ground.used(0) == ground.used(1) == 0, lambda: f"{ground.used(0)} and {ground.used(1)} bytes are left")
        return {"peak_bytes": most, "taken_bytes": attack.taken()}


KEPT_S = 7  # longer than the broker waits for anything of a process that has ended


def check_kept(build, rng, way_name, shape_name):
    """Processes die and leave what they hold to others, which share their address space or their descriptors. It stays the tenant's, and after the
    tenant's end it stays in the books of its GPU: others are admitted beside it alone, and nobody onto the whole GPU."""
    way, shape = WAYS[way_name], KEPT[shape_name]
    sizes = SIZES["mixed"]
    words = ["--way", way_name, "--shape", shape_name, "--sizes", ",".join(map(str, sizes)), "--seed", rng.randrange(1 << 20)]
    with Ground(build, 2 * QUOTA_MIB + NEIGHBOUR_MIB + SPARE_MIB // 4) as ground:
        ground.start_broker()
        memory = Memory(ground, words, shape, sizes, way)
        memory.begin()
        attack = memory.attack()
        memory.numbers["whole"] = attack.wait_full(shape.reports, patience_s=30)
        memory.rest()
        memory.peak()
        memory.something()
        promise_kept(memory.neighbour, PROMISE_MIB, "afterwards")
        killed([attack.process.pid])
        time.sleep(KEPT_S)
        left = memory.tenant()
        memory.numbers["kept_bytes"] = left
        if left < QUOTA_MIB * MIB // 2:
            raise AssertionError(f"only {left} bytes are kept, so the attack shows nothing")
        successor = ground.job("--memory", f"{QUOTA_MIB}MiB")
        word = successor.ask(f"alloc {QUOTA_MIB - CONTEXT_MIB} 1")
        hold(word == "done", f"beside what is kept the next tenant is refused its quota of {QUOTA_MIB} MiB: {word}")
        third = admitted_at_once(ground, "--memory", f"{QUOTA_MIB}MiB")
        hold(not third, f"a job was promised {QUOTA_MIB} MiB of memory of which {left} bytes are kept")
        successor.end()
        memory.neighbour.end()
        hold(not admitted_at_once(ground, "--class", "exclusive"), f"a job has a GPU for itself on which {left} bytes are kept")
        ground.end_attackers()
        settled(lambda: ground.used() == 0, lambda: f"at the very end {ground.used()} bytes are left")
        settled(lambda: admitted_at_once(ground, "--class", "exclusive"), lambda: "nobody is admitted after the end of the keepers")
        return memory.numbers


LIAR_MIB = 24


def sluice(ground, *words):
    command = [ground.build / "bin/sluice", *words, "--socket", ground.socket]
    return subprocess.run(list(map(str, command)), env=ground.environment, capture_output=True, text=True)


def lie_beside(ground, _, __):
    """Another job says that it is charged for shared memory that it let go of: more than there is, its whole quota, now and then none."""
    founder, shim = Client(ground.socket), Client(ground.socket)
    granted = founder.ask(admit(memory=LIAR_MIB * MIB, name=b"liar", flags=NO_WAIT))
    joined = shim.ask(register(granted.tenant, granted.key))
    size = os.fstat(joined.fds[1]).st_size
    page = mmap.mmap(joined.fds[1], size)
    for round in range(40):
        value = (1 << 38, LIAR_MIB * MIB, 0)[round // 2 % 3 if round > 20 else round // 10]
        struct.pack_into("<Q", page, 128 + joined.slot * 1152 + 128 + 16, value)  # held_bytes
        struct.pack_into("<Q", page, size - 128 * 8 * 8 + joined.slot * 64, value)  # what it says to have let go of
        time.sleep(0.1)
    return lambda: (shim.close(), founder.close())


def move_away(ground, job, _):
    sluice(ground, "move", job, "--gpu", "1")
    return lambda: None


def suspend(ground, job, _):
    hold(sluice(ground, "suspend", job).returncode == 0, "the job cannot be suspended")
    return lambda: None


def number_used_again(ground, _, pid):
    """A program that uses no GPU gets the number of the process that has ended."""
    for _ in range(200):
        try:
            pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError:
            raise Undecided("only root may choose the number of the next process")
        program = subprocess.Popen(["sleep", "600"])
        if program.pid == pid:
            return lambda: (program.kill(), program.wait())
        program.kill()
        program.wait()
    raise Undecided("the number is not to be had")


ESCAPES = {
    "lie": (lie_beside, 1, "another job says that the memory is its own"),
    "move": (move_away, 2, "the job is moved to another GPU"),
    "suspend": (suspend, 1, "the job is suspended"),
    "number": (number_used_again, 1, "another process gets the number of the one that has ended"),
}


def check_escape(build, rng, name):
    """A process has ended and left its memory to another one. Whatever is done then, that memory is promised to no other job."""
    escape, gpus, _ = ESCAPES[name]
    way, shape, sizes = WAYS["alloc"], KEPT["kept"], SIZES["mixed"]
    words = ["--way", "alloc", "--shape", "kept", "--sizes", ",".join(map(str, sizes)), "--seed", rng.randrange(1 << 20)]
    device_mib = QUOTA_MIB + SPARE_MIB
    most = f"{device_mib - LIAR_MIB}MiB"
    with Ground(build, device_mib, gpus=gpus) as ground:
        ground.start_broker()
        attack = Memory(ground, words, shape, sizes, way).attack(["--gpu", "0"] if gpus > 1 else [])
        attack.wait_full(shape.reports, patience_s=30)
        killed([attack.process.pid])
        attack.process.wait()
        time.sleep(2)
        left = ground.used()
        if left < QUOTA_MIB * MIB // 2:
            raise AssertionError(f"only {left} bytes are kept, so the attack shows nothing")
        [job] = [row for row in ground.status()["tenants"] if row["processes"]]
        [pid] = [process["pid"] for process in job["processes"] if process["ended"]]
        undo = escape(ground, job["tenant"], pid)
        time.sleep(2)
        admitted = admitted_at_once(ground, "--gpu", "0", "--memory", most)
        hold(not admitted, f"a job was promised {most} of {device_mib} MiB of which {left} bytes are kept")
        ground.end_attackers()
        undo()
        settled(lambda: admitted_at_once(ground, "--gpu", "0", "--memory", most), lambda: "nobody is admitted after the end of the keepers")
        return {"kept_bytes": left}


def admitted_at_once(ground, *options):
    """A job that does nothing."""
    command = [ground.build / "bin/sluice", "run", "--socket", ground.socket, "--no-wait", *options, "--", "true"]
    return subprocess.run(command, env=ground.environment, capture_output=True).returncode == 0


def case_of(way, shape, size, moment, quick=False):
    tail = "" if moment == "calm" else f".{moment}"
    text = f"{WAYS[way].text}, {size}; {SHAPES[shape].text}" + (f"; {MOMENTS[moment]}" if MOMENTS[moment] else "")
    return Case("memory", f"{way}.{shape}{tail}", text, lambda build, rng: check(build, rng, way, shape, size, moment), quick)


QUICK = {("alloc", "eight"), ("async", "one"), ("mapped", "exec"), ("alloc", "closed_after")}
DENSE = ("alloc", "async", "module")  # these meet every shape


def cases():
    """Every way meets `one` and some other shapes, every shape meets the ways of DENSE; sizes and moments go round."""
    found, sizes, moments = {}, list(SIZES), list(MOMENTS)
    shapes = [shape for shape in SHAPES if shape not in ("one", "decoy")]
    for i, way in enumerate(WAYS):
        others = shapes if way in DENSE else [shapes[(5 * i + 7 * k) % len(shapes)] for k in range(2)]
        for k, shape in enumerate(["one", *others]):
            size, moment = sizes[(i + 3 * k) % len(sizes)], moments[(i + k) % len(moments)]
            found.setdefault((way, shape), case_of(way, shape, size, moment, (way, shape) in QUICK))
    for way in ("alloc", "module"):
        found[way, "decoy"] = case_of(way, "decoy", "mixed", "calm")
    for i, way in enumerate(["alloc", "async", "pool", "mapped", "module", "graph", "managed", "array"]):
        for two in (False, True):
            name, text = ("both_gpus", "on the second of its two GPUs") if two else ("not_its_gpu", "on a GPU that is not its own")
            found[way, name] = Case("memory", f"{way}.{name}", f"{WAYS[way].text}, {text}",
                                    lambda build, rng, way=way, two=two: check_other_gpu(build, rng, way, two))
    for way, shape in (("alloc", "kept"), ("mapped", "kept_vfork"), ("async", "kept_exit"), ("module", "kept"),
                       ("exported", "heirs"), ("exported", "heirs_late"), ("exported", "heirs_exec")):
        found[way, shape] = Case("memory", f"{way}.{shape}", f"{WAYS[way].text}; {KEPT[shape].text}",
                                 lambda build, rng, way=way, shape=shape: check_kept(build, rng, way, shape), (way, shape) == ("alloc", "kept"))
    for name, (_, _, text) in ESCAPES.items():
        found["alloc", f"kept_{name}"] = Case("memory", f"alloc.kept_{name}", f"{KEPT['kept'].text}; then {text}",
                                              lambda build, rng, name=name: check_escape(build, rng, name))
    return list(found.values())
