#!/usr/bin/env python3
"""JAX: a compiled function and its gradient (XLA's own allocator; it would take three quarters of the GPU at its start)."""

import os
import sys

import framework

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")


def compute():
    import jax
    import jax.numpy as jnp

    weights = jnp.arange(256 * 256, dtype=jnp.float32).reshape(256, 256) % 11 / 256

    def loss(w):
        return jnp.tanh(w @ weights.T).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(weights)
    return f"jax: loss {float(value):.2f}, gradient {float(jnp.abs(gradient).sum()):.2f}"


def take(size):
    import jax
    import jax.numpy as jnp

    block = jax.block_until_ready(jnp.ones(size, dtype=jnp.uint8))
    block.delete()


def is_out_of_memory(error):
    return "RESOURCE_EXHAUSTED" in str(error)


def has_gpu(jax):
    return any(device.platform == "gpu" for device in jax.devices())


if __name__ == "__main__":
    sys.exit(framework.main("jax", has_gpu, compute, take, is_out_of_memory))
