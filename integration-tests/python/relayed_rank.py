"""A rank that uses its group and its store until the store has the key "stop", and counts what it does."""

import json
import os
import sys

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    print(json.dumps({"joined": rank}), flush=True)
    rounds = groups = 0
    while True:
        store.add("rounds", 1)
        ones = torch.ones(1)
        dist.all_reduce(ones)
        assert ones.item() == world, ones
        # A new key each time: SET has no reply, so the barrier, which does not use the store, says nothing about it.
        store.set(f"round {rounds} of {rank}", str(rounds))
        dist.barrier()
        neighbour = store.get(f"round {rounds} of {(rank + 1) % world}")
        assert int(neighbour) == rounds, (neighbour, rounds)
        if rounds % 20 == 19:
            evens = dist.new_group(list(range(0, world, 2)))
            if rank % 2 == 0:
                dist.barrier(group=evens)
            groups += 1
        rounds += 1
        stop = torch.zeros(1)
        if rank == 0:
            stop[0] = store.check(["stop"])
        dist.broadcast(stop, 0)
        if stop.item():
            break
    dist.barrier()
    total = store.add("rounds", 0)
    print(json.dumps({"rounds": rounds, "groups": groups, "total": total}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
sys.exit(0)
