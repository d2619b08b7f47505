"""A rank that takes part in a group of the crate c10d by its keys alone (docs/spec/group.md), with any TCPStore.

Usage: group_member.py MODULE HOST:PORT ROLE RANK WORLD_SIZE

MODULE has a class TCPStore like that of torch.distributed. With the ROLE `host` this rank hosts the store. Takes part in a
broadcast from each rank, an all-gather, a barrier and finish, and prints what it got as JSON.
"""

import importlib
import json
import os
import secrets
import socket
import sys
from datetime import timedelta

TIMEOUT = timedelta(seconds=60)


class Group:
    def __init__(self, store, rank, world_size, name="world"):
        self.store, self.rank, self.world_size, self.number = store, rank, world_size, 0
        generation = f"c10d/{name}/generation"
        if rank == 0:
            store.set(generation, f"{secrets.token_hex(8)} {world_size}")
        number, others_world_size = store.get(generation).decode().split()
        assert int(others_world_size) == world_size
        self.prefix = f"c10d/{name}/{number}"
        me = f"{secrets.token_hex(8)} {os.getpid()} {socket.gethostname()}"
        holder = store.compare_set(f"{self.prefix}/member/{rank}", "", me)
        assert holder.decode() == me, holder
        self.arrive(f"{self.prefix}/joined")
        if rank == 0:
            store.wait([f"{self.prefix}/joined/complete"])
            store.set(f"{self.prefix}/begun", "1")
        store.wait([f"{self.prefix}/begun"])

    def arrive(self, place):
        # PyTorch's append takes text.
        self.store.append(f"{place}/arrived", bytes([0, 0, 0, self.rank]).decode())
        if self.store.add(f"{place}/count", 1) == self.world_size:
            self.store.set(f"{place}/complete", "1")

    def meet(self, place):
        self.arrive(place)
        self.store.wait([f"{place}/complete"])
        self.number += 1

    def broadcast(self, root, value):
        place = f"{self.prefix}/{self.number}/broadcast/{root}"
        if self.rank == root:
            self.store.set(f"{place}/value", value)
        value = self.store.get(f"{place}/value")
        self.meet(place)
        return value.decode()

    def all_gather(self, value):
        place = f"{self.prefix}/{self.number}/all_gather"
        self.store.set(f"{place}/value/{self.rank}", value)
        self.meet(place)
        return [self.store.get(f"{place}/value/{rank}").decode() for rank in range(self.world_size)]

    def barrier(self):
        self.meet(f"{self.prefix}/{self.number}/barrier")

    def finish(self, hosts_store):
        place = f"{self.prefix}/{self.number}/finish"
        self.meet(place)
        if hosts_store:
            self.store.wait([f"{place}/left/complete"])
        elif self.store.add(f"{place}/left/count", 1) == self.world_size - 1:
            self.store.set(f"{place}/left/complete", "1")


def main(module, address, role, rank, world_size):
    host, _, port = address.rpartition(":")
    rank, world_size, is_host = int(rank), int(world_size), role == "host"
    store = importlib.import_module(module).TCPStore(
        host, int(port), is_master=is_host, timeout=TIMEOUT, wait_for_workers=False
    )
    group = Group(store, rank, world_size)
    got = [group.broadcast(root, f"value of {root}") for root in range(world_size)]
    got += group.all_gather(f"part of {rank}")
    group.barrier()
    group.finish(is_host)
    print(json.dumps({"got": got}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
