#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel with two ranks on one GPU through NCCL, each rank as a host of its own (NCCL_HOSTID)."""

import os
import socket
import sys

import framework
import pytorch

RANKS = 2


def rank_run(rank, port, results):
    os.environ |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch
    import torch.distributed

    torch.distributed.init_process_group("nccl", rank=rank, world_size=RANKS)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(20):
        inputs = torch.randn(64, 256, generator=generator).cuda()
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sin()).pow(2).mean()
        loss.backward()
        optimizer.step()
    total = torch.full((1 << 20,), float(rank + 1), device="cuda")
    torch.distributed.all_reduce(total)
    results.put((rank, loss.item(), total.sum().item()))
    torch.distributed.destroy_process_group()


def compute():
    import torch

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    spawn = torch.multiprocessing.get_context("spawn")
    results = spawn.SimpleQueue()
    ranks = [spawn.Process(target=rank_run, args=(rank, port, results)) for rank in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    if any(one.exitcode != 0 for one in ranks):
        raise SystemExit(f"ranks ended with {[one.exitcode for one in ranks]}")
    return "pytorch ranks: " + ", ".join(f"rank {r} loss {loss:.6f} sum {total:.0f}" for r, loss, total in
                                         sorted(results.get() for _ in ranks))


def has_gpu(torch):
    return torch.cuda.is_available() and torch.distributed.is_nccl_available()


if __name__ == "__main__":
    sys.exit(framework.main("torch", has_gpu, compute, pytorch.take, pytorch.is_out_of_memory))
