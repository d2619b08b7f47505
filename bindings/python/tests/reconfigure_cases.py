"""The cases that PyTorch's own test of ``_reconfigure`` (test_c10d_fault_tolerance.py) checks for gloo, for
``test_survivors.py``.

A case is a list of stages. At each of them all ranks publish their handles, and the groups of the stage form.
"""

import itertools
import json
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import ErrorType

import c10d_rs
import c10d_rs.torch

SIZE = 3
TIMEOUT = timedelta(minutes=2)

# The ranks of each group of a stage, in the order of their new ranks. Ranks in none keep what they have.
Stage = list[list[int]]

ALL: Stage = [[0, 1, 2]]
ALONE: Stage = [[0], [1], [2]]

CASES: dict[str, list[Stage]] = {
    "all at once": [ALL],
    "the same again": [ALL, ALL],
    "without the last": [ALL, [[0, 1]]],
    "without the middle": [ALL, [[0, 2]]],
    "without the first, and with it": [ALL, [[1, 2]], ALL],
    "in another order": [ALL, [[2, 0, 1]], ALL],
    "alone, together, alone": [ALONE, ALL, ALONE],
    "late ones": [[[0]], ALL],
    "two groups become one": [[[0], [1, 2]], ALL],
}


class Group:
    """The process group of a case, in one rank."""

    def __init__(self, store: Any, rank: int) -> None:
        """Make it: it cannot be used before its first stage."""
        self.store, self.rank = store, rank
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=SIZE, timeout=TIMEOUT, enable_reconfigure=True
        )
        assert dist._supports_reconfigure()
        self.uuids = itertools.count(1)
        self.meetings = 0

    def handles(self) -> list[str]:
        """Tell all ranks this one's handle, and return all, by the ranks of the constructor."""
        self.meetings += 1
        self.store.set(f"handle/{self.meetings}/{self.rank}", dist._get_reconfigure_handle())
        return [self.store.get(f"handle/{self.meetings}/{rank}").decode() for rank in range(SIZE)]

    def form(self, stage: Stage) -> None:
        """Form the groups of a stage, and use this rank's group."""
        handles = self.handles()
        for ranks in stage:
            uuid = next(self.uuids)
            if self.rank in ranks:
                dist._reconfigure(uuid, [handles[rank] for rank in ranks], timeout=TIMEOUT).wait()
                check(ranks.index(self.rank), len(ranks))
        # Until then, the excluded ranks stay.
        self.handles()


def check(rank: int, size: int) -> None:
    """Check that the group has this rank and size, and works."""
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size), (dist.get_rank(), dist.get_world_size())
    values = torch.full((4,), rank + 1.0)
    dist.all_reduce(values)
    assert values.eq(size * (size + 1) / 2).all(), values
    values = torch.full((4,), float(rank + 7))
    dist.broadcast(values, group_src=0)
    assert values.eq(7).all(), values
    if size > 1:
        received = torch.zeros(4)
        works = [
            dist.isend(torch.full((4,), float(rank)), group_dst=(rank + 1) % size),
            dist.irecv(received, group_src=(rank - 1) % size),
        ]
        for work in works:
            work.wait()
        assert received.eq((rank - 1) % size).all(), received


def after_abort(group: Group) -> None:
    """Gloo's abort does nothing, and leaves a group that can be changed."""
    group.form(ALL)
    backend = dist.get_backend_impl(dist.group.WORLD, torch.device("cpu"))
    backend.abort()
    assert backend.get_error() == ErrorType.SUCCESS
    group.form(ALL)


def uuid_comes_twice(group: Group) -> None:
    """A uuid that was used is refused."""
    group.form(ALONE)
    try:
        dist._reconfigure(group.rank + 1, [dist._get_reconfigure_handle()], timeout=TIMEOUT)
    except RuntimeError as error:
        assert "already used" in str(error), error
    else:
        raise AssertionError("a uuid can be used twice")


OTHERS = {"after abort": after_abort, "a uuid that comes twice": uuid_comes_twice}


def run(port: int, rank: int, client: str, events: int) -> None:
    """Go through all cases over the store at this port, with the client of "torch" or of "c10d_rs"."""
    report = c10d_rs.TCPStore("127.0.0.1", events)
    for name in [*CASES, *OTHERS]:
        store: Any
        if client == "torch":
            store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
        else:
            store = c10d_rs.torch.Store(c10d_rs.TCPStore("127.0.0.1", port))
        # Clients through a relay have separate names, because they use the same store.
        group = Group(dist.PrefixStore(f"{client}/{port}/{name}", store), rank)
        if name in OTHERS:
            OTHERS[name](group)
        else:
            for stage in CASES[name]:
                group.form(stage)
        dist.destroy_process_group()
    report.queue_push("events", json.dumps({"what": "passed", "id": rank}))
