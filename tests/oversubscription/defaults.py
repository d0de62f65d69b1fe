"""Programs that nobody announced: their user's default job, its place in the line and its GPUs."""

import os
import re
import signal
import subprocess
import sys

from support import *

HOLDER, PYTHON = "oversubscription_holder"[:15], os.path.basename(sys.executable)[:15]  # as /proc/PID/comm has them


def default_waits(build):
    with box(build) as machine:
        full = machine.job("--memory", "256MiB", "--name", "full")
        first, second = machine.loner(), machine.loner()
        for holder in (first, second):
            expect(re.fullmatch(r"sluice: no room on the GPUs yet: the quotas on GPU 0 add up to .*; job \d+ .* has all of it: .*; this "
                                r"program waits, 1st in line \(reason: Resources\); sluice status shows the line\n",
                                line := line_of(holder)), line)
        wait_until("they are one request", lambda: [t["name"] for t in machine.waiting()] == [HOLDER])
        expect(not first.has_answered() and not second.has_answered(), "they wait for their context")
        table = machine.sluice("status").stdout
        expect(re.search(rf"1st\s+{HOLDER}\s+\S+\s+debug\s+\S+ s\s+Resources\s+-\n", table), table)
        full.end()
        for holder in (first, second):
            holder.begin()
            holder.done("alloc 8 1")
            equal(holder.ask("check"), "right")
        equal([(t["name"], len(t["processes"])) for t in machine.tenants()], [(HOLDER, 2)])
        equal([first.end(), second.end()], ["", ""], "one line is all that is said")
        wait_until("nobody is left", lambda: machine.tenants() == [])


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
        expect("this program waits, 1st in line" in program.stderr.readline(), "no line")
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
              [(PYTHON, [0], 1), (PYTHON, [1], 2)])
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


CASES = [default_waits, default_waits_at_its_context, default_on_the_gpu_it_takes, visible_devices_overruled,
         default_broker_restarted, default_leaves, management_does_not_wait]
