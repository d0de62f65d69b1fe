"""Limits without a broker: SLUICE_MEMORY and SLUICE_SM over the software GPU, whose own accounts are the judge."""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cuda_driver
from cuda_driver import NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS

WAIT_S = 60  # for anything that has to happen; nothing here takes long


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


class Gpu:
    """A software GPU of its own, and programs under the shim."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="sluice-alone-", dir="/dev/shm"))
        self.children = []
        self.accounted = False
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("SLUICE_", "SOFTGPU_", "CUDA_")) and name != "LD_PRELOAD"}
        self.environment.update(
            LD_LIBRARY_PATH=arguments.softgpu, SOFTGPU_DIR=str(self.directory / "gpus"), SOFTGPU_COUNT="1",
            SOFTGPU_MEMORY="1GiB", SOFTGPU_CONTEXT="32MiB", SOFTGPU_TIMED="spin=1ms/skip",
            SLUICE_SOCKET=str(self.directory / "nobody.sock"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream:
                    stream.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, code, *words, shim=None, **variables):
        environment = {**self.environment, "LD_PRELOAD": shim or self.arguments.shim, **variables}
        child = cuda_driver.python(code, *words, env=environment, text=True, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.children.append(child)
        return child

    def run(self, code, *words, **variables):
        child = self.start(code, *words, **variables)
        out, err = child.communicate(timeout=WAIT_S)
        expect(child.returncode == 0, f"exit {child.returncode}: {out!r} {err!r}")
        return out.split("\n")[:-1], err

    def accounts(self):
        text = subprocess.run([self.arguments.ctl, "accounts", "--json", "--dir", self.environment["SOFTGPU_DIR"]],
                              check=True, capture_output=True, text=True).stdout
        return [process for device in json.loads(text)["devices"] for process in device["processes"]]

    def busy_ns(self, pids):
        """GPU time of these processes by the device's own account, also after their end."""
        return sum(account["busy_ns"] for account in self.accounts() if account["pid"] in pids)


def case_memory(gpu):
    """One process is stopped at its limit, and is shown a GPU of that size."""
    out, err = gpu.run("driver = Driver(); say(driver.context()); say(driver.free_mib()); say(driver.fill()); "
                       "say(driver.free_mib())", SLUICE_MEMORY="100MiB")
    expect(out == ["0", "(100, 100)", "100", "(0, 100)"], out)
    expect(err == "sluice: refused 10.0 MiB: you use 100.0 of your 100.0 MiB on GPU 0. The program sees CUDA out of "
           "memory.\n", err)


def case_context(gpu):
    """The first context on the GPU tells what one costs; all of them count, and are given back."""
    out, _ = gpu.run("""
driver = Driver()
say(driver.context(), driver.free_mib())
second = ctypes.c_void_p()
say(driver.library.cuCtxCreate_v2(ctypes.byref(second), 0, 0), driver.free_mib())
say(driver.library.cuCtxDestroy_v2(second), driver.free_mib())
say(driver.fill(), driver.free_mib(), driver.library.cuCtxCreate_v2(ctypes.byref(second), 0, 0))
say(driver.library.cuDevicePrimaryCtxRelease_v2(0), driver.context(), driver.free_mib())
""", SLUICE_MEMORY="100MiB", SOFTGPU_CONTEXT="32MiB")
    expect(out == ["0 (68, 100)", "0 (36, 100)", "0 (68, 100)", "60 (8, 100) 2", "0 0 (68, 100)"], out)


def case_context_of_the_next(gpu):
    """What the first one cost is asked of the next process before the driver makes its context."""
    out, _ = gpu.run("""
def child():
    subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, %r)\\nfrom cuda_driver import *\\n"
        "driver = Driver(); say(driver.context(), driver.fill(), driver.free_mib())" % sys.path[0]])
driver = Driver()
say(driver.context(), driver.allocate(20))
child()
say(driver.allocate(20))
child()
""".replace("\\\\n", "\\n"), SLUICE_MEMORY="100MiB", SOFTGPU_CONTEXT="32MiB")
    expect(out == ["0 0", "0 10 (6, 100)", "0", "2 0 (0, 0)"], out)


def case_context_beyond_the_limit(gpu):
    """A context that takes more than the limit is undone and refused; nothing stays of it."""
    child = gpu.start("""
driver = Driver()
context = ctypes.c_void_p(7)
say(driver.library.cuInit(0), driver.library.cuCtxCreate_v2(ctypes.byref(context), 0, 0), context.value)
say(driver.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), context.value)
sys.stdin.read()
""", SLUICE_MEMORY="20MiB", SOFTGPU_CONTEXT="32MiB")
    out = [child.stdout.readline().strip() for _ in range(2)]
    held = [account["memory_bytes"] for account in gpu.accounts()]
    _, err = child.communicate(timeout=WAIT_S)
    expect(out == ["0 2 7", "2 7"] and sum(held) == 0, (out, held))
    expect(err == "sluice: refused 32.0 MiB: you use 0.0 of your 20.0 MiB on GPU 0. The program sees CUDA out of memory.\n", err)


TREE = """
# The limit holds for a parent, a child by fork that began before the parent used CUDA, and a child by exec.
ready, go = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    driver = Driver()
    assert os.read(go[0], 1)
    say("fork", driver.context(), driver.allocate(30), driver.allocate(50))
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os._exit(0)
driver = Driver()
say("parent", driver.context(), driver.allocate(30))
os.write(go[1], b"x")
os.read(ready[0], 1)
close = sys.argv[1] == "closed"
child = subprocess.run([sys.executable, "-c", '''
import sys; sys.path.insert(0, sys.argv[1])
from cuda_driver import *
driver = Driver()
say("exec", driver.context(), driver.allocate(30), driver.allocate(20), driver.allocate(10), driver.free_mib())
''', sys.path[0]], close_fds=close)
os.write(go[1], b"x")
os.waitpid(pid, 0)
say("after", driver.allocate(70), driver.allocate(1))
"""


def tree(gpu, how):
    out, _ = gpu.run(TREE, how, SLUICE_MEMORY="100MiB")
    expect(out == ["parent 0 0", "fork 0 0 2", "exec 0 0 2 0 (0, 100)", "after 0 2"], out)


def case_tree(gpu):
    """Parent, forked and executed child have one limit; what the ended ones held is free again."""
    tree(gpu, "open")


def case_tree_closed(gpu):
    """So has a child that was started with every descriptor closed."""
    tree(gpu, "closed")


def case_launcher(gpu):
    """Two children of a shell that never uses CUDA itself, and closes the descriptor, have one limit together."""
    child = gpu.start("""
shell = subprocess.Popen(["/bin/bash", "-c", 'exec 3<&0 1000>&-; "$@" <&3 & "$@" <&3 & wait', "bash", sys.executable,
                          "-c", "import sys; sys.path.insert(0, %r)\\nfrom cuda_driver import *\\n"
                          "driver = Driver(); driver.context(); say(driver.fill()); sys.stdin.read()" % sys.path[0]],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
say([int(shell.stdout.readline()) for _ in range(2)])
shell.stdin.close()
shell.wait()
""", SLUICE_MEMORY="100MiB")
    out, err = child.communicate(timeout=WAIT_S)
    expect(child.returncode == 0 and sum(json.loads(out)) == 100, (out, err))


def case_orphan(gpu):
    """A daemon that lost its parents and then executes another program keeps the limit."""
    out, _ = gpu.run("""
reader, writer = os.pipe()
go_reader, go_writer = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        os.setsid()
        os.dup2(writer, 1)
        os.close(reader)
        while os.getppid() == parent: time.sleep(0.01)
        os.read(go_reader, 1)
        os.execv(sys.executable, [sys.executable, "-c", "import sys; sys.path.insert(0, %r)\\n"
                 "from cuda_driver import *\\n"
                 "driver = Driver(); say(driver.context(), driver.fill())" % sys.path[0]])
    os._exit(0)
os.wait()
os.close(writer)
driver = Driver()
driver.context()
driver.allocate(40)
os.write(go_writer, b"g")
say(os.fdopen(reader).read().strip())
""", SLUICE_MEMORY="100MiB")
    expect(out == ["0 60"], out)


def case_killed_holder(gpu):
    """What a process held that was killed is free at once, also for one that waits in no call."""
    out, _ = gpu.run("""
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.path.insert(0, %r)\\n"
    "from cuda_driver import *\\n"
    "driver = Driver(); driver.context(); say(driver.fill()); sys.stdin.read()" % sys.path[0]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
say(child.stdout.readline().strip().decode())
driver = Driver()
say(driver.context(), driver.allocate(1))
child.kill()
child.wait()
say(driver.allocate(100), driver.allocate(1))
""", SLUICE_MEMORY="100MiB")
    expect(out == ["100", "0 2", "0 2"], out)


def case_killed_holder_and_a_load(gpu):
    """The same for a load, which is measured when it is made."""
    out, _ = gpu.run("""
driver = Driver()
say(driver.context())
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.path.insert(0, %r)\\n"
    "from cuda_driver import *\\n"
    "driver = Driver(); driver.context(); say(driver.fill()); sys.stdin.read()" % sys.path[0]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
say(child.stdout.readline().strip().decode())
say(driver.load_room(60))
child.kill()
child.wait()
say(driver.load_room(60), driver.load_room(60))
""", SLUICE_MEMORY="100MiB")
    expect(out == ["0", "100", "2", "0 2"], out)


def case_slots_are_reused(gpu):
    """More processes than the page has places, one after the other; none leaves anything behind."""
    out, _ = gpu.run("""
for i in range(140):
    pid = os.fork()
    if pid == 0:
        driver = Driver()
        ok = driver.context() == 0 and driver.allocate(90) == 0
        os.kill(os.getpid(), signal.SIGKILL if ok else signal.SIGTERM)
    if os.waitpid(pid, 0)[1] != signal.SIGKILL: say("failed", i)
driver = Driver()
say(driver.context(), driver.fill())
""", SLUICE_MEMORY="100MiB")
    expect(out == ["0 100"], out)


def case_narrower_child(gpu):
    """A child may ask for less than its family has, not for more, and not get out by unsetting the variables."""
    out, _ = gpu.run("""
def child(**variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_MEMORY", "SLUICE_SM"))}
    subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, %r)\\nfrom cuda_driver import *\\n"
        "driver = Driver(); say(driver.context(), driver.fill(), driver.free_mib()[1])" % sys.path[0]],
        env={**environment, **variables}, close_fds=False)
child(SLUICE_MEMORY="40MiB")
child(SLUICE_MEMORY="1GiB")
child()
""", SLUICE_MEMORY="100MiB")
    expect(out == ["0 40 40", "0 100 100", "0 100 100"], out)


WORKER = """
driver = Driver()
say(driver.context() or driver.load())
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(16): driver.launch()
    driver.synchronize()
"""


def share_of(gpu, workers, seconds, **variables):
    """GPU time by the device's account, and the wall time, of workers that never rest."""
    for worker in workers:
        expect(worker.stdout.readline() == "0\n", "a worker did not start")
    pids = [worker.pid for worker in workers]
    time.sleep(1)
    before_ns, begin_ns = gpu.busy_ns(pids), time.monotonic_ns()
    time.sleep(seconds)
    return (gpu.busy_ns(pids) - before_ns) / (time.monotonic_ns() - begin_ns)


def expect_share(share, percent, what):
    """Never more than a little above what was asked for. It may be less where the host is too busy to keep the GPU so."""
    print(f"{what}: {percent} % asked, {100 * share:.2f} % of the wall time on the device")
    expect(0.9 <= share / (percent / 100) <= 1.03, f"{what}: {100 * share:.2f} % instead of {percent} %")


def case_share(gpu):
    """The GPU is busy for the share of the time that was asked for, by the device's account."""
    for percent in (50, 20, 80):
        worker = gpu.start(WORKER, 60, SLUICE_SM=f"{percent}%")
        expect_share(share_of(gpu, [worker], 4), percent, "one process")
        worker.kill()
        worker.wait()


def case_share_together(gpu):
    """Three processes of a family have one share; two go on with it when the third is killed, whichever that is."""
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\nfrom cuda_driver import *\nimport time\n{WORKER}"
    parent = gpu.start("""
children = [subprocess.Popen([sys.executable, "-c", sys.argv[1], "120"], stdout=subprocess.DEVNULL) for _ in range(3)]
say(" ".join(str(child.pid) for child in children))
for line in sys.stdin:
    child = children[int(line)]
    child.kill()
    child.wait()
    say("killed")
for child in children:
    child.kill()
    child.wait()
""", code, SLUICE_SM="50%")
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    wait_until(lambda: all(any(a["pid"] == pid and a["launches"] > 4 for a in gpu.accounts()) for pid in pids),
               "all three launch")

    def share(seconds):
        before_ns, begin_ns = gpu.busy_ns(pids), time.monotonic_ns()
        time.sleep(seconds)
        return (gpu.busy_ns(pids) - before_ns) / (time.monotonic_ns() - begin_ns)

    time.sleep(1)
    expect_share(share(4), 50, "three processes")
    for index in (0, 1):
        parent.stdin.write(f"{index}\n")
        parent.stdin.flush()
        expect(parent.stdout.readline() == "killed\n", "not killed")
        expect_share(share(4), 50, f"{2 - index} left after kill -9")
    parent.stdin.close()
    expect(parent.wait(WAIT_S) == 0, "the parent failed")


def both_limits_hold(gpu, parent, lines, pids, flag):
    expect(len(set(pids)) == 3 and all(line[1] == 0 for line in lines), lines)
    expect(sum(line[2] for line in lines) == 98 and all(line[4] == 100 for line in lines), lines)
    expect(sum(account["memory_bytes"] for account in gpu.accounts()) == 98 << 20, gpu.accounts())
    wait_until(lambda: all(any(a["pid"] == pid and a["launches"] > 4 for a in gpu.accounts()) for pid in pids),
               "all three launch")
    time.sleep(1)

    def share(seconds):
        before_ns, begin_ns = gpu.busy_ns(pids), time.monotonic_ns()
        time.sleep(seconds)
        return (gpu.busy_ns(pids) - before_ns) / (time.monotonic_ns() - begin_ns)

    expect_share(share(2), 40, "three processes with a memory limit")
    killed = next(line for line in lines if line[0] != parent.pid and (line[2] > 0 or line is lines[-1]))
    os.kill(killed[0], signal.SIGKILL)
    expect_share(share(2), 40, "two left after kill -9")
    flag.touch()
    again = [[int(word) for word in parent.stdout.readline().split()] for _ in range(2)]
    # Seven at a time: what the killed one had and what was left over is taken again, as far as sevens go.
    expect(sum(line[1] for line in again) == (killed[2] + 2) // 7 * 7, (lines, killed, again))


def case_both_limits(gpu):
    """A memory limit and a share at once: a parent, a forked and an executed child have both together, and no more of
    either; what a killed one held, of both, is the others'."""
    member = """
driver = Driver()
ok = driver.context() or driver.load()
say(os.getpid(), ok, driver.fill(7), *driver.free_mib())
end = time.monotonic() + 120
while time.monotonic() < end:
    for _ in range(16): driver.launch()
    driver.synchronize()
    if os.path.exists(FLAG):
        say(os.getpid(), driver.fill(7), *driver.free_mib())
        time.sleep(120)
"""
    flag = gpu.directory / "fill-again"
    code = f"FLAG = {str(flag)!r}\n{member}"
    parent = gpu.start("""
code = sys.argv[1]
if os.fork() == 0: exec(code)
preamble = "import os, sys, time; sys.path.insert(0, %r)\\nfrom cuda_driver import *\\n" % sys.path[0]
child = subprocess.Popen([sys.executable, "-c", preamble + code])
exec(code)
""".replace("\\\\n", "\\n"), code, SLUICE_MEMORY="100MiB", SLUICE_SM="40%")
    lines = [[int(word) for word in parent.stdout.readline().split()] for _ in range(3)]
    pids = [line[0] for line in lines]
    try:
        both_limits_hold(gpu, parent, lines, pids, flag)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def case_share_stopped(gpu):
    """A stopped member of the family (Ctrl-Z) stops nobody else."""
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\nfrom cuda_driver import *\nimport time\n{WORKER}"
    parent = gpu.start("""
children = [subprocess.Popen([sys.executable, "-c", sys.argv[1], "120"], stdout=subprocess.DEVNULL) for _ in range(2)]
say(" ".join(str(child.pid) for child in children))
sys.stdin.read()
for child in children:
    child.kill()
    child.wait()
""", code, SLUICE_SM="50%")
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    wait_until(lambda: all(any(a["pid"] == pid and a["launches"] > 4 for a in gpu.accounts()) for pid in pids),
               "both launch")
    os.kill(pids[0], signal.SIGSTOP)
    time.sleep(1)
    before_ns, begin_ns = gpu.busy_ns(pids), time.monotonic_ns()
    time.sleep(3)
    expect_share((gpu.busy_ns(pids) - before_ns) / (time.monotonic_ns() - begin_ns), 50, "the other one alone")
    os.kill(pids[0], signal.SIGCONT)
    parent.stdin.close()
    expect(parent.wait(WAIT_S) == 0, "the parent failed")


def case_debt_outlives(gpu):
    """Short programs one after the other have no more together than one that lasts."""
    child = gpu.start("""
code = '''import sys; sys.path.insert(0, %r)
from cuda_driver import *
driver = Driver()
ok = driver.context() or driver.load()
for _ in range(150): ok = ok or driver.launch()
ok = ok or driver.synchronize()
say(ok)
''' % sys.path[0]
begin = time.monotonic()
for _ in range(8): assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"0\\\\n"
say(time.monotonic() - begin)
""".replace("\\\\n", "\\n"), SLUICE_SM="30%")
    out, err = child.communicate(timeout=WAIT_S)
    expect(child.returncode == 0, err)
    # 8 x 150 ms of GPU time at 30 % take 4 s; what is saved up at the start is 30 ms of GPU time, and the last one's
    # debt is nobody's to wait for.
    print(f"1.2 s of GPU time at 30 % took {float(out):.2f} s")
    expect(float(out) >= (1.2 - 0.15 - 0.03) / 0.3 * 0.95, out)


BESIDE = """
driver = Driver()
assert driver.context() == 0 and driver.load("spin", "long") == 0
streams = [driver.stream() for _ in range(2)]
"""


def case_share_behind_a_long_kernel(gpu):
    """A kernel that does not end keeps the gate closed for good, and may be waiting for the launch at it: launches are let
    through now and then, and what they use is charged like any other."""
    gpu.environment["SOFTGPU_TIMED"] = "spin=1ms/skip,long=30s/skip"
    for same in (0, 1):
        out, _ = gpu.run(BESIDE + """
driver.launch("long", streams[0])
time.sleep(0.2)
begin = time.monotonic()
for _ in range(5): assert driver.launch("spin", streams[1 - int(sys.argv[1])]) == 0
say(time.monotonic() - begin)
os._exit(0)
""", same, SLUICE_SM="50%")
        # Without it: until the debt of thirty seconds is paid, a minute. Five in another stream, that end at once, each
        # after 50 ms; behind it, where they pile up, ever later.
        print(f"five launches {'behind' if same else 'beside'} it took {float(out[0]):.2f} s")
        expect(0.2 <= float(out[0]) < 15, out)


def case_share_between_processes(gpu):
    """The same where the launch is another process's of the family."""
    gpu.environment["SOFTGPU_TIMED"] = "spin=1ms/skip,long=30s/skip"
    out, _ = gpu.run("""
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    """ + BESIDE.strip().replace("\n", "\n    ") + """
    driver.launch("long", streams[0])
    time.sleep(0.2)
    os.write(writer, b"x")
    time.sleep(600)
os.read(reader, 1)
""" + BESIDE + """
begin = time.monotonic()
for _ in range(3): assert driver.launch("spin", streams[0]) == 0
say(time.monotonic() - begin)
os.kill(pid, signal.SIGKILL)
os._exit(0)
""", SLUICE_SM="50%")
    print(f"three launches took {float(out[0]):.2f} s")
    expect(0.2 <= float(out[0]) < 15, out)


def case_share_of_short_lives(gpu):
    """Processes that end right after their work, in whatever way: what they used is paid for by the next."""
    gpu.environment["SOFTGPU_TIMED"] = "long=10ms/skip"
    for end in ("sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"):
        before = sum(account["busy_ns"] for account in gpu.accounts()) if gpu.accounted else 0
        out, _ = gpu.run("""
begin, count = time.monotonic(), 0
while time.monotonic() - begin < 3:
    pid = os.fork()
    if pid == 0:
        driver = Driver()
        assert driver.context() == 0 and driver.load("long") == 0
        assert driver.launch("long", None) == 0 and driver.synchronize() == 0
        """ + end + """
    os.waitpid(pid, 0)
    count += 1
say(count, time.monotonic() - begin)
""", SLUICE_SM="20%")
        gpu.accounted = True
        count, seconds = out[0].split()
        used = (sum(account["busy_ns"] for account in gpu.accounts()) - before) / 1e9
        print(f"{end}: {count} processes used {used:.2f} of {float(seconds):.2f} s")
        # What is saved up at the start, and the debt of the last one.
        expect(used <= 0.2 * float(seconds) + 0.02 + 0.02, (end, used, seconds))
        expect(int(count) >= 10, count)


def case_share_of_long_kernels(gpu):
    """Kernels that are merely long gain nothing by it, however many streams they come by."""
    gpu.environment["SOFTGPU_TIMED"] = "long=120ms/skip"
    worker = gpu.start(BESIDE.replace('"spin", ', "") + """
say(0)
while True:
    for stream in streams: driver.launch("long", stream)
""", SLUICE_SM="30%")
    share = share_of(gpu, [worker], 20)
    print(f"30 % asked, {100 * share:.2f} % of the wall time on the device")
    # Two kernels more or less at the ends of what was measured.
    expect(0.3 * 0.8 - 0.012 <= share <= 0.3 + 0.012, share)


def case_share_of_each_gpu(gpu):
    """A GPU that has used up its share closes no other."""
    gpu.environment.update(SOFTGPU_COUNT="2", SOFTGPU_TIMED="spin=1ms/skip,long=30s/skip")
    out, _ = gpu.run("""
driver = Driver()
assert driver.library.cuInit(0) == 0
contexts = []
for device in (0, 1):
    context = ctypes.c_void_p()
    assert driver.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert driver.library.cuCtxSetCurrent(context) == 0 and driver.load("spin", "long") == 0
    if device == 0: driver.launch("long")
time.sleep(0.2)
begin = time.monotonic()
for _ in range(100):
    driver.launch("spin")
    driver.synchronize()
say(time.monotonic() - begin)
os._exit(0)
""", SLUICE_SM="50%")
    print(f"a hundred launches of 1 ms took {float(out[0]):.2f} s")
    expect(0.1 <= float(out[0]) < 10, out)


def case_every_place_taken(gpu):
    """128 processes of a family may use CUDA at a time; one more is told so, and does not run free."""
    child = gpu.start("""
children = []
for i in range(129):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"%d" % Driver().library.cuInit(0))
        time.sleep(600)
    children.append((pid, reader))
    os.close(writer)
    answer = int(os.read(reader, 16))
    if answer: say(i, answer)
os.kill(children[0][0], signal.SIGKILL)
os.waitpid(children[0][0], 0)
say(Driver().library.cuInit(0))
for pid, _ in children[1:]: os.kill(pid, signal.SIGKILL)
""", SLUICE_MEMORY="100MiB")
    out, err = child.communicate(timeout=WAIT_S)
    expect(out == f"128 {NOT_PERMITTED}\n0\n", (out, err))
    expect(err == "sluice: this process may not use the GPU: its limits need a thread and one of 128 places for processes, "
           "and there is none; end other processes first\n", err)


def case_two_gpus(gpu):
    """The limit is that of each GPU."""
    gpu.environment["SOFTGPU_COUNT"] = "2"
    out, _ = gpu.run("""
driver = Driver()
driver.library.cuInit(0)
for device in (1, 0):
    context = ctypes.c_void_p()
    say(driver.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), driver.library.cuCtxSetCurrent(context),
        driver.fill(), driver.free_mib())
""", SLUICE_MEMORY="100MiB")
    expect(out == ["0 0 100 (0, 100)"] * 2, out)


def case_too_many_gpus(gpu):
    """A ninth GPU would be without limits: CUDA stops instead."""
    gpu.environment["SOFTGPU_COUNT"] = "9"
    out, err = gpu.run("driver = Driver(); say(driver.context())", SLUICE_MEMORY="100MiB")
    expect(out == [str(NOT_PERMITTED)], out)
    expect(err == "sluice: this process may not use the GPU: it sees more GPUs than limits without a broker reach; name 8 of "
           "them in CUDA_VISIBLE_DEVICES\n", err)


def case_nvml(gpu):
    """A monitor without CUDA sees what the family has and uses."""
    out, _ = gpu.run("""
def monitor():
    subprocess.run([sys.executable, "-c", '''
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
print(*[n >> 20 for n in memory], flush=True)'''], check=True)
monitor()
driver = Driver()
driver.context()
driver.allocate(60)
monitor()
""", SLUICE_MEMORY="100MiB")
    expect(out == ["100 100 0", "100 40 60"], out)


def wait_until(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        expect(time.monotonic() < end, f"in vain: {what}")
        time.sleep(0.02)


def case_bad_values(gpu):
    """A value that means nothing stops CUDA, with one line that says why and what to do."""
    for name, value, reason in (
            ("SLUICE_MEMORY", "lots", "no size above 0"), ("SLUICE_MEMORY", "0", "no size above 0"),
            ("SLUICE_MEMORY", "2GB", "no size above 0"), ("SLUICE_MEMORY", "-1GiB", "no size above 0"),
            ("SLUICE_MEMORY", "16777216TiB", "no size above 0"), ("SLUICE_MEMORY", "99999999999999999999", "no size above 0"),
            ("SLUICE_MEMORY", "0.5", "no size above 0"), ("SLUICE_MEMORY", "2GiB\n", "no size above 0"),
            ("SLUICE_SM", "0%", "no whole percentage from 1 to 100"), ("SLUICE_SM", "101%", "no whole percentage from 1 to 100"),
            ("SLUICE_SM", "12.5", "no whole percentage from 1 to 100"), ("SLUICE_SM", "half", "no whole percentage from 1 to 100"),
            ("SLUICE_SM", "18446744073709551666", "no whole percentage from 1 to 100")):
        out, err = gpu.run("driver = Driver(); say(driver.context()); say(driver.allocate(1)); say(driver.launch())",
                           **{name: value})
        expect(out == [str(NOT_PERMITTED)] * 3, (value, out))
        shown = re.escape(value.replace("\n", "?"))
        expect(re.fullmatch(f"sluice: {name} is '{shown}', which is {reason}; CUDA calls fail until it is one, such as "
                            "[^\n]*, or is unset\n", err), (value, err))
    for variables in ({"SLUICE_MEMORY": "1.5 GiB"}, {"SLUICE_SM": "100"}, {"SLUICE_MEMORY": "", "SLUICE_SM": ""}):
        out, err = gpu.run("driver = Driver(); say(driver.context())", **variables)
        expect((out, err) == (["0"], ""), (variables, out, err))


def case_no_traces(gpu):
    """A program without CUDA has one more descriptor with the variables, and nothing more without."""
    look = "say(len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))"
    plain, _ = gpu.run(look)
    limited, _ = gpu.run(look, SLUICE_MEMORY="1GiB")
    expect(int(limited[0].split()[0]) == int(plain[0].split()[0]) + 1, (plain, limited))
    expect(limited[0].split()[1] == plain[0].split()[1] == "1", limited)


def main(cases, machine_make, *further_options):
    """The program of a file of cases: one of them by name, on a machine of its own."""
    cases = {name[5:]: function for name, function in cases.items() if name.startswith("case_")}
    parser = argparse.ArgumentParser()
    for option in ("shim", "softgpu", "ctl", *further_options):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("case", choices=sorted(cases))
    options = parser.parse_args()
    with machine_make(options) as machine:
        try:
            cases[options.case](machine)
        except AssertionError as failure:
            print(f"{pathlib.Path(sys.argv[0]).name}: {options.case}: {failure}", file=sys.stderr)
            sys.exit(1)


class CheapGpu(Gpu):
    """Contexts cost nothing but where a case says so: what counts is what programs allocate."""

    def __init__(self, arguments):
        super().__init__(arguments)
        self.environment["SOFTGPU_CONTEXT"] = "0MiB"


if __name__ == "__main__":
    main(globals(), CheapGpu)
