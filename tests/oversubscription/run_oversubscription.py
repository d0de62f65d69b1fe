"""More jobs than a GPU has memory for. Each case has a machine of its own: software GPUs, a broker, the shim.

usage: run_oversubscription.py --build DIR CASE
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "programs"))
from machine import MIB, Machine, wait_until  # noqa: E402

PATIENCE_S = 120  # for things that happen in less than a second on an idle machine
CONTEXT_MIB = 4


class Holder:
    """tests/oversubscription/holder.cpp, under `sluice run` or on its own."""

    def __init__(self, machine, command, environment=None, begin=True):
        self.process = machine.launch(command, stdin=subprocess.PIPE, environment=environment)
        if begin:
            self.begin()

    def begin(self):
        word = self.answer()
        if word != "started":
            raise AssertionError(f"{word!r}: {self.process.stderr.read()!r}")
        return self

    def send(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def has_answered(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def answer(self):
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise AssertionError("the program does not answer")
        return self.process.stdout.readline().strip()

    def ask(self, line):
        self.send(line)
        return self.answer()

    def done(self, line):
        word = self.ask(line)
        if word != "done":
            raise AssertionError(f"{line}: {word}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Ends it in good order; what it has said on stderr."""
        _, said = self.process.communicate("exit\n", timeout=PATIENCE_S)
        if self.process.returncode != 0:
            raise AssertionError(f"ended with {self.process.returncode}: {said}")
        return said


class Box(Machine):
    """A machine with a small GPU and cheap contexts, so that what counts is data."""

    def __init__(self, build, memory="256MiB", config="", gpus=1):
        super().__init__(build, memory=memory, pacing=False, config='[broker]\nlog_level = "debug"\n' + config)
        self.environment.update(SOFTGPU_CONTEXT=f"{CONTEXT_MIB}MiB", SOFTGPU_COUNT=str(gpus))

    def job(self, *options, begin=True):
        command = [str(self.build / "bin" / "sluice"), "run", "--socket", str(self.socket), *options, "--",
                   str(self.build / "tests" / "oversubscription_holder")]
        return Holder(self, command, begin=begin)

    def unannounced(self):
        """As a machine-wide preload starts it."""
        return {**self.environment, "LD_PRELOAD": str(self.build / "lib" / "libsluice.so"), "SLUICE_SOCKET": str(self.socket)}

    def loner(self, begin=False):
        return Holder(self, [str(self.build / "tests" / "oversubscription_holder")], self.unannounced(), begin)

    def sluice(self, *arguments):
        return self.run([str(self.build / "bin" / "sluice"), arguments[0], "--socket", str(self.socket), *arguments[1:]],
                        timeout_s=PATIENCE_S)

    def tenants(self):
        return self.status()["tenants"]

    def waiting(self):
        return [tenant for tenant in self.tenants() if tenant["state"] == "queued"]

    def free_mib(self):
        """What the device itself says is free."""
        device = self.device()
        return (device["capacity_bytes"] - device["used_bytes"]) // MIB

    def devices(self):
        tool = [self.build / "bin" / "softgpu-ctl", "accounts", "--json", "--dir", self.environment["SOFTGPU_DIR"]]
        return json.loads(self.run(tool).stdout)["devices"]


@contextlib.contextmanager
def box(build, remembering=False, **settings):
    with Box(build, **settings) as machine:
        machine.start_broker(remembering)
        yield machine


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def equal(found, wanted, what=""):
    expect(found == wanted, f"{what}: {found!r}, not {wanted!r}")


def line_of(holder):
    """What a program that waits says first."""
    expect(select.select([holder.process.stderr], [], [], PATIENCE_S)[0], "it says nothing")
    return holder.process.stderr.readline()


# ---- programs that nobody announced


def default_waits(build):
    with box(build) as machine:
        full = machine.job("--memory", "256MiB", "--name", "full")
        first, second = machine.loner(), machine.loner()
        for holder in (first, second):
            equal(line_of(holder), "sluice: no room on the GPUs yet; this program waits as number 1 in line (reason: "
                  "Resources); sluice status shows the line\n")
        wait_until("they are one request", lambda: [t["name"] for t in machine.waiting()] == ["default"])
        expect(not first.has_answered() and not second.has_answered(), "they wait for their context")
        table = machine.sluice("status").stdout
        expect(re.search(r"1st\s+default\s+\S+\s+debug\s+\S+ s\s+Resources\s+-\s+unknown", table), table)
        full.end()
        for holder in (first, second):
            holder.begin()
            holder.done("alloc 8 1")
            equal(holder.ask("check"), "right")
        equal([(t["name"], len(t["processes"])) for t in machine.tenants()], [("default", 2)])
        equal([first.end(), second.end()], ["", ""], "one line is all that is said")
        wait_until("nobody is left", lambda: machine.tenants() == [])


CUDA = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def context(device):
    made = ctypes.c_void_p()
    return cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), device)
def say(*words): print(*words, flush=True)
"""


def default_waits_at_its_context(build):
    """A program that only looks which GPUs there are is not kept waiting, and stands in no line."""
    look = CUDA + """
count, total = ctypes.c_int(), ctypes.c_size_t()
say(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0), count.value)
sys.stdin.readline()
say(context(0))
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
say(total.value >> 20)
"""
    with box(build) as machine:
        full = machine.job("--memory", "256MiB", "--name", "full")
        program = machine.launch([sys.executable, "-c", look], stdin=subprocess.PIPE, environment=machine.unannounced())
        equal(program.stdout.readline(), "0 0 0 1\n")
        equal(machine.waiting(), [])
        program.stdin.write("go\n")
        program.stdin.flush()
        expect("this program waits as number 1 in line" in program.stderr.readline(), "no line")
        wait_until("it stands in line", lambda: len(machine.waiting()) == 1)
        full.end()
        equal(program.communicate(timeout=PATIENCE_S), ("0\n64\n", ""))


def default_on_the_gpu_it_takes(build):
    """A user's unannounced programs are one job on each GPU that they use; a program of one job is on no other's GPU."""
    code = CUDA + """
say(cuda.cuInit(0), context(int(sys.argv[1])))
sys.stdin.readline()
say(context(1 - int(sys.argv[1])))
"""
    with box(build, gpus=2) as machine:
        programs = [machine.launch([sys.executable, "-c", code, str(device)], stdin=subprocess.PIPE,
                                   environment=machine.unannounced()) for device in (1, 0, 1)]
        for program in programs:
            equal(program.stdout.readline(), "0 0\n")
        uuids = [device["uuid"] for device in machine.devices()]
        equal(sorted((t["name"], [uuids.index(gpu["uuid"]) for gpu in t["gpus"]], len(t["processes"])) for t in machine.tenants()),
              [("default", [0], 1), ("default", [1], 2)])
        for program, device in zip(programs, (1, 0, 1)):
            out, err = program.communicate("go\n", timeout=PATIENCE_S)
            equal(out, "800\n")
            equal(err, f"sluice: device {1 - device} is none of this job's GPUs, so the program gets no context there. The job has "
                  f"{uuids[device][:12]}: set CUDA_VISIBLE_DEVICES to that, or ask for more GPUs (sluice run --gpus)\n")


def visible_devices_overruled(build):
    """A program that shows itself GPUs that its job has not got gets nothing there."""
    code = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'" + CUDA + "say(cuda.cuInit(0), sorted((context(0), context(1))))"
    with box(build, gpus=2) as machine:
        result = machine.run([str(machine.build / "bin" / "sluice"), "run", "--socket", str(machine.socket), "--memory", "64MiB", "--",
                              sys.executable, "-c", code])
        equal(result.stdout, "0 [0, 800]\n", result.stderr)
        expect("is none of this job's GPUs" in result.stderr, result.stderr)


def default_broker_restarted(build):
    with box(build, remembering=True) as machine:
        full = machine.job("--memory", "256MiB")
        waiting = machine.loner()
        line_of(waiting)
        machine.kill_broker()
        machine.start_broker(remembering=True)
        wait_until("it stands in the new broker's line", lambda: len(machine.waiting()) == 1)
        full.end()
        waiting.begin()
        waiting.end()


def default_leaves(build):
    with box(build) as machine:
        machine.job("--memory", "256MiB")
        killed, interrupted = machine.loner(), machine.loner()
        for holder in (killed, interrupted):
            line_of(holder)
        killed.kill()
        interrupted.process.send_signal(signal.SIGINT)
        equal(interrupted.process.wait(PATIENCE_S), -signal.SIGINT)
        wait_until("nobody waits", lambda: machine.waiting() == [])


def management_does_not_wait(build):
    look = ("import ctypes; nvml = ctypes.CDLL('libnvidia-ml.so.1'); count = ctypes.c_uint();"
            "device = ctypes.c_void_p(); memory = (ctypes.c_ulonglong * 3)();"
            "assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0;"
            "assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0;"
            "assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0; print(count.value, memory[0] >> 20)")
    with box(build) as machine:
        full = machine.job("--memory", "256MiB")
        result = machine.run([sys.executable, "-c", look], environment=machine.unannounced())
        equal((result.stdout, result.stderr), ("1 256\n", ""), "it sees the GPU as it is")
        wait_until("it has left the line", lambda: machine.waiting() == [])
        full.end()
        result = machine.run([sys.executable, "-c", look], environment=machine.unannounced())
        equal((result.stdout, result.stderr), ("1 64\n", ""), "with room it sees its share: a quarter")


# ---- commands, on jobs whose memory only the driver can move


def row(machine, name):
    found = [tenant for tenant in machine.tenants() if tenant["name"] == name]
    equal(len(found), 1, f"jobs called {name}")
    return found[0]


def commanded(machine, *arguments):
    result = machine.sluice(*arguments)
    equal((result.returncode, result.stderr), (0, ""), " ".join(arguments))
    return result.stdout


def suspended_by_checkpoint(build):
    with box(build) as machine:
        job, other = machine.job("--name", "train", "--memory", "96MiB"), machine.job("--name", "other", "--memory", "96MiB")
        for holder in (job, other):
            holder.done("alloc 8 8")
            holder.done("step")
        job.done("work")
        before = machine.free_mib()
        said = commanded(machine, "suspend", "train")
        expect(re.match(r"train \(job 1\) is suspended; ", said), said)
        equal(row(machine, "train")["state"], "suspended")
        expect(machine.free_mib() >= before + 64, f"its memory is free: {before} MiB before, {machine.free_mib()} MiB now")
        job.send("stop")
        other.done("step")
        equal(other.ask("check"), "right")
        expect(not job.has_answered(), "its program waits")
        expect("goes on" in commanded(machine, "resume", "train"), "it is resumed")
        expect(job.answer().startswith("steps "), "the program goes on")
        equal(job.ask("check"), "right")
        equal(row(machine, "train")["state"], "running")
        equal([job.end(), other.end()], ["", ""])


def moved_by_checkpoint(build):
    with box(build, gpus=2) as machine:
        job = machine.job("--name", "train", "--memory", "96MiB", "--gpu", "0")
        job.done("alloc 8 8")
        job.done("step")
        used = [device["used_bytes"] for device in machine.devices()]
        expect(used[0] > 64 * MIB > used[1], f"it is on the first: {used}")
        expect("goes on on GPU 1" in commanded(machine, "move", "train", "--gpu", "1"), "it is moved")
        used = [device["used_bytes"] for device in machine.devices()]
        expect(used[1] > 64 * MIB > used[0], f"it is on the second: {used}")
        equal(row(machine, "train")["gpus"][0]["uuid"], machine.status()["gpus"][1]["uuid"])
        job.done("step")
        equal(job.ask("check"), "right")
        job.done("alloc 8 1")
        equal(job.ask("check"), "right")
        refused = machine.sluice("move", "train", "--gpu", "7")
        equal(refused.returncode, 1)
        equal(job.end(), "")
        wait_until("nothing is promised", lambda: [g["promised_bytes"] for g in machine.status()["gpus"]] == [0, 0])


def moved_by_uuid(build):
    """GPUs are named by UUID, also to a broker that was started anew; a whole-GPU job is never moved, and is told what to do instead."""
    with box(build, gpus=2, remembering=True) as machine:
        uuids = [gpu["uuid"] for gpu in machine.status()["gpus"]]
        job = machine.job("--name", "train", "--memory", "96MiB", "--gpu", uuids[0])
        job.done("alloc 8 8")
        job.done("step")

        def there(index):
            used = [device["used_bytes"] for device in machine.devices()]
            expect(used[index] > 64 * MIB > used[1 - index], f"it is on GPU {index}: {used}")
            equal(row(machine, "train")["gpus"][0]["uuid"], uuids[index])
            job.done("step")
            equal(job.ask("check"), "right")

        commanded(machine, "move", "train", "--gpu", uuids[1])
        there(1)
        machine.kill_broker()
        machine.start_broker(remembering=True)
        wait_until("it is registered again", lambda: row(machine, "train")["unregistered"] == 0 and
                   len(row(machine, "train")["processes"]) == 1)
        equal([gpu["uuid"] for gpu in machine.status()["gpus"]], uuids)
        equal(row(machine, "train")["gpus"][0]["uuid"], uuids[1], "the new broker knows where it is")
        commanded(machine, "move", "train", "--gpu", uuids[0])
        there(0)
        whole = machine.job("--name", "whole", "--class", "exclusive", "--gpu", uuids[1])
        for gpu in uuids:
            refused = machine.sluice("move", "whole", "--gpu", gpu)
            equal((refused.returncode, refused.stdout), (1, ""))
            equal(refused.stderr, "sluice: job whole (tenant 2) has its GPUs as a whole and is never moved; end it instead\n")
        refused = machine.sluice("move", "train", "--gpu", uuids[1])
        equal(refused.returncode, 1)
        expect("that GPU is used whole" in refused.stderr, refused.stderr)
        refused = machine.sluice("move", "train", "--gpu", "GPU-00000000-0000-4000-8000-000000000009")
        equal(refused.returncode, 1)
        there(0)
        whole.end()
        equal(job.end(), "")


def children_of_the_moved(build):
    """A program that is started by a moved job is on the GPU where the job is now."""
    child = CUDA + "say(cuda.cuInit(0), context(0))"
    parent = CUDA + f"""
import subprocess
say(cuda.cuInit(0), context(0))
sys.stdin.readline()
subprocess.run([sys.executable, "-c", {child!r}])
"""
    with box(build, gpus=2) as machine:
        job = machine.launch([str(machine.build / "bin" / "sluice"), "run", "--socket", str(machine.socket), "--name", "train",
                              "--memory", "96MiB", "--gpu", "0", "--", sys.executable, "-c", parent], stdin=subprocess.PIPE)
        equal(job.stdout.readline(), "0 0\n")
        commanded(machine, "move", "train", "--gpu", "1")
        before = machine.devices()[1]["used_bytes"]
        equal(job.communicate("go\n", timeout=PATIENCE_S), ("0 0\n", ""))
        expect(before > 0, "it was moved")


def drained(build):
    with box(build) as machine:
        stays = machine.job("--memory", "64MiB")
        stays.done("alloc 8 2")
        commanded(machine, "drain", "--gpu", "0")
        waiting = machine.job("--memory", "64MiB", begin=False)
        expect("(reason: Drain)" in line_of(waiting), "it waits")
        stays.done("step")
        equal(stays.ask("check"), "right")
        commanded(machine, "undrain", "--gpu", "0")
        waiting.begin()
        waiting.end()
        stays.end()


# ---- memory that the shim moves

OVERSOLD = '[memory]\noversell = 16.0\nswap_quantum = "200ms"\n'


def suspended_and_resumed(build):
    with box(build) as machine:
        job = machine.job("--name", "train", "--memory", "160MiB", "--swap")
        job.done("alloc 16 8")
        job.done("alloc 2 2")
        job.done("step")
        free = machine.free_mib()
        for _ in range(3):
            said = commanded(machine, "suspend", "train")
            expect(re.match(r"train \(job 1\) is suspended; 132 MiB moved in \d+\.\d s\n$", said), said)
            part = row(machine, "train")["gpus"][0]
            equal((row(machine, "train")["state"], part["swapped_bytes"]), ("suspended", 132 * MIB))
            equal(machine.free_mib(), free + 132, "the device itself has it back")
            fixed = part["not_movable"]
            equal((row(machine, "train")["stays"], fixed["bytes"], fixed["other_bytes"]), ("", part["held_bytes"] - 132 * MIB, 0))
            equal(fixed["contexts_bytes"] // MIB, CONTEXT_MIB, f"what is left is the context, and code: {part}")
            job.send("check")
            expect("132 MiB moved in " in commanded(machine, "resume", "1"), "it is back")
            equal(job.answer(), "right")
            equal((row(machine, "train")["state"], machine.free_mib()), ("running", free))
            job.done("step")
        equal(job.ask("check"), "right")
        expect("event=moved tenant=1 name=train" in machine.broker_log(), "the log tells of each move")
        equal(job.end(), "")
        wait_until("all is given back", lambda: machine.free_mib() == 256)


def while_suspended_others_have_the_gpu(build):
    with box(build, config=OVERSOLD) as machine:
        train = machine.job("--name", "train", "--memory", "224MiB", "--swap")
        train.done("alloc 40 5")
        commanded(machine, "suspend", "train")
        other = machine.job("--name", "other", "--memory", "224MiB", "--swap")
        other.done("alloc 40 5")
        other.done("step")
        equal(row(machine, "other")["gpus"][0]["moves"], 0)
        # It comes back when there is room: the other is moved out for it, being idle.
        train.send("check")
        commanded(machine, "resume", "train")
        equal(train.answer(), "right")
        equal(row(machine, "other")["state"], "swapped")
        equal(other.ask("check"), "right")
        for job in (train, other):
            equal(job.end(), "")
        wait_until("all is given back", lambda: machine.free_mib() == 256)


def eight_share_one(build):
    """Each holds 40 % of the GPU and works all the time; each gets through, and its numbers are right."""
    with box(build, memory="128MiB", config=OVERSOLD) as machine:
        jobs = [machine.job("--name", f"job{i}", "--memory", "56MiB", "--swap") for i in range(8)]
        for job in jobs:
            job.send("alloc 12 4")
        for job in jobs:
            equal(job.answer(), "done")
        for job in jobs:
            job.done("work")
        # By now each has been in, or it could not have filled its memory; now each comes in again.
        for i in range(8):
            moved = row(machine, f"job{i}")["gpus"][0]["moved_in_bytes"]
            wait_until(f"job{i} comes in again", lambda: row(machine, f"job{i}")["gpus"][0]["moved_in_bytes"] >= moved + 48 * MIB,
                       PATIENCE_S)
        for job in jobs:
            job.send("stop")
        for job in jobs:
            expect(re.match(r"steps [1-9]", job.answer()), "it has worked")
        for job in jobs:
            equal(job.ask("check"), "right")
        for job in jobs:
            equal(job.end(), "")
        wait_until("all is given back", lambda: machine.free_mib() == 128)
        failed = [line for line in machine.broker_log().splitlines() if "event=move_failed" in line]
        expect(failed == [], "no move has failed: " + "\n".join(failed))


def orders_seen(machine, order):
    return len(re.findall(f"event=hold .*order={order}\n", machine.broker_log()))


def order_await(machine, order):
    """Returns in the middle of a move: it has been ordered, and may have been done by a part."""
    before = orders_seen(machine, order)
    wait_until(f"the next order {order}", lambda: orders_seen(machine, order) > before, PATIENCE_S, every_s=0.001)


def came_in(machine, name):
    return row(machine, name)["gpus"][0]["moved_in_bytes"]


def both_go_on(machine, names):
    before = {name: came_in(machine, name) for name in names}
    for name in names:
        wait_until(f"{name} comes in", lambda: came_in(machine, name) > before[name], PATIENCE_S)


def broker_killed_in_moves(build):
    """kill -9 in the middle of moves out and in: the next broker takes both in, nothing is lost, nothing is left over."""
    with box(build, memory="128MiB", config=OVERSOLD, remembering=True) as machine:
        jobs = {name: machine.job("--name", name, "--memory", "96MiB", "--swap") for name in ("one", "two")}
        for job in jobs.values():
            job.done("alloc 16 5")
            job.done("work")
        for order in ("out", "in", "out"):
            order_await(machine, order)
            machine.kill_broker()
            machine.start_broker(remembering=True)
            both_go_on(machine, jobs)
        for job in jobs.values():
            job.send("stop")
        for job in jobs.values():
            expect(re.match(r"steps [1-9]", job.answer()), "it has worked")
        for job in jobs.values():
            equal(job.ask("check"), "right")
        for job in jobs.values():
            job.end()
        wait_until("all is given back", lambda: machine.free_mib() == 128)
        wait_until("nobody is left", lambda: machine.tenants() == [])
        equal([gpu["promised_bytes"] for gpu in machine.status()["gpus"]], [0])


def clients_killed_in_moves(build):
    """kill -9 of a program in the middle of its own move: its memory comes back, the others go on."""
    with box(build, memory="128MiB", config=OVERSOLD) as machine:
        stays = machine.job("--name", "stays", "--memory", "96MiB", "--swap")
        stays.done("alloc 16 5")
        stays.done("work")
        for order in ("out", "in", "hold"):
            victim = machine.job("--name", "victim", "--memory", "96MiB", "--swap")
            victim.send("alloc 16 5")
            equal(victim.answer(), "done")
            victim.done("work")
            before = len(re.findall(f"name=victim .*order={order}\n", machine.broker_log()))
            wait_until(f"its order {order}", lambda: len(re.findall(f"name=victim .*order={order}\n", machine.broker_log())) > before,
                       PATIENCE_S, every_s=0.001)
            victim.kill()
            wait_until("it is gone", lambda: [t["name"] for t in machine.tenants()] == ["stays"])
        stays.send("stop")
        expect(re.match(r"steps [1-9]", stays.answer()), "it has worked")
        equal(stays.ask("check"), "right")
        stays.end()
        wait_until("all is given back", lambda: machine.free_mib() == 128)
        equal([gpu["promised_bytes"] for gpu in machine.status()["gpus"]], [0])


def rank_lost(build):
    """A rank of a whole-GPU job that is killed: the others go on, or end, as configured. One that ends by itself is not lost."""
    rank = CUDA + """
say(cuda.cuInit(0), context(0))
sys.stdin.readline()
say("here")
sys.stdin.readline()
"""
    parent = f"""
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-c", {rank!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
print(*[rank.stdout.readline().strip() for rank in ranks], *[rank.pid for rank in ranks], flush=True)
for line in sys.stdin:
    rank = ranks[int(line)]
    rank.stdin.write("\\n")
    rank.stdin.flush()
    print(rank.stdout.readline().strip(), flush=True)
print(*[rank.wait() for rank in ranks])
"""
    for rule in ("keep", "end"):
        with box(build, config=f'[scheduler]\nrank_loss = "{rule}"\n') as machine:
            job = machine.launch([str(machine.build / "bin" / "sluice"), "run", "--socket", str(machine.socket), "--name", "gang",
                                  "--class", "exclusive", "--", sys.executable, "-c", parent], stdin=subprocess.PIPE)
            words = job.stdout.readline().split()
            equal(words[:6], ["0"] * 6)
            pids = [int(word) for word in words[6:]]

            def ask(index):
                job.stdin.write(f"{index}\n")
                job.stdin.flush()
                return job.stdout.readline().strip()

            equal(ask(0), "here")
            ask(0)  # it ends by itself
            wait_until("it has ended", lambda: len(row(machine, "gang")["processes"]) == 2)
            expect("event=rank_lost" not in machine.broker_log(), "it was not lost")
            os.kill(pids[1], signal.SIGKILL)
            wait_until("that is told", lambda: "event=rank_lost" in machine.broker_log())
            if rule == "keep":
                equal(ask(2), "here")
                expect("the others go on and keep the GPUs" in machine.broker_log(), "it is said how")
                ask(2)
            else:
                wait_until("nobody is left", lambda: machine.tenants() == [])
            out, _ = job.communicate(timeout=PATIENCE_S)
            codes = ["0", str(-signal.SIGKILL), "0"] if rule == "keep" else []
            equal(out.split(), codes, "how the ranks ended")


def gang_alone(build):
    """A whole-GPU job: the shared ones are put away, it runs alone, they come back with what they had."""
    config = OVERSOLD + '[scheduler]\nexclusive = "suspend"\n'
    with box(build, memory="128MiB", config=config, gpus=2) as machine:
        shared = [machine.job("--name", f"shared{i}", "--memory", "64MiB", "--gpu", str(i % 2), *(["--swap"] if i < 2 else []))
                  for i in range(3)]
        for job in shared:
            job.done("alloc 8 4")
            job.done("work")
        gang = machine.job("--name", "gang", "--class", "exclusive", "--gpus", "2", begin=False)
        expect("(reason: Drain)" in line_of(gang), "it waits until they are away")
        gang.begin()
        equal([row(machine, f"shared{i}")["state"] for i in range(3)], ["suspended"] * 3)
        gang.done("alloc 10 10")
        for _ in range(20):
            gang.done("step")
        equal(gang.ask("check"), "right")
        gang.end()
        for i, job in enumerate(shared):
            wait_until("it is back", lambda: row(machine, f"shared{i}")["state"] == "running", PATIENCE_S)
            job.send("stop")
            expect(re.match(r"steps [1-9]", job.answer()), "it has worked")
            equal(job.ask("check"), "right")
        log = machine.broker_log()
        alone = log[log.index("event=admitted", log.index("event=queued")):log.index("event=ended tenant=4 name=gang")]
        expect("name=gang" in alone.splitlines()[0], alone[:200])
        opened = set(re.findall(r"event=lease_opened tenant=(\d+)", alone))
        equal(opened, {"4"}, "whose leases were opened while it lived")
        before = log[:log.index("event=admitted", log.index("event=queued"))]
        for tenant in "123":
            words = re.findall(rf"event=lease_(opened|closed) tenant={tenant} ", before)
            expect(not words or words[-1] == "closed", f"job {tenant} could still submit work: {words}")
        for job in shared:
            equal(job.end(), "")


def moved_for_exclusive(build):
    """A whole-GPU job over two shared ones: who fits on the other GPU goes on there, who does not is put away."""
    with box(build, memory="128MiB", config=OVERSOLD + '[scheduler]\nexclusive = "move"\n', gpus=2) as machine:
        there = machine.job("--name", "there", "--memory", "64MiB", "--gpu", "1")
        fits, stays = (machine.job("--name", name, "--memory", "60MiB", "--gpus", "1") for name in ("fits", "stays"))
        uuids = [gpu["uuid"] for gpu in machine.status()["gpus"]]

        def gpu_of(name):
            return uuids.index(row(machine, name)["gpus"][0]["uuid"])

        # The fullest GPU that has room: the second has it for one of them.
        equal(sorted(gpu_of(name) for name in ("fits", "stays")), [0, 1])
        names = {gpu_of("fits"): "fits", gpu_of("stays"): "stays"}
        jobs = {"fits": fits, "stays": stays, "there": there}
        for job in jobs.values():
            job.done("alloc 8 4")
            job.done("work")
        there.send("stop")
        expect(there.answer().startswith("steps "), "it has worked")
        equal(there.end(), "")
        del jobs["there"]
        pinned = machine.job("--name", "pinned", "--memory", "60MiB", "--gpu", "0")
        jobs["pinned"] = pinned
        pinned.done("alloc 8 4")
        pinned.done("work")
        gang = machine.job("--name", "gang", "--class", "exclusive", "--gpu", "0", begin=False)
        gang.begin()
        mover, other = names[0], names[1]
        equal((gpu_of(mover), gpu_of(other)), (1, 1), "who was on the first is on the second")
        equal({name: row(machine, name)["state"] for name in (other, "pinned")}, {other: "running", "pinned": "suspended"})
        jobs[mover].send("stop")
        expect(re.match(r"steps [1-9]", jobs[mover].answer()), "it works beside the exclusive job")
        equal(jobs[mover].ask("check"), "right")
        jobs[mover].done("step")
        equal(row(machine, "pinned")["state"], "suspended")
        gang.done("alloc 10 10")
        gang.done("step")
        equal(gang.ask("check"), "right")
        gang.end()
        wait_until("who was put away is back", lambda: row(machine, "pinned")["state"] == "running", PATIENCE_S)
        for name in (other, "pinned"):
            jobs[name].send("stop")
            expect(re.match(r"steps [1-9]", jobs[name].answer()), "it has worked")
        equal(gpu_of(mover), 1, "it stays where it is")
        for job in jobs.values():
            equal(job.ask("check"), "right")
            equal(job.end(), "")
        wait_until("nothing is promised", lambda: [g["promised_bytes"] for g in machine.status()["gpus"]] == [0, 0])


def helper_of(machine):
    """The program by which the broker asks the devices."""
    children = pathlib.Path(f"/proc/{machine.broker.pid}/task/{machine.broker.pid}/children").read_text().split()
    found = [int(pid) for pid in children if b"--watch" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    equal(len(found), 1, "helpers that watch")
    return found[0]


def freed_when_the_device_shows_it(build):
    """The memory of a job that was killed is nobody's before the device says that it is free, and not for ever."""
    with box(build, memory="128MiB") as machine:
        wait_until("the device is known", lambda: "event=device_used" in machine.broker_log())
        for answers in (True, False):
            full = machine.job("--memory", "120MiB", "--name", "full")
            full.done("alloc 16 6")
            waits = machine.job("--memory", "120MiB", "--name", "next", begin=False)
            expect("(reason: Resources)" in line_of(waits), "it waits")
            asked = machine.broker_log().count("event=device_used")
            helper = helper_of(machine)
            os.kill(helper, signal.SIGSTOP)  # nobody says what the device has
            full.kill()
            wait_until("its job is over", lambda: [t["name"] for t in machine.tenants()] == ["next"])
            equal([t["state"] for t in machine.tenants()], ["queued"])
            expect(not waits.has_answered(), "its memory is not given away yet")
            expect(machine.broker_log().count("event=device_used") <= asked + 1, "nothing was said since")
            if answers:
                os.kill(helper, signal.SIGCONT)
                waits.begin()
                expect("event=memory_kept" not in machine.broker_log(), "it came back")
            else:
                waits.begin()
                expect(re.search(rf"event=memory_kept gpu=GPU-\S+ bytes={100 * MIB} ms=[5-9]\d\d\d ", machine.broker_log()), "that is said")
                os.kill(helper, signal.SIGCONT)
            waits.done("alloc 16 6")
            equal(waits.ask("check"), "right")
            waits.end()
            wait_until("nobody is left", lambda: machine.tenants() == [])


CASES = [default_waits, default_waits_at_its_context, default_on_the_gpu_it_takes, visible_devices_overruled, default_broker_restarted, default_leaves, management_does_not_wait, suspended_by_checkpoint,
         moved_by_checkpoint, moved_by_uuid, children_of_the_moved, drained, suspended_and_resumed, while_suspended_others_have_the_gpu, eight_share_one,
         broker_killed_in_moves, clients_killed_in_moves, rank_lost, gang_alone, moved_for_exclusive,
         freed_when_the_device_shows_it]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("case", choices=[case.__name__ for case in CASES])
    arguments = parser.parse_args()
    dict((case.__name__, case) for case in CASES)[arguments.case](arguments.build)


if __name__ == "__main__":
    main()
