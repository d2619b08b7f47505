"""Answers requests with all ranks, which come and go as they like: SIGTERM makes one leave after its request.

Start it as all_reduce.py. Rank 0 takes the requests from a queue in the store, so that any rank can take its place:

    python -c "import c10d_rs; c10d_rs.TCPStore('127.0.0.1', 29400).queue_push('requests', '1 2 3 4 5')"
"""

import os
import signal
import time

import torch
import torch.distributed as dist

import c10d_rs
import c10d_rs.torch as ct

store = c10d_rs.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
membership = ct.join(min_size=1)
signal.signal(signal.SIGTERM, lambda *_: membership.leave())


request = ""  # of rank 0: kept until it is answered, also over a change


def next_request() -> str:
    """Return a request, "stop", or nothing if there is none: then members may come and go."""
    try:
        return request or store.queue_pop("requests", block=False).decode()
    except c10d_rs.QueueEmptyError:
        time.sleep(0.05)
        return ""


for generation in membership:
    print(f"process {os.getpid()} is rank {generation.rank} of {generation.size}", flush=True)
    with generation:
        step = generation.sync({})
        while True:
            if generation.rank == 0:
                request = next_request()
            asked = [request]
            dist.broadcast_object_list(asked, group_src=0)
            if asked == ["stop"]:
                break
            numbers = torch.tensor([float(word) for word in asked[0].split()])
            # Each rank does its part: here, the squares of every size-th number.
            total = (numbers[generation.rank :: generation.size] ** 2).sum()
            dist.reduce(total, group_dst=0)
            if generation.rank == 0 and asked[0]:
                store.set(f"answer to {request}", str(total.item()))
            request = ""
            step += 1
            generation.boundary(step)
