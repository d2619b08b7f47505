"""A rank of a gloo group of which rank 1 leaves, while the other ranks still need it.

LEAVES says how: "return", "exit" (os._exit(0)), "wait" (exit, and rank 2 waits in the store for it), "reason" (a line on
standard error and exit code 3), "destroy" (it destroys its process group, and exits shortly after another rank has failed
because of that), or "end" (no rank leaves, and none destroys its process group).
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def command_line(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


leaves = os.environ["LEAVES"]
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
tensor = torch.ones(4)
dist.all_reduce(tensor)
pids = [None] * dist.get_world_size()
dist.all_gather_object(pids, os.getpid())
if leaves == "end":
    sys.exit()
if rank == 1:
    if leaves == "return":
        sys.exit()
    if leaves == "destroy":
        dist.destroy_process_group()
        # An exited process has no command line.
        while all(map(command_line, pids)):
            time.sleep(0.01)
        time.sleep(0.1)
        os._exit(0)
    if leaves == "reason":
        print("cannot read /data/shard-17: Input/output error", file=sys.stderr, flush=True)
        os._exit(3)
    os._exit(0)
if leaves == "wait" and rank == 2:
    store = dist.distributed_c10d._get_default_store()
    store.wait(["result/1"], timedelta(seconds=3))
dist.all_reduce(tensor)
dist.destroy_process_group()
