"""Shares of a GPU's time without a broker: SLUICE_SM over the software GPU, whose own accounts are the judge."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from alone_machine import WAIT_S, WORKER, CheapGpu, expect, expect_share, main, share_measure, share_of, wait_until


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
    time.sleep(1)
    expect_share(share_measure(gpu, pids, 4), 50, "three processes")
    for index in (0, 1):
        parent.stdin.write(f"{index}\n")
        parent.stdin.flush()
        expect(parent.stdout.readline() == "killed\n", "not killed")
        expect_share(share_measure(gpu, pids, 4), 50, f"{2 - index} left after kill -9")
    parent.stdin.close()
    expect(parent.wait(WAIT_S) == 0, "the parent failed")


def both_limits_hold(gpu, parent, lines, pids, flag):
    expect(len(set(pids)) == 3 and all(line[1] == 0 for line in lines), lines)
    expect(sum(line[2] for line in lines) == 98 and all(line[4] == 100 for line in lines), lines)
    expect(sum(account["memory_bytes"] for account in gpu.accounts()) == 98 << 20, gpu.accounts())
    wait_until(lambda: all(any(a["pid"] == pid and a["launches"] > 4 for a in gpu.accounts()) for pid in pids),
               "all three launch")
    time.sleep(1)

    expect_share(share_measure(gpu, pids, 2), 40, "three processes with a memory limit")
    killed = next(line for line in lines if line[0] != parent.pid and (line[2] > 0 or line is lines[-1]))
    os.kill(killed[0], signal.SIGKILL)
    expect_share(share_measure(gpu, pids, 2), 40, "two left after kill -9")
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
    expect_share(share_measure(gpu, pids, 3), 50, "the other one alone")
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


def case_share_of_another_clock(gpu):
    """Members whose time namespaces put their clocks days ahead, or minutes, have one share with those of the machine's
    clock, also when they have gone."""
    ahead = ["unshare", "--time", "--fork", "--kill-child", "--monotonic"]
    if os.geteuid() != 0 or subprocess.run([*ahead, "9", "true"], capture_output=True, check=False).returncode != 0:
        print("skipped: only root can make time namespaces, with Linux 5.6 and util-linux's unshare")
        sys.exit(77)
    code = (f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\nfrom cuda_driver import *\nimport os, time\n"
            f"say(os.getpid())\n{WORKER}")
    parent = gpu.start("""
import json
children = []
for prefix in json.loads(sys.argv[2]):
    children.append(subprocess.Popen([*prefix, sys.executable, "-c", sys.argv[1], "120"], stdout=subprocess.PIPE, text=True))
    say(int(children[-1].stdout.readline()))
sys.stdin.read()
for child in children:
    child.kill()
    child.wait()
""", code, json.dumps([[*ahead, "1000000"], [*ahead, "100"], []]), SLUICE_SM="50%")
    pids = [int(parent.stdout.readline()) for _ in range(3)]
    wait_until(lambda: all(any(a["pid"] == pid and a["launches"] > 4 for a in gpu.accounts()) for pid in pids),
               "all three launch")
    time.sleep(1)
    expect_share(share_measure(gpu, pids, 4), 50, "three clocks")
    for index in (0, 1):
        os.kill(pids[index], signal.SIGKILL)
        expect_share(share_measure(gpu, pids, 4), 50, f"{2 - index} left after kill -9")
    parent.stdin.close()
    expect(parent.wait(WAIT_S) == 0, "the parent failed")


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
while count < 10 or time.monotonic() - begin < 3:
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


def case_share_of_long_kernels(gpu):
    """Kernels that are merely long gain nothing by it, however many streams they come by."""
    gpu.environment["SOFTGPU_TIMED"] = "long=120ms/skip"
    worker = gpu.start(BESIDE.replace('"spin", ', "") + """
say(0)
while True:
    for stream in streams: driver.launch("long", stream)
""", SLUICE_SM="30%")
    share = share_of(gpu, [worker], 20)
    print(f"30 % asked, {100 * share.busy:.2f} % of the wall time on the device")
    # Two kernels more or less at the ends of what was measured.
    expect(0.3 * 0.8 * (1 - share.starved) - 0.012 <= share.busy <= 0.3 + 0.012, share)


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


if __name__ == "__main__":
    main(globals(), CheapGpu)
