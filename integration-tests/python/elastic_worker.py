"""A worker of an elastic job, as `c10d run` or torchrun starts it.

Usage: elastic_worker.py MODE FOLDER [FAILURES]

MODE says what it does:
    env     writes its environment
    sum     joins a gloo group, sums up over all workers once, ends
    fail    as sum, but the worker with local rank 0 of node 0 fails in its first FAILURES lives,
            between joining and ending
    loop    sums up again and again until there is a file `stop`

What it finds goes into files of FOLDER, each written at one go: `env.RANK`, `done.RANK`, with `fail`
`life.PID` after the first sum, and in a loop `now.RANK.PID` after each sum. An exception ends it, with its text on standard error.
"""

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
RESTART_COUNT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

# Between two sums: many in a second, and time for others on a small machine.
PAUSE_SECONDS = 0.05

PR_SET_PDEATHSIG = 1


def write(folder, name, value):
    path = folder / name
    temporary = folder / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def main():
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if "C10D_TEST_DIE_WITH_LAUNCHER" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if mode == "env":
        write(folder, f"env.{RANK}", dict(os.environ))
        return
    import torch
    import torch.distributed as dist

    def sum_up(values):
        total = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(total)
        return total.tolist()

    def found(total):
        return {
            "rank": RANK,
            "pid": os.getpid(),
            "local_rank": int(os.environ["LOCAL_RANK"]),
            "group_rank": int(os.environ["GROUP_RANK"]),
            "world_size": int(os.environ["WORLD_SIZE"]),
            "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
            "restart_count": RESTART_COUNT,
            "sum": total,
            "launcher": os.environ["C10D_TEST_LAUNCHER"],
        }

    dist.init_process_group("gloo")
    # How many there are, the sum of their ranks, the sum of their squares.
    total = sum_up([1, RANK, RANK * RANK])
    if mode == "fail":
        write(folder, f"life.{os.getpid()}", found(total))
        # All have written before one of them fails.
        dist.barrier()
        if RESTART_COUNT < int(sys.argv[3]) and RANK == 0:
            sys.exit(f"failing on purpose, in life {RESTART_COUNT}")
        # Never met while one has failed.
        total = sum_up([1, RANK, RANK * RANK])
    elif mode == "loop":
        # All stop after the same sum: one that has seen the file tells the others in it.
        while True:
            is_to_stop = int((folder / "stop").exists())
            *total, stopping = sum_up([1, RANK, RANK * RANK, is_to_stop])
            write(folder, f"now.{RANK}.{os.getpid()}", found(total))
            if stopping:
                break
            time.sleep(PAUSE_SECONDS)
    elif mode != "sum":
        raise ValueError(f"unknown mode: {mode}")
    dist.destroy_process_group()
    write(folder, f"done.{RANK}", found(total))


main()
