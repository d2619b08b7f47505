"""A rank that trains with DDP over gloo and uses its store in every step, until the store has the key "stop".

Then it trains as many steps again from the same start, and prints whether the losses are the same.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def report(value):
    """Prints a line with one write: the ranks of a node share the standard output of their launcher."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def train(store, rank, world, may_stop, name):
    """Yields the losses, and where it stopped."""
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    while True:
        step = len(losses)
        data = torch.Generator().manual_seed(1000 * step + rank)
        batch = torch.randn(8, 16, generator=data)
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

        # Each rank counts once.
        store.add(f"{name} {step}", 1)
        store.set(f"{name} {step} of {rank}", str(step))
        neighbour = store.get(f"{name} {step} of {(rank + 1) % world}")
        assert int(neighbour) == step, (neighbour, step)
        if rank == 0:
            store.queue_push(f"{name} jobs", str(step))
        if rank == step % world:
            assert int(store.queue_pop(f"{name} jobs")) == step
        if step % 25 == 24:
            group = dist.new_group(list(range(world)))
            dist.barrier(group=group)
        stop = torch.zeros(1)
        if rank == 0:
            stop[0] = may_stop(step)
        dist.broadcast(stop, 0)
        if stop.item():
            # Others may not have counted when rank 0 stops.
            dist.barrier()
            assert store.add(f"{name} {step}", 0) == world
            return losses


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    report({"joined": rank, "world": world})
    losses = train(store, rank, world, lambda step: store.check(["stop"]), "disturbed")
    store.set(f"stopped {rank}", "")
    again = train(store, rank, world, lambda step: step + 1 == len(losses), "undisturbed")
    report({"steps": len(losses), "same": losses == again, "last": losses[-1]})
    dist.barrier()
    dist.destroy_process_group()


main()
sys.exit(0)
