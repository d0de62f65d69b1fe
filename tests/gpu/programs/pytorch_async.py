#!/usr/bin/env python3
"""PyTorch with CUDA's stream-ordered allocator (cudaMallocAsync) in place of its own: the training step of pytorch.py."""

import os
import sys

# The name of the variable until PyTorch 2.8, and the one after; each version ignores or accepts the other's.
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "backend:cudaMallocAsync"

import framework  # noqa: E402
import pytorch  # noqa: E402


def compute():
    import torch

    return f"{pytorch.compute()}, allocator {torch.cuda.get_allocator_backend()}"


if __name__ == "__main__":
    sys.exit(framework.main("torch", lambda torch: torch.cuda.is_available(), compute, pytorch.take, pytorch.is_out_of_memory))
