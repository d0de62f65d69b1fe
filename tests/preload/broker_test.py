"""With a broker, SLUICE_MEMORY and SLUICE_SM narrow what it gives. Without one, or with one that hangs, the machine's policy
says what becomes of programs. Over the software GPU and a broker that can be told to misbehave."""
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time

from alone_machine import WAIT_S, WORKER, Gpu, expect, expect_share, file_size_limit, main, share_of, wait_until
from cuda_driver import NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS
from stand_in_broker import DRAINED, EXCLUSIVE, GATE_WANT, TENANT, StandInBroker, refusal

MIB = 1 << 20


class Machine(Gpu):
    def __init__(self, arguments):
        super().__init__(arguments)
        out, _ = self.run("driver = Driver(); driver.library.cuInit(0)\n"
                          "uuid = ctypes.create_string_buffer(16)\n"
                          "driver.library.cuDeviceGetUuid(uuid, 0); say(uuid.raw.hex())")
        self.uuid = bytes.fromhex(out[0])
        self.socket = self.environment["SLUICE_SOCKET"]
        self.policy_file = self.directory / "shim.conf"
        self.environment.update(SLUICE_TENANT=TENANT, TEST_SLUICE_POLICY=str(self.policy_file))
        self.context = 0  # what the broker says that one takes, MiB
        self.limits(256)
        self.brokers = []

    def __exit__(self, *arguments):
        for broker in self.brokers:
            if not broker.ended.is_set():
                broker.die()
        super().__exit__(*arguments)

    def limits(self, memory, percent=100):
        """What `sluice run` says that the tenant was admitted with."""
        self.environment["SLUICE_TENANT_LIMITS"] = f"{TENANT} memory={memory * MIB} sm={percent} context={self.context * MIB} gpus={self.uuid.hex()}"

    def broker(self, memory=200, **how):
        self.brokers.append(StandInBroker(self.socket, self.uuid, memory * MIB, **how))
        return self.brokers[-1]

    def policy(self, *lines):
        self.policy_file.write_text("\n".join(lines) + "\n")
        self.policy_file.chmod(0o644)


def narrowed(gpu, **variables):
    out, err = gpu.run("driver = Driver(); say(driver.context(), driver.fill(), driver.free_mib())", **variables)
    return out[0], err


def case_narrows_memory(gpu):
    """The smaller of both limits holds, whoever set it."""
    for asked, result in (("100MiB", "0 100 (0, 100)"), ("1GiB", "0 200 (0, 200)")):
        broker = gpu.broker(200)
        expect(narrowed(gpu, SLUICE_MEMORY=asked)[0] == result, f"{asked} of the user's, 200 MiB of the broker's")
        broker.die()


def case_narrows_share(gpu):
    """A share of the lease's time, and never more than the lease allows."""
    broker = gpu.broker(0)
    worker = gpu.start(WORKER, 60, SLUICE_SM="30%")
    expect_share(share_of(gpu, [worker], 4), 30, "under a broker")
    broker.gate(False)
    wait_until(lambda: DRAINED in broker.notes, "the drain")
    busy_ns = gpu.busy_ns([worker.pid])
    time.sleep(0.5)
    expect(gpu.busy_ns([worker.pid]) == busy_ns, "work past a closed lease")


def case_narrows_not_exclusive(gpu):
    """The time of an exclusive job is not measured: a share of it is refused and not forgotten."""
    gpu.broker(0, tenant_class=EXCLUSIVE)
    out, err = gpu.run("driver = Driver(); say(driver.context())", SLUICE_SM="30%")
    expect(out == [str(NOT_PERMITTED)] and "SLUICE_SM cannot narrow an exclusive job" in err, (out, err))


LOOK = "driver = Driver(); say(driver.context(), driver.fill())"


KEPT = "; until one does, the program keeps the limits of its job, 256.0 MiB and 100 % of each GPU, by itself\n"


def case_keep(gpu):
    """Nothing is said, or just that: a job's programs keep its limits, and are told."""
    for lines in (None, ["missing_broker = keep"]):
        if lines:
            gpu.policy(*lines)
        out, err = gpu.run(LOOK)
        expect(out == ["0 220"], out)  # of 256 MiB less the context
        expect(err.startswith(f"sluice: no broker answers at {gpu.socket}{KEPT}"), err)


def case_open(gpu):
    """The administrator says that programs run without limits, and they are told."""
    gpu.policy("missing_broker = open")
    out, err = gpu.run(LOOK)
    expect(out == ["0 990"], out)  # of 1 GiB less the context
    expect(err == f"sluice: no broker answers at {gpu.socket}; the program runs without limits until one does (start "
           "sluiced)\n", err)


def case_unannounced(gpu):
    """A program that nobody announced and that has no broker runs as ever: without limits, without a word."""
    del gpu.environment["SLUICE_TENANT"]
    expect(gpu.run(LOOK) == (["0 990"], ""), "limits, or a line")


def case_hold(gpu):
    """CUDA calls wait until a broker is there, then the program is its tenant."""
    gpu.policy("missing_broker = hold", "hold_max = 0s")
    child = gpu.start("driver = Driver(); say(driver.context(), driver.fill())")
    line = child.stderr.readline()
    expect(line == f"sluice: no broker answers at {gpu.socket}; CUDA calls wait for one (missing_broker = hold in "
           f"{gpu.policy_file})\n", line)
    time.sleep(0.5)
    expect(child.poll() is None, "did not wait")
    gpu.broker(200)
    out, _ = child.communicate(timeout=WAIT_S)
    expect(out == "0 200\n", out)


def case_hold_ends(gpu):
    """Not for longer than the policy says."""
    gpu.policy("missing_broker = hold", "hold_max = 1s")
    out, err = gpu.run("driver = Driver(); say(driver.context(), driver.allocate(1), driver.launch())")
    expect(out == [f"{NOT_PERMITTED} {NOT_PERMITTED} {NOT_PERMITTED}"], out)
    expect("at most 1 s" in err and "sluice: this process may not use the GPU: no broker has answered" in err, err)


def case_hold_interrupted(gpu):
    """Ctrl-C ends a program that waits."""
    gpu.policy("missing_broker = hold", "hold_max = 0s")
    child = gpu.start("signal.signal(signal.SIGINT, signal.SIG_DFL); driver = Driver(); say(driver.context())")
    expect("CUDA calls wait" in child.stderr.readline(), "no line")
    child.send_signal(signal.SIGINT)
    expect(child.wait(WAIT_S) == -signal.SIGINT, child.returncode)


def case_static(gpu):
    """Programs run under the limits of the file; a user's own may be narrower, and a broker that comes takes over. Of each limit
    32 MiB are the context's."""
    gpu.policy("missing_broker = static", "memory = 150MiB", "sm = 50%")
    expect(narrowed(gpu)[0] == "0 110 (8, 150)", "not the policy's limit")
    expect("under the limits of this machine (missing_broker = static" in narrowed(gpu)[1], "no line")
    expect(narrowed(gpu, SLUICE_MEMORY="1GiB")[0] == "0 110 (8, 150)", "widened")
    expect(narrowed(gpu, SLUICE_MEMORY="50MiB")[0] == "0 10 (8, 50)", "not narrowed")
    child = gpu.start("driver = Driver(); say(driver.context(), driver.fill())\nsys.stdin.readline()\n"
                      "say(driver.allocate(40), driver.allocate(10))")
    expect(child.stdout.readline() == "0 110\n", "not the policy's limit")
    broker = gpu.broker(200)
    wait_until(lambda: broker.held() == 142 * MIB, "the account at the broker")
    out, _ = child.communicate("\n", timeout=WAIT_S)
    expect(out == "0 0\n", f"the broker's limit is 200 MiB: {out}")


def case_required(gpu):
    """A policy may ask for a broker in the name of programs that name no tenant."""
    del gpu.environment["SLUICE_TENANT"]
    gpu.policy("missing_broker = static", "memory = 150MiB")
    expect(narrowed(gpu) == ("0 990 (2, 1024)", ""), "limited without being asked to")
    gpu.policy("missing_broker = static", "memory = 150MiB", "require_broker = yes")
    expect(narrowed(gpu)[0] == "0 110 (8, 150)", "not limited")


def case_not_roots(gpu):
    """A file that others than root can write is no policy; one line says so."""
    if os.geteuid() != 0:
        print("skipped: only root can give a file to root")
        sys.exit(77)
    gpu.policy("missing_broker = static", "memory = 150MiB")
    for change, reason in ((lambda path: path.chmod(0o664), "others than root may write to it"),
                           (lambda path: path.chmod(0o646), "others than root may write to it"),
                           (lambda path: os.chown(path, 1, 0), "it does not belong to root")):
        gpu.policy("missing_broker = static", "memory = 150MiB")
        change(gpu.policy_file)
        out, err = gpu.run(LOOK)
        expect(out == ["0 220"], out)
        expect(err.startswith(f"sluice: {gpu.policy_file} is ignored: {reason}; "), err)
        os.chown(gpu.policy_file, 0, 0)
    other = gpu.policy_file.with_name("other")
    gpu.policy_file.rename(other)
    gpu.policy_file.symlink_to(other)
    err = gpu.run(LOOK)[1]
    expect(err.startswith(f"sluice: {gpu.policy_file} is ignored: it is a symbolic link, which is not followed; put the file itself "
                          "in its place; programs without a broker run as if it were not there\n"), err)


def case_refused_before_asked(gpu):
    """A broker that refuses a connection and closes it without reading what was asked has refused."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(gpu.socket)
    listener.listen(4)

    def refuse():
        for _ in range(4):
            connection, _ = listener.accept()
            connection.send(refusal("you have too many connections; close some"))
            select.select([connection], [], [], WAIT_S)
            connection.close()

    threading.Thread(target=refuse, daemon=True).start()
    out, err = gpu.run(LOOK)
    expect(out == [f"{NOT_PERMITTED} 0"], out)
    expect(err == "sluice: this process may not use the GPU: you have too many connections; close some\n", err)


def strangers_socket(gpu):
    """Another user listens where a program that no broker announced looks for a broker."""
    if os.geteuid() != 0:
        print("skipped: only root can act as another user")
        sys.exit(77)
    del gpu.environment["SLUICE_TENANT"]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(gpu.socket)
    os.seteuid(61234)
    listener.listen(4)
    os.seteuid(0)
    listener.setblocking(False)
    return listener, (f"the socket {gpu.socket} belongs to uid 61234, which is neither root nor you; whoever that is, it is not asked "
                      "for anything; check --socket and SLUICE_SOCKET")


def case_strangers_socket(gpu):
    """The program runs, and one line says that it has no broker."""
    listener, text = strangers_socket(gpu)
    expect(gpu.run(LOOK) == (["0 990"], f"sluice: {text}; until then the program runs without limits\n"), "not that line")
    out, err = gpu.run(LOOK, SLUICE_MEMORY="100MiB")
    expect(out == ["0 60"], out)
    expect(err.startswith(f"sluice: {text}; until then the program runs under SLUICE_MEMORY and SLUICE_SM alone\n"), err)
    expect(listener.accept()[0].recv(16) == b"", "the stranger was asked")


def case_strangers_socket_required(gpu):
    """Where a broker is required, the program is refused."""
    _, text = strangers_socket(gpu)
    gpu.policy("require_broker = yes")
    expect(gpu.run(LOOK) == ([f"{NOT_PERMITTED} 0"], f"sluice: this process may not use the GPU: {text}\n"), "not refused")


def case_mistaken(gpu):
    """A slip in the file lets nobody run free."""
    gpu.policy("missing_broker = statik", "memory = 150MiB")
    child = gpu.start(LOOK)
    line = child.stderr.readline()
    expect(line == f"sluice: {gpu.policy_file}: line 1: missing_broker is keep, open, hold or static; until that is corrected, "
           "CUDA calls without a broker wait (missing_broker = hold)\n", line)
    expect("CUDA calls wait" in child.stderr.readline(), "does not wait")
    child.kill()
    # What is said of programs that no job announced holds for them as well, whatever the file asked for before the slip.
    del gpu.environment["SLUICE_TENANT"]
    for lines in (["require_broker = yes", "memory = 2048"], ["missing_broker = statik"], ["# x" * 2000, "require_broker = yes"]):
        gpu.policy(*lines)
        child = gpu.start(LOOK)
        line = child.stderr.readline()
        expect("until that is corrected, CUDA calls without a broker wait" in line, line)
        expect("CUDA calls wait" in child.stderr.readline(), f"{lines}: does not wait")
        child.kill()


COUNTER = """
driver = Driver()
say(driver.context() or driver.load(), driver.allocate(60))
for line in sys.stdin:
    word = line.split()
    say(getattr(driver, word[0])(*map(int, word[1:])))
"""


class Program:
    def __init__(self, gpu, **variables):
        self.child = gpu.start(COUNTER, **variables)
        expect(self.child.stdout.readline() == "0 0\n", "the program did not start")

    def begin(self, *words):
        self.child.stdin.write(" ".join(map(str, words)) + "\n")
        self.child.stdin.flush()

    def end(self):
        return int(self.child.stdout.readline())

    def ask(self, *words):
        self.begin(*words)
        return self.end()

    def waits(self, seconds):
        time.sleep(seconds)
        return not select_readable(self.child.stdout)


def select_readable(stream):
    return bool(select.select([stream], [], [], 0)[0])


def case_restarted(gpu):
    """A broker that is started anew is found again; nothing of the account is lost."""
    broker = gpu.broker(100)
    program = Program(gpu)
    broker.die()
    again = gpu.broker(100)
    wait_until(lambda: again.held() == 60 * MIB, "the account at the new broker")
    expect(program.ask("allocate", 50) == OUT_OF_MEMORY and program.ask("allocate", 40) == SUCCESS, "another quota")
    again.gate(False)
    wait_until(lambda: DRAINED in again.notes, "the new broker's gate")
    program.begin("launch")
    expect(program.waits(0.3), "past the new broker's gate")
    again.gate(True)
    expect(program.end() == SUCCESS, "failed")


def case_restarted_in_a_hold(gpu):
    """An allocation that waits for the end of a hold does not keep the next broker out."""
    broker = gpu.broker(100)
    program = Program(gpu)
    broker.hold(True)
    program.begin("allocate", 10)
    expect(program.waits(0.3), "past the hold")
    broker.die()
    again = gpu.broker(100)
    expect(program.end() == SUCCESS, "failed")
    wait_until(lambda: again.held() == 70 * MIB, "the account at the new broker")
    gpu.policy("missing_broker = static", "memory = 150MiB")
    again.hold(True)
    program.begin("allocate", 10)
    expect(program.waits(0.3), "past the second hold")
    again.die()
    expect(program.end() == SUCCESS, "did not go on")


def case_lost_hold(gpu):
    """The broker goes away in the middle: launches wait for one, whatever the lease was."""
    gpu.policy("missing_broker = hold", "hold_max = 0s")
    broker = gpu.broker(100)
    program = Program(gpu)
    expect(program.ask("launch") == SUCCESS, "an open lease")
    broker.die()
    line = program.child.stderr.readline()  # after the grace
    expect(line == f"sluice: the broker at {gpu.socket} went away; launches wait for one (missing_broker = hold in "
           f"{gpu.policy_file})\n", line)
    program.begin("launch")
    expect(program.waits(0.5), "did not wait")
    gpu.broker(100)
    expect(program.end() == SUCCESS, "failed with the new broker")


def case_lost_hold_ends(gpu):
    """Not for longer than the policy says; with a new broker they pass again."""
    gpu.policy("missing_broker = hold", "hold_max = 1s")
    broker = gpu.broker(100)
    program = Program(gpu)
    broker.gate(False)
    program.begin("launch")
    wait_until(lambda: GATE_WANT in broker.notes, "the launch at the gate")
    broker.die()
    expect(program.end() == NOT_PERMITTED, "not refused")
    expect(program.ask("launch") == NOT_PERMITTED, "not refused again")
    expect(program.ask("allocate", 50) == OUT_OF_MEMORY, "the memory limit is gone")
    again = gpu.broker(100)
    wait_until(lambda: again.registrations > 0, "the registration")
    wait_until(lambda: program.ask("launch") == SUCCESS, "launches with the new broker")


def case_lost_static(gpu):
    """The program goes on under the narrower of its job's limits and the policy's, and what it holds counts."""
    gpu.policy("missing_broker = static", "memory = 150MiB")
    broker = gpu.broker(100)
    program = Program(gpu)
    broker.gate(False)
    program.begin("launch")
    broker.die()
    expect(program.end() == SUCCESS, "did not go on")
    expect(program.ask("allocate", 50) == OUT_OF_MEMORY and program.ask("allocate", 20) == SUCCESS, "not 100 MiB")
    again = gpu.broker(300)
    wait_until(lambda: again.held() == 80 * MIB, "the account at the new broker")
    expect(program.ask("allocate", 140) == SUCCESS, "the new broker's limit")
    again.gate(False)
    program.begin("launch")
    again.die()
    expect(program.end() == SUCCESS, "did not go on a second time")
    expect(program.ask("allocate", 1) == OUT_OF_MEMORY, "not 150 MiB")


def case_lost_own_limits(gpu):
    """With limits of its own and no policy, a program keeps those."""
    broker = gpu.broker(0)
    program = Program(gpu, SLUICE_MEMORY="100MiB", SLUICE_SM="50%")
    broker.gate(False)
    program.begin("launch")
    broker.die()
    expect(program.end() == SUCCESS, "did not go on")
    expect(program.ask("allocate", 50) == OUT_OF_MEMORY and program.ask("allocate", 40) == SUCCESS, "not 100 MiB")


MEMBER = """
def member(waits):
    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    count, entries = ctypes.c_uint(16), (ctypes.c_ulonglong * (3 * 16))()
    driver = Driver()
    ok = driver.context() or driver.load() or driver.allocate(10)
    if waits:
        say("ready")
        os.read(0, 1)
        ok = ok or driver.launch()
    ok = (ok or nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
          or nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), entries))
    say(ok, os.getpid(), *(entries[3 * i] & 0xffffffff for i in range(count.value)))
    os._exit(0)

for waits in (True, False):
    pid = os.fork()
    if pid == 0: member(waits)
    os.waitpid(pid, 0)
"""


def case_place_of_another(gpu):
    """A program that takes the place of one that went on without its broker, and ended, is shown under its own pid."""
    broker = gpu.broker(0)
    parent = gpu.start(MEMBER, SLUICE_MEMORY="100MiB")
    expect(parent.stdout.readline() == "ready\n", "the first did not start")
    broker.gate(False)
    parent.stdin.write("x")
    parent.stdin.flush()
    wait_until(lambda: GATE_WANT in broker.notes, "the launch at the gate")
    broker.die()
    out, err = parent.communicate(timeout=WAIT_S)
    lines = [[int(word) for word in line.split()] for line in out.splitlines()]
    expect(len(lines) == 2 and lines[0][1] != lines[1][1], (out, err))
    for line in lines:
        expect(line[0] == 0 and line[2:] == [line[1]], f"own pid and what NVML lists: {lines}")


def case_never_accepts(gpu):
    """A broker that accepts nobody, with a full queue of connections."""
    gpu.broker(200, accepts=False, backlog=0)
    import socket
    first = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.connect(gpu.socket)
    out, err = gpu.run(LOOK)
    expect(out == ["0 220"] and KEPT in err, (out, err))


def case_never_answers(gpu):
    """A broker that accepts and reads, and never answers."""
    gpu.broker(200, answers=False)
    out, err = gpu.run(LOOK)
    expect(out == ["0 220"] and KEPT in err, (out, err))
    gpu.policy("missing_broker = static", "memory = 150MiB")
    expect(gpu.run(LOOK)[0] == ["0 110"], "not limited")  # less the context


def case_heart_stops(gpu):
    """A broker that answered once and then hangs, with its socket open: launches go on; when it comes to, it has the program
    again."""
    broker = gpu.broker(200)
    program = Program(gpu)
    broker.gate(False)
    wait_until(lambda: DRAINED in broker.notes, "the drain")
    program.begin("launch")
    wait_until(lambda: GATE_WANT in broker.notes, "the launch at the gate")
    broker.beats = broker.reads = broker.answers = False
    expect(program.end() == SUCCESS, "not let go")
    broker.beats = broker.reads = broker.answers = True
    wait_until(lambda: broker.registrations == 2, "the second registration")
    wait_until(lambda: broker.held(1) == 60 * MIB, "the account")
    program.begin("launch")
    expect(program.waits(0.3), "past the gate of a broker that is back")
    broker.gate(True)
    expect(program.end() == SUCCESS, "failed")


def case_full_socket(gpu):
    """A broker that does not read, until not one note more fits: launches go on."""
    broker = gpu.broker(200)
    program = Program(gpu)
    broker.reads = False
    filled = False
    for _ in range(2000):
        broker.gate(False)
        program.begin("launch")
        # The note is on its way, or there is no room for it.
        time.sleep(0.002)
        broker.gate(True)
        expect(program.end() == SUCCESS, "a launch failed")
        if not filled and socket_is_full(program.child.pid):
            filled = True
        if filled:
            break
    expect(filled, "the socket did not fill up")
    for _ in range(500):
        broker.gate(False)
        program.begin("launch")
        time.sleep(0.002)
        broker.gate(True)
        expect(program.end() == SUCCESS, "a launch failed")
    broker.notes.clear()
    broker.reads = True
    broker.gate(False)
    wait_until(lambda: DRAINED in broker.notes, "notes after the broker reads again")


def socket_is_full(pid):
    """Whether a datagram more would not fit into the program's connection, by the kernel's own word (a copy of its socket)."""
    import ctypes
    import socket
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    full = False
    for name in os.listdir(f"/proc/{pid}/fd"):
        if int(name) < 1000 or not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
            continue
        fd = libc.syscall(438, pidfd, int(name), 0)  # pidfd_getfd
        expect(fd >= 0, "pidfd_getfd")
        copy = socket.socket(fileno=fd)
        import select
        full = not select.select([], [copy], [], 0)[1]
        copy.close()
    os.close(pidfd)
    return full


def case_file_size(gpu):
    """A job's program under a limit on the size of files uses the broker, and waits for one where its limits cannot be kept."""
    gpu.policy("missing_broker = keep", "hold_max = 1s")
    uses = "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\ndriver = Driver(); say(driver.context())"

    def limited():
        with file_size_limit(2 << 20):
            plain = subprocess.run(["sh", "-c", "/bin/true && echo done"], env={**gpu.environment, "LD_PRELOAD": gpu.arguments.shim},
                                   capture_output=True, text=True, check=False)
            child = gpu.start(uses)
        expect((plain.returncode, plain.stdout, plain.stderr) == (0, "done\n", ""), plain)
        out, err = child.communicate(timeout=WAIT_S)
        expect(child.returncode == 0, (child.returncode, out, err))
        return out.strip(), err

    broker = gpu.broker(200)
    expect(limited() == ("0", ""), "beside the broker")
    broker.die()
    out, err = limited()
    expect(out == str(NOT_PERMITTED) and "the limit on the size of files is too small" in err and "ulimit -f unlimited" in err, (out, err))


if __name__ == "__main__":
    main(globals(), Machine)
