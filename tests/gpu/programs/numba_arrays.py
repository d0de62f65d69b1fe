#!/usr/bin/env python3
"""numba.cuda as its users write it: kernels with shared memory and atomics, arrays there and back, streams, events, page-locked
and managed memory. numba 0.56 needs tests/programs/numba13 in PYTHONPATH where the driver is of CUDA 13.

  numba_arrays.py endless    says "started" and launches until it is ended; everything else is as framework.py says
"""

import functools
import importlib
import sys
import types

import framework

COUNT = 4096
BLOCK = 128
GRID = COUNT // BLOCK


@functools.cache
def kernels():
    from numba import cuda, float32

    @cuda.jit
    def saxpy(a, x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a * x[i] + y[i]

    @cuda.jit
    def total(x, out):
        part = cuda.shared.array(BLOCK, float32)
        t = cuda.threadIdx.x
        part[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        step = BLOCK // 2
        while step > 0:
            if t < step:
                part[t] += part[t + step]
            cuda.syncthreads()
            step //= 2
        if t == 0:
            cuda.atomic.add(out, 0, part[0])

    @cuda.jit
    def add_one(x):
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    return types.SimpleNamespace(saxpy=saxpy, total=total, add_one=add_one)


def streams_sums():
    """Three streams that each add one four times to a copy of zeros."""
    import numpy
    from numba import cuda

    zeros = cuda.pinned_array(COUNT, numpy.int32)
    zeros[:] = 0
    streams = [cuda.stream() for _ in range(3)]
    begin, end = cuda.event(), cuda.event()
    begin.record()
    arrays = [cuda.to_device(zeros, stream=stream) for stream in streams]
    for _ in range(4):
        for stream, array in zip(streams, arrays):
            kernels().add_one[GRID, BLOCK, stream](array)
    for stream in streams:
        stream.synchronize()
    end.record()
    end.synchronize()
    assert cuda.event_elapsed_time(begin, end) >= 0
    return [int(array.copy_to_host().sum()) for array in arrays]


def compute():
    import numpy
    from numba import cuda

    x = numpy.arange(COUNT, dtype=numpy.float32)
    out = cuda.device_array(COUNT, numpy.float32)
    kernels().saxpy[GRID, BLOCK](numpy.float32(2), cuda.to_device(x), cuda.to_device(x), out)
    assert (out.copy_to_host() == 3 * x).all()
    total = cuda.to_device(numpy.zeros(1, numpy.float32))
    kernels().total[GRID, BLOCK](out, total)
    managed = cuda.managed_array(COUNT, numpy.int32)
    managed[:] = 5
    kernels().add_one[GRID, BLOCK](managed)
    cuda.synchronize()
    return f"numba: sum {total.copy_to_host()[0]:.1f}, streams {streams_sums()}, managed {int(managed.sum())}"


def take(size, pieces=16):
    from numba import cuda

    blocks = [cuda.device_array(size // pieces, "uint8") for _ in range(pieces)]
    blocks.clear()


def is_out_of_memory(error):
    from numba.cuda.cudadrv.driver import CudaAPIError

    return isinstance(error, CudaAPIError) and int(error.code) == 2


def endless():
    import numpy
    from numba import cuda

    array = cuda.to_device(numpy.zeros(COUNT, numpy.int32))
    print("started", flush=True)
    while True:
        for _ in range(64):
            kernels().add_one[GRID, BLOCK](array)
        cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1:] == ["endless"]:
        endless()
    sys.exit(framework.main("numba", lambda _: importlib.import_module("numba.cuda").is_available(), compute, take, is_out_of_memory))
