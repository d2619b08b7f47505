"""A rank of a gloo group of which rank 1 leaves, while the other ranks still need it.

LEAVES says how: "return", "exit" (os._exit(0)), "wait" (exit, and rank 2 waits in the store for it), "reason" (a line on
standard error and exit code 3), or "end" (no rank leaves, and none destroys its process group).
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

leaves = os.environ["LEAVES"]
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
tensor = torch.ones(4)
dist.all_reduce(tensor)
if leaves == "end":
    sys.exit()
if rank == 1:
    if leaves == "return":
        dist.destroy_process_group()
        sys.exit()
    if leaves == "reason":
        print("cannot read /data/shard-17: Input/output error", file=sys.stderr, flush=True)
        os._exit(3)
    os._exit(0)
if leaves == "wait" and rank == 2:
    store = dist.distributed_c10d._get_default_store()
    store.wait(["result/1"], timedelta(seconds=3))
dist.all_reduce(tensor)
dist.destroy_process_group()
