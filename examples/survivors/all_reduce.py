"""Adds up a number of each rank once a second. Kill a rank, or start another one: the others go on in their processes.

    c10d run --standalone --nproc-per-node 4 --keep-workers --min-workers 1 --max-restarts 9 all_reduce.py

Or without a launcher:

    c10d store serve --port 29400 &
    export MASTER_ADDR=127.0.0.1 MASTER_PORT=29400 WORLD_SIZE=4
    for rank in 0 1 2 3; do RANK=$rank python all_reduce.py & done
    kill -9 %3                    # the other three say so, and go on
    python all_reduce.py &        # a newcomer: without a rank
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import c10d_rs.torch as ct

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 120
PAUSE_SECONDS = 1.0 if len(sys.argv) < 3 else float(sys.argv[2])

membership = ct.join(min_size=1)
state = {"total": torch.zeros(1)}  # what a newcomer needs to know
for generation in membership:
    print(f"process {os.getpid()} is rank {generation.rank} of {generation.size}", flush=True)
    with generation:
        step = generation.sync(state)
        while step < STEPS:
            number = torch.ones(1)
            dist.all_reduce(number)  # raises if a rank is lost: the loop begins its next turn
            state["total"] += number
            step += 1
            time.sleep(PAUSE_SECONDS)
            generation.boundary(step)
print(f"process {os.getpid()}: {STEPS} steps, total {state['total'].item():.0f}")
