#!/usr/bin/env python3
"""JAX as it comes: XLA takes three quarters of the GPU that it sees at its start, which under a quota is the quota's."""

import os
import sys

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"

import framework  # noqa: E402
import jax_arrays  # noqa: E402

if __name__ == "__main__":
    sys.exit(framework.main("jax", jax_arrays.has_gpu, jax_arrays.compute, jax_arrays.take, jax_arrays.is_out_of_memory))
