"""Let two processes agree over the StatelessProcessGroup of this module of vLLM or SGLang, with the store at STORE."""

import importlib
import os
import sys
from multiprocessing import get_context

from load import load
from torch.distributed import TCPStore


def agree(rank: int) -> None:
    """Exchange samples with the other rank."""
    groups = importlib.import_module(sys.argv[1])
    host, port = os.environ["STORE"].split(":")
    store = TCPStore(host, int(port), is_master=False)
    group = groups.StatelessProcessGroup(rank=rank, world_size=2, store=store)
    for _ in range(4):
        group.all_gather_obj(load(rank))


if __name__ == "__main__":
    ranks = [get_context("spawn").Process(target=agree, args=(rank,)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))
