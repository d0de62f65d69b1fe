#!/usr/bin/env python3
"""CuPy: array work with its memory pool, cuBLAS, and a kernel compiled at run time (NVRTC)."""

import sys

import framework


def compute():
    import cupy

    a = cupy.arange(512 * 512, dtype=cupy.float64).reshape(512, 512) % 7
    scaled = cupy.ElementwiseKernel("float64 x", "float64 y", "y = 2 * x + 1", "scale_by_two")(a)
    return f"cupy: sum {float((scaled @ a).sum()):.1f}"


def take(size):
    import cupy

    block = cupy.ones(size, dtype=cupy.uint8)
    cupy.cuda.Device().synchronize()
    del block
    cupy.get_default_memory_pool().free_all_blocks()


def is_out_of_memory(error):
    import cupy

    return isinstance(error, cupy.cuda.memory.OutOfMemoryError)


if __name__ == "__main__":
    sys.exit(framework.main("cupy", lambda cupy: cupy.cuda.runtime.getDeviceCount() > 0, compute, take, is_out_of_memory))
