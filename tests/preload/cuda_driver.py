"""The CUDA driver by ctypes, as far as the tests here need it. The look-ups go through dlsym and so through the shim."""

import ctypes, os
import subprocess
import sys

MIB = 1 << 20
SUCCESS, OUT_OF_MEMORY, NOT_PERMITTED = 0, 2, 800
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin() { ret; }
.visible .entry long() { ret; }
"""


class Driver:
    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.functions = {}

    def context(self):
        """cuInit and the primary context; the first error."""
        context = ctypes.c_void_p()
        return (self.library.cuInit(0) or self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
                or self.library.cuCtxSetCurrent(context))

    def allocate(self, mib):
        pointer = ctypes.c_uint64()
        return self.library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))

    def free_mib(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB, total.value // MIB

    def fill(self, step=10):
        """Allocates until the driver says no; MiB."""
        taken = 0
        while self.allocate(step) == SUCCESS:
            taken += step
        return taken

    def fill_pool(self, kib, most=4096):
        """Allocates from the device's pool until the driver says no, or so often; how often."""
        pointer = ctypes.c_uint64()
        for times in range(most):
            result = self.library.cuMemAllocAsync(ctypes.byref(pointer), ctypes.c_size_t(kib << 10), None)
            if result != SUCCESS:
                assert result == OUT_OF_MEMORY, result
                return times
        return most

    def load(self, *names):
        module = ctypes.c_void_p()
        result = self.library.cuModuleLoadData(ctypes.byref(module), PTX)
        for name in names or ("spin",):
            function = self.functions[name] = ctypes.c_void_p()
            result = result or self.library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        return result

    def load_room(self, mib):
        """A module with a variable of so many MiB."""
        module = ctypes.c_void_p()
        text = PTX.replace(b".visible .entry", b".visible .global .align 4 .b8 room[%d];\n.visible .entry" % (mib * MIB), 1)
        return self.library.cuModuleLoadData(ctypes.byref(module), text)

    def stream(self):
        """One that the default stream does not wait for."""
        stream = ctypes.c_void_p()
        assert self.library.cuStreamCreate(ctypes.byref(stream), 1) == SUCCESS
        return stream

    def launch(self, name="spin", stream=None):
        return self.library.cuLaunchKernel(self.functions.get(name), 1, 1, 1, 32, 1, 1, 0, stream, None, None)

    def synchronize(self):
        return self.library.cuCtxSynchronize()


def say(*words):
    """A line in one write: several programs may share the pipe."""
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), (" ".join(str(word) for word in words) + "\n").encode())


def python(code, *arguments, **keywords):
    """A Python program with this module in reach, as a command line for subprocess."""
    return subprocess.Popen([sys.executable, "-c", f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
                             "from cuda_driver import *\nimport os, signal, subprocess, threading, time\n" + code,
                             *map(str, arguments)], **keywords)
