#!/usr/bin/env python3
"""PyTorch: trains a small network on the GPU (its caching allocator, cuBLAS, its own kernels)."""

import os
import sys

import framework

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS adds in one order only with this


def compute():
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    inputs = torch.randn(512, 64).cuda()
    targets = inputs.sum(dim=1, keepdim=True).sin()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return f"pytorch: loss {loss.item():.6f}"


def take(size):
    import torch

    block = torch.empty(size, dtype=torch.uint8, device="cuda")
    block.fill_(1)
    torch.cuda.synchronize()
    del block
    torch.cuda.empty_cache()


def is_out_of_memory(error):
    import torch

    return isinstance(error, torch.cuda.OutOfMemoryError)


if __name__ == "__main__":
    sys.exit(framework.main("torch", lambda torch: torch.cuda.is_available(), compute, take, is_out_of_memory))
