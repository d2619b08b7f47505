"""A rank of a job with nvidia-resiliency-ext, which has everything in one store: `inprocess` or `launcher`.

Rank 1 fails once for each key "fail N" of the store: then the package restarts the training function in its process, or
its launcher restarts the ranks, for the Nth time from 0. The job ends when the store has the key "stop".
"""

import datetime
import json
import os
import sys

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess

# The launcher gives the port of a store that rank 0 is to host, another one in each round.
launchers_port = os.environ.get("MASTER_PORT")
os.environ["MASTER_PORT"] = os.environ.get("C10D_TEST_STORE_PORT") or os.environ["MASTER_PORT"]
os.environ["MASTER_ADDR"] = "127.0.0.1"


def write_line(value):
    # One write, as the ranks of a launcher share a pipe: `print` makes two when the launcher starts Python with `-u`.
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def train(restarts, is_alive):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    job = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
    store = dist.PrefixStore(f"restart {restarts}", job)
    # The package ends collectives of NCCL only: one of gloo has to end by itself before the package kills the rank.
    limit = datetime.timedelta(seconds=15)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    write_line({"restarts": restarts})
    step = 0
    while True:
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world, total
        store.add(f"step {step}", 1)
        is_alive()
        if rank == 1 and job.check([f"fail {restarts}"]):
            raise RuntimeError(f"fault {restarts}")
        stop = torch.zeros(1)
        if rank == 0:
            stop[0] = job.check(["stop"])
        dist.broadcast(stop, 0)
        step += 1
        if stop.item():
            # Others may not have counted when rank 0 stops.
            dist.barrier()
            counts = [store.add(f"step {step}", 0) for step in range(step)]
            dist.barrier()
            dist.destroy_process_group()
            write_line({"steps": step, "same": counts == [world] * step})
            return


@inprocess.Wrapper()
def train_in_process(call: inprocess.CallWrapper = None):
    train(call.iteration, call.ping)


def round_of_launchers():
    """Each launcher counts restarts of its own, so the ranks agree on a number."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
    if os.environ["RANK"] == "0":
        store.set(f"round on {launchers_port}", str(store.add("rounds", 1) - 1))
    return int(store.get(f"round on {launchers_port}"))


if sys.argv[1] == "inprocess":
    train_in_process()
else:
    train(round_of_launchers(), lambda: None)
