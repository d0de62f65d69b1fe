"""Limits without a broker over the software GPU: SLUICE_MEMORY, and who belongs to a family."""
import json
import re
import subprocess
import sys
import tempfile

from alone_machine import WAIT_S, CheapGpu, expect, file_size_limit, main
from cuda_driver import NOT_PERMITTED, OUT_OF_MEMORY


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


def case_shown_after_an_end(gpu):
    """A program is shown the whole limit although one of its family has just ended with all of it."""
    child = ("import sys; sys.path.insert(0, sys.argv[1]); from cuda_driver import *; driver = Driver(); "
             "say(driver.context(), driver.free_mib(), driver.fill())")
    out, _ = gpu.run(f"for _ in range(5): subprocess.run([sys.executable, '-c', {child!r}, sys.path[0]])",
                     SLUICE_MEMORY="100MiB", SOFTGPU_CONTEXT="32MiB")
    expect(out == ["0 (68, 100) 60"] * 5, out)


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


EXPORTS = """
import socket


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p),
                ("flags", ctypes.c_uint64)]


def create(driver, mib):
    handle, what = ctypes.c_uint64(), Properties(1, 1, Location(1, 0))  # pinned, by descriptor, on device 0
    result = driver.library.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(mib * MIB), ctypes.byref(what),
                                        ctypes.c_uint64(0))
    return handle if result == SUCCESS else None


def exported(driver, handle):
    fd = ctypes.c_int()
    assert driver.library.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, ctypes.c_uint64(0)) == SUCCESS
    return fd.value


def imported(driver, fd):
    handle = ctypes.c_uint64()
    assert driver.library.cuMemImportFromShareableHandle(ctypes.byref(handle), ctypes.c_void_p(fd), 1) == SUCCESS
    os.close(fd)
    return handle


def released(driver, handle):
    assert driver.library.cuMemRelease(handle) == SUCCESS
"""


def expect_peak(gpu, most_mib):
    """What the device held at most, at any moment."""
    text = subprocess.run([gpu.arguments.ctl, "accounts", "--json", "--dir", gpu.environment["SOFTGPU_DIR"]],
                          check=True, capture_output=True, text=True).stdout
    peak_mib = json.loads(text)["devices"][0]["peak_bytes"] / (1 << 20)
    expect(peak_mib <= most_mib, f"{peak_mib} MiB on the device, of {most_mib}")


def case_exports_to_itself(gpu):
    """Memory that a process imports from itself stays charged when its first handle is released."""
    out, _ = gpu.run(EXPORTS + """
driver, pieces = Driver(), []
say(driver.context())
while len(pieces) < 30 and (handle := create(driver, 16)):
    pieces.append(imported(driver, exported(driver, handle)))
    released(driver, handle)
say(len(pieces))
for piece in pieces: released(driver, piece)
say(create(driver, 96) is not None)
""", SLUICE_MEMORY="132MiB", SOFTGPU_CONTEXT="32MiB")
    expect(out == ["0", "6", "True"], out)
    expect_peak(gpu, 132)


CHAIN = EXPORTS + """
COUNT = 8
links = [socket.socketpair() for _ in range(COUNT)]
ready, go, end = os.pipe(), os.pipe(), os.pipe()
children = []
for index in range(COUNT):
    if (child := os.fork()) != 0:
        children.append(child)
        continue
    os.close(end[1])
    driver, mine = Driver(), links[index][0]
    assert driver.context() == SUCCESS
    os.write(ready[1], b"x")
    assert os.read(go[0], 1)
    if index == 0:
        piece = create(driver, 64)
    else:
        piece = imported(driver, socket.recv_fds(mine, 1, 1)[1][0])
        mine.sendall(b"x")
    if index + 1 < COUNT:
        theirs = links[index + 1][1]
        socket.send_fds(theirs, [b"x"], [exported(driver, piece)])
        theirs.recv(1)
        released(driver, piece)
    while create(driver, 8): pass
    say("full")
    os.read(end[0], 1)
    os._exit(0)
os.close(end[0])
for _ in range(COUNT): assert os.read(ready[0], 1)
os.write(go[1], b"x" * COUNT)
sys.stdin.readline()
os.close(end[1])
say([os.waitpid(child, 0)[1] for child in children])
"""


def case_exports_along_a_chain(gpu):
    """Eight processes: each imports a piece from the one before, which lets go of it and takes what it can get."""
    child = gpu.start(CHAIN, SLUICE_MEMORY="164MiB", SOFTGPU_CONTEXT="8MiB")
    expect([child.stdout.readline() for _ in range(8)] == ["full\n"] * 8, "not all had their turn")
    out, err = child.communicate("\n", timeout=WAIT_S)
    expect(out == f"{[0] * 8}\n", (out, err))
    expect_peak(gpu, 164)


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
""", SLUICE_MEMORY="100MiB", SOFTGPU_CONTEXT="1MiB")
    out, err = child.communicate(timeout=WAIT_S)
    # A context of nothing is in no figure: what the other child takes while it is made would count as what it takes.
    expect(child.returncode == 0 and sum(json.loads(out)) == 90, (out, err))


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


POOL_FILLERS = """
kib, count = int(sys.argv[1]), int(sys.argv[2])
children = []
for _ in range(count - 1):
    pid = os.fork()
    if pid == 0:
        children = None
        break
    children.append(pid)
driver = Driver()
say(driver.context() or driver.fill_pool(kib))
sys.stdin.read()
os._exit(0) if children is None else [os.waitpid(child, 0) for child in children]
"""


def case_pools_in_pieces(gpu):
    """What a pool has left lies in pieces when sizes are no multiples of its step: one process and eight hold the limit all the
    same, and a neighbour has all the rest."""
    limit_mib, step_kib = 384, 2048
    for kib in (205, 1126, 3379, 9216):
        for count in (1, 8):
            fillers = gpu.start(POOL_FILLERS, kib, count, SLUICE_MEMORY=f"{limit_mib}MiB")
            times = sum(int(fillers.stdout.readline()) for _ in range(count))
            held_mib = sum(account["memory_bytes"] for account in gpu.accounts()) / (1 << 20)
            neighbour = gpu.start("driver = Driver(); say(driver.context(), driver.allocate(1024 - %d))" % limit_mib,
                                  LD_PRELOAD="")
            out = neighbour.communicate(timeout=WAIT_S)
            _, err = fillers.communicate(timeout=WAIT_S)
            expect(held_mib <= limit_mib, f"{count} times {kib} KiB: the device holds {held_mib} MiB: {err}")
            # One process alone fills it to the last step. Of several, each stops at its first refusal, for which what the others
            # have reserved at that moment counts, however long they wait for a processor.
            step_mib = (kib + step_kib - 1) // step_kib * step_kib / 1024
            least = limit_mib // step_mib if count == 1 else limit_mib // step_mib // 2
            expect(times >= least, f"{count} times {kib} KiB: refused after {times}, the device holds {held_mib} MiB: {err}")
            expect(out == ("0 0\n", ""), out)
            expect("refused" in err and "out of memory" in err, err)


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


def case_bad_values(gpu):
    """A value that means nothing stops CUDA, with one line that says why and what to do."""
    for name, value, reason in (
            ("SLUICE_MEMORY", "lots", "no size above 0 with its unit"), ("SLUICE_MEMORY", "0", "no size above 0 with its unit"),
            ("SLUICE_MEMORY", "2048", "no size above 0 with its unit"), ("SLUICE_MEMORY", "-1GiB", "no size above 0 with its unit"),
            ("SLUICE_MEMORY", "16777216TiB", "no size above 0 with its unit"), ("SLUICE_MEMORY", "99999999999999999999", "no size above 0 with its unit"),
            ("SLUICE_MEMORY", "0.5", "no size above 0 with its unit"), ("SLUICE_MEMORY", "2GiB\n", "no size above 0 with its unit"),
            ("SLUICE_SM", "0%", "no whole percentage from 1 to 100"), ("SLUICE_SM", "101%", "no whole percentage from 1 to 100"),
            ("SLUICE_SM", "12.5", "no whole percentage from 1 to 100"), ("SLUICE_SM", "half", "no whole percentage from 1 to 100"),
            ("SLUICE_SM", "18446744073709551666", "no whole percentage from 1 to 100")):
        out, err = gpu.run("driver = Driver(); say(driver.context()); say(driver.allocate(1)); say(driver.launch())",
                           **{name: value})
        expect(out == [str(NOT_PERMITTED)] * 3, (value, out))
        shown = re.escape(value.replace("\n", "?"))
        expect(re.fullmatch(f"sluice: {name} is '{shown}', which is {reason}; CUDA calls fail until it is one, such as "
                            "[^\n]*, or is unset\n", err), (value, err))
    for variables in ({"SLUICE_MEMORY": "1.5 GiB"}, {"SLUICE_MEMORY": "2GB"}, {"SLUICE_MEMORY": "1G"}, {"SLUICE_SM": "100"}, {"SLUICE_MEMORY": "", "SLUICE_SM": ""}):
        out, err = gpu.run("driver = Driver(); say(driver.context())", **variables)
        expect((out, err) == (["0"], ""), (variables, out, err))


def case_no_traces(gpu):
    """A program without CUDA has one more descriptor with the variables, and nothing more without."""
    look = "say(len(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task')))"
    plain, _ = gpu.run(look)
    limited, _ = gpu.run(look, SLUICE_MEMORY="1GiB")
    expect(int(limited[0].split()[0]) == int(plain[0].split()[0]) + 1, (plain, limited))
    expect(limited[0].split()[1] == plain[0].split()[1] == "1", limited)


def case_low_descriptors(gpu):
    """The low numbers of descriptors are the program's, also where it may have few: of the first of a family, and of its child."""
    opens = "import os; print(os.open('/dev/null', os.O_RDONLY))"
    for most in (40, 1004, 4096):
        first = f"""
import os, resource, subprocess, sys
print(os.open('/dev/null', os.O_RDONLY), flush=True)
subprocess.run([sys.executable, "-c", {opens!r}])
"""
        code = f"""
import resource
subprocess.run([sys.executable, "-c", {first!r}], env={{**os.environ, **dict(word.split("=") for word in sys.argv[1:])}},
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most})))
"""
        plain, _ = gpu.run(code)
        limited, err = gpu.run(code, "SLUICE_MEMORY=1GiB")
        expect((limited, err) == (plain, ""), (most, plain, limited, err))


# The signal as it is for programs that are not written in Python.
SIZE_SIGNAL = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"


def case_file_size(gpu):
    """A limit on the size of files is the program's: it raises no signal, and where the limits cannot be kept CUDA calls fail."""
    gpu.run("say(Driver().library.cuInit(0))")  # makes the software GPU
    environment = {**gpu.environment, "LD_PRELOAD": gpu.arguments.shim, "SLUICE_MEMORY": "128MiB"}
    for limit in (0, 4096, 2 << 20):
        with file_size_limit(limit):
            plain = subprocess.run(["sh", "-c", "/bin/true && echo done"], env=environment, capture_output=True, text=True, check=False)
            child = gpu.start(SIZE_SIGNAL + "driver = Driver(); say(driver.context()); say(driver.launch())", SLUICE_MEMORY="128MiB")
        expect((plain.returncode, plain.stdout, plain.stderr) == (0, "done\n", ""), (limit, plain))
        out, err = child.communicate(timeout=WAIT_S)
        expect((child.returncode, out) == (0, f"{NOT_PERMITTED}\n" * 2), (limit, child.returncode, out, err))
        expect(re.fullmatch(r"sluice: this process may not use the GPU: the limit on the size of files is too small for what its "
                            r"limits are kept in; raise it \(ulimit -f unlimited\)\n", err), (limit, err))
    # The limit comes after the start: the file is there.
    late = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))\n"
    out, err = gpu.run(SIZE_SIGNAL + late + "driver = Driver(); say(driver.context())", SLUICE_MEMORY="128MiB")
    expect((out, err) == (["0"], ""), (out, err))


def case_file_size_of_the_gpu(gpu):
    """Nor does the software GPU raise one, whose memory is files as well: it has no more memory."""
    uses = SIZE_SIGNAL + "driver = Driver(); say(driver.context()); say(driver.allocate(64)); say(driver.allocate(1))"
    with tempfile.TemporaryFile() as words, file_size_limit(0):
        python = [sys.executable, "-c", f"import sys; sys.path.insert(0, {sys.path[0]!r}); from cuda_driver import *\n{uses}"]
        done = subprocess.run(python, env=gpu.environment, stdout=subprocess.DEVNULL, stderr=words, check=False)
        expect(done.returncode == 0, f"words that find no place: exit {done.returncode}")
        child = gpu.start(uses)
    _, err = child.communicate(timeout=WAIT_S)
    expect(child.returncode == 0 and "ulimit -f" in err, (child.returncode, err))
    gpu.run("say(Driver().library.cuInit(0))")
    with file_size_limit(48 << 20):
        child = gpu.start(uses)
    out, err = child.communicate(timeout=WAIT_S)
    expect((child.returncode, out.split()) == (0, ["0", str(OUT_OF_MEMORY), "0"]) and "ulimit -f" in err, (child.returncode, out, err))


def case_mistyped_variable(gpu):
    """A variable of our prefix that means nothing may have been meant as a limit."""
    out, err = gpu.run("driver = Driver(); say(driver.context()); say(driver.allocate(1))", SLUICE_MEMROY="128MiB")
    expect((out, err) == (["0", "0"], "sluice: the variable SLUICE_MEMROY means nothing to Sluice; limits of a program are SLUICE_MEMORY and "
                                      "SLUICE_SM\n"), (out, err))


# From here on the system answers EPERM to whoever makes a thread, as seccomp filters of old containers do: the C library tries
# clone() only where clone3() is not there.
NO_THREADS = """import struct
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 435), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]  # load the number; clone3: EPERM
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(text)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
"""


def case_threads_of_the_gpu(gpu):
    """Where the system makes no thread the context fails with an error and a line, and the program goes on."""
    operating_system = 304  # CUDA_ERROR_OPERATING_SYSTEM
    out, err = gpu.run(NO_THREADS + "driver = Driver(); say(driver.context()); say(driver.load()); driver.launch(); "
                       "say(driver.synchronize()); say(driver.allocate(1))", LD_PRELOAD="")
    expect(out == ["0", "0", str(operating_system), str(operating_system)], (out, err))
    expect(re.fullmatch(r"softgpu: the system makes no thread for a stream \(Operation not permitted\); its context answers every call "
                        r"with CUDA_ERROR_OPERATING_SYSTEM; .*\n", err), err)


if __name__ == "__main__":
    main(globals(), CheapGpu)
