#!/usr/bin/env python3
"""PyTorch with a whole training step captured in a CUDA graph, as its manual tells (warm-up in a side stream, then replays)."""

import os
import sys

import framework
import pytorch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS adds in one order only with this


def compute():
    import torch

    torch.manual_seed(1)
    inputs = torch.randn(512, 64, device="cuda")
    targets = inputs.sum(dim=1, keepdim=True).sin()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    return f"pytorch graphs: loss {loss.item():.6f}"


if __name__ == "__main__":
    sys.exit(framework.main("torch", lambda torch: torch.cuda.is_available(), compute, pytorch.take, pytorch.is_out_of_memory))
