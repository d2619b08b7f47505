"""One rank of a gloo process group: joins, runs collectives, leaves.

Usage: process_group.py MODE RANK WORLD_SIZE PORT TIMEOUT_SECONDS

MODE says how the rank finds the store:
    env     init_method "env://", with the variables of the environment
    tcp     init_method "tcp://127.0.0.1:PORT"
    store   a TCPStore that this script opens and passes to init_process_group

Prints one JSON object: {"rank": 0, "sum": [...], "gathered": [...], ...}. An exception ends the process, with its
message on standard error.
"""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

# PyTorch 2.4 joins the threads of a group while it holds the GIL. If one of them drops a tensor at that moment, it
# waits for the GIL: a deadlock. It also occurs without our server.
DESTROYING_MAY_HANG = torch.__version__.startswith("2.4.")


def main():
    mode, rank, world_size, port, seconds = sys.argv[1], *map(int, sys.argv[2:])
    timeout = timedelta(seconds=seconds)
    if mode == "env":
        dist.init_process_group("gloo", init_method="env://", timeout=timeout)
    elif mode == "tcp":
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
    elif mode == "store":
        store = dist.TCPStore("127.0.0.1", port, world_size, is_master=False, timeout=timeout)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world_size, timeout=timeout
        )
    else:
        raise ValueError(f"unknown mode: {mode}")

    assert dist.get_rank() == rank
    assert dist.get_world_size() == world_size

    total = torch.tensor([1, rank, rank * rank], dtype=torch.int64)
    dist.all_reduce(total)
    dist.barrier()
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(gathered, torch.tensor([rank * 10]))
    # Unlike a tensor, an object is pickled, and its length is sent first.
    objects = [{"from": 0, "text": "hello"}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, src=0)

    # A subgroup uses the same store with its own prefix.
    even = dist.new_group(ranks=list(range(0, world_size, 2)), timeout=timeout)
    evens = torch.tensor([rank])
    if rank % 2 == 0:
        dist.all_reduce(evens, group=even)

    dist.barrier()
    if not DESTROYING_MAY_HANG:
        dist.destroy_process_group()
    print(
        json.dumps(
            {
                "rank": rank,
                "sum": total.tolist(),
                "gathered": [int(g) for g in gathered],
                "object": objects[0],
                "evens": int(evens),
            }
        ),
        flush=True,
    )
    if DESTROYING_MAY_HANG:
        # Skips the destructors.
        os._exit(0)


main()
