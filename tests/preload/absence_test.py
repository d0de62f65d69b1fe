"""A job's processes while their broker is away: dead, stopped, refusing, deaf, or without its socket's name. Whatever it is, the
job's processes together keep its quota and its share, by the device's own account. Over the software GPU and a broker that can
be told to misbehave; tests/programs/run_absence.py has the real one."""
import os
import re
import shlex
import socket
import subprocess
import sys
import time

from alone_machine import WAIT_S, WORKER, expect, main, wait_until
from broker_test import COUNTER, MIB, Machine, Program, select_readable
from cuda_driver import OUT_OF_MEMORY, SUCCESS
from stand_in_broker import DRAINED, ENTRY

QUOTA = 256
LIMITS = "/memfd:sluice-limits"


class Job(Machine):
    """The programs that a case starts are children of one that was executed under the shim, as those of `sluice run` are."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.context = CONTEXT
        self.limits(QUOTA)

    def broker(self, memory=QUOTA, **how):
        return super().broker(memory, context=CONTEXT * MIB, **how)

    def start(self, code, *words, **variables):
        if "SLUICE_TENANT" not in self.environment:
            return super().start(code, *words, **variables)
        if not hasattr(self, "limits_fd"):
            self.limits_fd = self.family()
        return super().start(code, *words, pass_fds=[self.limits_fd], **variables)

    def family(self):
        """A descriptor of what the job's processes share."""
        root = subprocess.Popen(["sleep", "600"], env={**self.environment, "LD_PRELOAD": self.arguments.shim})
        self.children.append(root)
        folder = f"/proc/{root.pid}/fd"

        def found():
            for name in os.listdir(folder):
                if os.readlink(f"{folder}/{name}").startswith(LIMITS):
                    return f"{folder}/{name}"
            return None

        wait_until(found, "the family of the job's first program")
        return os.open(found(), os.O_RDWR)


CONTEXT = 32
# Fills up, says how much it got, and keeps it until it is told to end.
FILLER = "driver = Driver(); say(driver.context(), driver.fill())\nsys.stdin.readline()\n"


def fillers(gpu, count, quota=QUOTA):
    """So many new processes fill up at once. They get the quota together, to the last step of each, and not one byte more."""
    children = [gpu.start(FILLER) for _ in range(count)]
    taken = [child.stdout.readline().split() for child in children]
    expect(all(len(words) == 2 for words in taken), taken)
    expect(gpu.peak_mib() <= quota, f"{gpu.peak_mib()} MiB of {quota} on the device")
    return children, taken


def expect_full(gpu, count, quota=QUOTA):
    children, taken = fillers(gpu, count, quota)
    got = sum(int(words[1]) for words in taken if words[0] == "0")
    contexts = CONTEXT * sum(words[0] == "0" for words in taken)
    expect(got + contexts > quota - 10 - CONTEXT, f"{got} MiB and contexts of {contexts} are not the quota: {taken}")
    return children


def case_dead(gpu):
    """There is no socket of that name."""
    expect_full(gpu, 3)


def case_refusing(gpu):
    """The socket's file is there, and no broker listens."""
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    deaf.bind(gpu.socket)
    expect_full(gpu, 3)


def case_full_backlog(gpu):
    """The broker accepts nobody, and its queue of connections is full."""
    gpu.broker(QUOTA, accepts=False, backlog=0)
    first = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.connect(gpu.socket)
    expect_full(gpu, 2)


def case_deaf(gpu):
    """The broker accepts and reads, and never answers."""
    gpu.broker(QUOTA, answers=False)
    expect_full(gpu, 2)


def case_beside_registered(gpu):
    """The socket's name is removed while the broker serves a process: what that holds counts for the new ones, and theirs for it."""
    gpu.broker(QUOTA)
    program = Program(gpu)  # 60 MiB
    os.unlink(gpu.socket)
    try:
        child = gpu.start(COUNTER)
        expect(child.stdout.readline() == "0 0\n", "a new process did not start")
        expect(program.ask("fill") > 0, "the rest")
        child.stdin.write("allocate 10\n")
        child.stdin.flush()
        expect(int(child.stdout.readline()) == OUT_OF_MEMORY, "the new one took more than the rest")
        expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device")
        child.stdin.close()
        child.wait(WAIT_S)
        expect(program.ask("fill") >= 60, "what the new one had is not free")
        expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device")
    finally:
        open(gpu.socket, "w").close()  # for the broker to remove


def case_lost_together(gpu):
    """The broker dies: the processes that it knew and new ones share one quota from the first moment on."""
    broker = gpu.broker(QUOTA)
    programs = [Program(gpu), Program(gpu)]  # 60 MiB each
    broker.die()
    fillers(gpu, 2)
    for program in programs:
        program.ask("launch")
        program.ask("fill")
    expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device")
    expect(programs[0].ask("allocate", 10) == OUT_OF_MEMORY, "more than the quota")


def case_killed_holders(gpu):
    """What killed processes held, registered or not, is free for those that live."""
    broker = gpu.broker(QUOTA)
    programs = [Program(gpu), Program(gpu)]
    broker.die()
    children, _ = fillers(gpu, 1)
    for child in (programs[0].child, *children):
        child.kill()
        child.wait()
    expect(programs[1].ask("fill") >= 60, "what the dead had is not free")
    expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device")


def case_comes_back(gpu):
    """Processes that began without a broker are taken in with what they hold; the quota holds before, meanwhile and afterwards."""
    child = gpu.start(COUNTER)
    expect(child.stdout.readline() == "0 0\n", "did not start")
    broker = gpu.broker(QUOTA)
    wait_until(lambda: broker.held() >= (60 + CONTEXT) * MIB, "the account at the broker")
    expect(Program(gpu).ask("fill") > 0, "the rest")
    child.stdin.write("allocate 10\n")
    child.stdin.flush()
    expect(int(child.stdout.readline()) == OUT_OF_MEMORY, "more than the quota")
    expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device")


# Programs of a tree, by name: in each, HERE is how the others are started.
PROGRAMS = {
    "holder": "driver = Driver(); say(driver.context(), driver.fill()); time.sleep(3)",
    "chain": "os.execv('/bin/sh', ['sh', '-c', f'exec {HERE}/holder'])",
    "closed": "subprocess.run([f'{HERE}/holder'], close_fds=True)",
    "daemon": """
if os.fork() == 0:
    os.setsid()
    os.closerange(3, 4096)
    os.environ.clear()
    driver = Driver()
    say(driver.context(), driver.fill())
    time.sleep(3)
    os._exit(0)
""",
    "looker": "driver = Driver(); say(driver.context())",
    "exhausted": """
import resource
few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
driver = Driver()
os.closerange(3, 4096)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
first = driver.context() or driver.fill()
resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))
say(driver.context(), driver.fill())
time.sleep(3)
""",
    "bare": """
import ctypes
driver = Driver()
assert ctypes.CDLL(None).mount(b"none", b"/proc", b"tmpfs", 0, None) == 0
say(driver.context(), driver.fill())
time.sleep(3)
""",
    "orphan": """
if os.fork() == 0:
    os.setsid()
    while os.path.exists(f'/proc/{sys.argv[1]}/exe'): time.sleep(0.05)
    os.closerange(3, 4096)
    os.execv('/bin/sh', ['sh', '-c', f'{HERE}/holder & {HERE}/holder & wait'])
""",
}


def tree_start(gpu, script):
    """A shell of the job's runs the script. A word that begins with `@` stands for a program of PROGRAMS."""
    for name, code in PROGRAMS.items():
        path = gpu.directory / name
        path.write_text(f"#!{sys.executable}\nimport sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
                        f"from cuda_driver import *\nimport os, subprocess, time\nHERE = {str(gpu.directory)!r}\n{code}\n")
        path.chmod(0o755)
    environment = {**gpu.environment, "LD_PRELOAD": gpu.arguments.shim}
    child = subprocess.Popen(["/bin/sh", "-c", script.replace("@", f"{gpu.directory}/")], env=environment, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    gpu.children.append(child)
    return child


def tree(gpu, script):
    """What the programs of that tree say, by line."""
    return tree_start(gpu, script).communicate(timeout=WAIT_S)[0].splitlines()


def case_tree(gpu):
    """A job's programs that a shell starts, by an exec chain and with all descriptors closed, are one tree with one quota."""
    lines = tree(gpu, "@chain & @closed & @holder & wait")
    expect(len(lines) == 3, lines)
    expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device: {lines}")
    expect(gpu.peak_mib() > QUOTA - 10 - CONTEXT, f"{gpu.peak_mib()} MiB is not the quota: {lines}")


def case_forgotten_environment(gpu):
    """Daemons that have closed everything, cleared their environment and outlive who started them keep the quota of the job."""
    lines = tree(gpu, "@daemon; @daemon; @holder; sleep 1")
    expect(len(lines) == 3, lines)
    expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device: {lines}")


# Takes the job's name and its broker's out of a program's environment.
FORGET = "env -u SLUICE_TENANT -u SLUICE_TENANT_LIMITS -u SLUICE_SOCKET"


def expect_one_quota(gpu, lines, count):
    expect(len(lines) == count, lines)
    expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device: {lines}")
    expect(gpu.peak_mib() > QUOTA - 10 - CONTEXT, f"{gpu.peak_mib()} MiB is not the quota: {lines}")


def case_executed_without_variables(gpu):
    """The descriptor that a program inherits says which job it is of, whatever its environment says."""
    expect_one_quota(gpu, tree(gpu, f"@holder & {FORGET} @holder & {FORGET} SLUICE_MEMORY=1GiB @holder & wait"), 3)


def case_executed_without_anything(gpu):
    """Without the variables and with all descriptors closed, the descriptors of its ancestors do."""
    expect_one_quota(gpu, tree(gpu, f"@holder & {FORGET} @closed & {FORGET} @closed & wait"), 3)


def case_no_descriptor_left(gpu):
    """A program that can open nothing to look for its job does not use the GPU meanwhile, and is the job's afterwards."""
    expect_one_quota(gpu, tree(gpu, f"@holder & {FORGET} @exhausted & wait"), 2)


def case_no_proc(gpu):
    """The inherited descriptor is found where there is no /proc."""
    expect_one_quota(gpu, tree(gpu, f"@holder & {FORGET} unshare -m @bare & wait"), 2)


def case_socket_of_the_job(gpu):
    """A program that names a socket without a listener, or none, asks its job's broker."""
    broker = gpu.broker(QUOTA)
    lines = tree(gpu, f"SLUICE_SOCKET=/nonexistent @looker; {FORGET} @looker; {FORGET} SLUICE_SOCKET=/nonexistent @looker")
    expect(broker.registrations == 3, f"{broker.registrations} registrations: {lines}")
    expect(lines == ["0"] * 3, lines)


def inner_job(gpu, quota):
    """The assignments that make a program one of a job of its own."""
    inner = {"SLUICE_TENANT": "0000000000000008-0123456789abcdef"}
    inner["SLUICE_TENANT_LIMITS"] = gpu.environment["SLUICE_TENANT_LIMITS"].replace(
        "7-0", "8-0", 1).replace(str(QUOTA * MIB), str(quota * MIB))
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in inner.items())


def case_job_within_a_job(gpu):
    """A job that is started within another has limits of its own, and not the outer one's account, once a broker knows it."""
    broker = gpu.broker(128)
    gone = gpu.directory / "gone"
    child = tree_start(gpu, f"{inner_job(gpu, 128)} sh -c '@looker; while [ ! -e {gone} ]; do sleep 0.05; done; @holder' & wait")
    expect(child.stdout.readline() == "0\n" and broker.registrations == 1, "the inner job is unknown to the broker")
    broker.die()
    gone.touch()
    lines = child.communicate(timeout=WAIT_S)[0].splitlines()
    expect(lines == ["0 90"], lines)


def case_made_up_job(gpu):
    """A job within a job that no broker has confirmed is none: its programs are the outer job's."""
    made_up = inner_job(gpu, 1024)
    expect_one_quota(gpu, tree(gpu, f"@holder & {made_up} @holder & {made_up} @closed & wait"), 3)


def case_wider_by_hand(gpu):
    """A program that changes the variable within a job finds the family of the job, whose limits stay."""
    wide = gpu.environment["SLUICE_TENANT_LIMITS"].replace(str(QUOTA * MIB), str(1024 * MIB))
    lines = tree(gpu, f"SLUICE_TENANT_LIMITS={shlex.quote(wide)} @holder")
    expect(lines == ["0 220"], lines)


def orphans(gpu, script):
    """Two programs of the job that are executed with everything closed, after those that started them have ended. What they say."""
    said = gpu.directory / "said"
    tree(gpu, script.replace("@orphan", "@orphan $$ > @said 2>&1"))
    wait_until(lambda: len(re.findall("^[0-9]+ [0-9]+$", said.read_text(), re.M)) == 2, "the orphans")
    print(said.read_text())
    return said.read_text()


def case_orphans(gpu):
    """Such programs find no family, and the job's first program is the only one to make it: they wait for a broker."""
    gpu.policy("hold_max = 1s")
    said = orphans(gpu, '@holder & export SLUICE_TENANT_LIMITS="$SLUICE_TENANT_LIMITS founder=$$"; @orphan')
    expect(gpu.peak_mib() <= QUOTA, f"{gpu.peak_mib()} MiB of {QUOTA} on the device")
    expect(said.count("what its job has taken cannot be seen from here") == 2, said)


def case_orphans_bound(gpu):
    """Where nothing says which program is the job's first, they make a family of their own, which has a second quota."""
    orphans(gpu, "@holder & @orphan")
    expect(QUOTA < gpu.peak_mib() <= 2 * QUOTA, f"{gpu.peak_mib()} MiB on the device")


def share_at_most(gpu, workers, percent, what):
    """The device's account over a stretch of its own clock that does not begin before the gates have acted."""
    pids = [worker.pid for worker in workers]
    before_ns, begin_ns = gpu.busy_ns(pids), time.monotonic_ns()
    time.sleep(4)
    share = 100 * (gpu.busy_ns(pids) - before_ns) / (time.monotonic_ns() - begin_ns)
    print(f"{what}: {percent} % asked, {share:.2f} % of the wall time on the device")
    # A bucket saves up to five periods (100 ms of wall time), which is 2.5 % of the stretch.
    expect(0 < share <= percent * 1.08, f"{what}: {share:.2f} % instead of {percent} %")


def case_share_of_new(gpu):
    """New processes of a job have its share of the GPU's time, together."""
    gpu.limits(QUOTA, 20)
    workers = [gpu.start(WORKER, 60) for _ in range(2)]
    for worker in workers:
        expect(worker.stdout.readline() == "0\n", "a worker did not start")
    time.sleep(1)
    share_at_most(gpu, workers, 20, "two new ones")


def case_share_of_lost(gpu):
    """A job that had the whole GPU under its broker has its share without it, and the processes that begin then are in it."""
    gpu.limits(QUOTA, 20)
    broker = gpu.broker(QUOTA, percent=20)
    old = gpu.start(WORKER, 90)
    expect(old.stdout.readline() == "0\n", "a worker did not start")
    broker.die()
    new = gpu.start(WORKER, 90)
    expect(new.stdout.readline() == "0\n", "a worker did not start")
    time.sleep(4)  # more than the grace
    share_at_most(gpu, [old, new], 20, "one that was registered and a new one")
    again = gpu.broker(QUOTA, percent=20)
    wait_until(lambda: again.registrations == 2, "both registered")
    pids = [old.pid, new.pid]
    before_ns, begin_ns = gpu.busy_ns(pids), time.monotonic_ns()
    wait_until(lambda: gpu.busy_ns(pids) - before_ns > 0.3 * (time.monotonic_ns() - begin_ns), "the open lease of the new broker")


def case_share_unannounced(gpu):
    """A program that nobody announced, and that a broker knew, keeps its share by itself."""
    del gpu.environment["SLUICE_TENANT"]
    broker = gpu.broker(QUOTA, percent=20)
    old = gpu.start(WORKER, 60)
    expect(old.stdout.readline() == "0\n", "a worker did not start")
    broker.die()
    time.sleep(4)  # more than the grace
    share_at_most(gpu, [old], 20, "one that nobody announced")


KERNEL_MS = 200  # of "long" (alone_machine.py)
FLOOD = """
driver = Driver()
say(driver.context() or driver.load("long") or driver.launch("long") or driver.synchronize())
sys.stdin.readline()
for _ in range(500):
    os.write(1, b"." if driver.launch("long") == SUCCESS else b"!")
os._exit(0)
"""


def expect_short_drain(gpu, child):
    """The program launches as fast as it is let. What is in flight stays short all the time, and so does the broker's first drain."""
    os.set_blocking(child.stdout.fileno(), False)
    child.stdin.write("\n")
    child.stdin.flush()
    launched = b""
    begin_ns = gpu.busy_ns([child.pid])

    def in_flight_ms():
        nonlocal launched
        launched += os.read(child.stdout.fileno(), 4096) if select_readable(child.stdout) else b""
        return len(launched) * KERNEL_MS - (gpu.busy_ns([child.pid]) - begin_ns) / 1e6

    most = 0

    def has_run():
        nonlocal most
        most = max(most, in_flight_ms())
        return gpu.busy_ns([child.pid]) - begin_ns >= 15 * KERNEL_MS * 1e6

    wait_until(has_run, "fifteen kernels")
    print(f"at most {most:.0f} ms in flight, in kernels of {KERNEL_MS} ms")
    expect(b"!" not in launched, "a launch failed")
    expect(most <= 8 * KERNEL_MS, f"{most:.0f} ms in flight, in kernels of {KERNEL_MS} ms")
    again = gpu.broker(QUOTA, is_open=False)
    wait_until(lambda: DRAINED in again.notes, "the drain")


def case_backlog_of_new(gpu):
    """A process that found no broker is bounded in flight as under contention."""
    child = gpu.start(FLOOD)
    expect(child.stdout.readline() == "0\n", "did not start")
    expect_short_drain(gpu, child)


def case_backlog_of_lost(gpu):
    """So is one whose broker gave it a window without a bound, and went away."""
    broker = gpu.broker(QUOTA)
    broker.lease.put(ENTRY + 40, "Q", 0)  # window_ns
    child = gpu.start(FLOOD)
    expect(child.stdout.readline() == "0\n", "did not start")
    broker.gate(False)
    wait_until(lambda: DRAINED in broker.notes, "the drain")
    broker.die()  # the gate opens after the grace
    expect_short_drain(gpu, child)


if __name__ == "__main__":
    main(globals(), Job)
