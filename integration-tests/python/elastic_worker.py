"""A worker of an elastic job, as `c10d run` or torchrun starts it.

Usage: elastic_worker.py MODE FOLDER [FAILURES | SKIPPER]

MODE says what it does:
    env     writes its environment
    twice   like env, but rank 0 first fails once all WORLD_SIZE workers have started, which then start again
    sum     joins a gloo group, runs one all-reduce over all workers, exits
    fail    like sum, but rank 0 fails after the all-reduce in its first FAILURES attempts
    loop    runs all-reduces until the file `stop` exists
    timer   ends a block of code in time; rank 0 then overruns the time of another block in its first attempt
    fork    imports torch, and forks a child that exits in order
    stall   like sum, with ten more all-reduces, after each of which all ranks report a step; the rank SKIPPER sleeps
            before the fifth until it is killed, once in the job
    skip    like sum, but all except rank SKIPPER start another all-reduce, and that one sleeps until it is killed

The results are JSON files in FOLDER, written atomically: `env.RANK`; `done.RANK` at the end; with `fail` also
`attempt.PID` after the first all-reduce; with `loop` also `now.RANK.PID` after each all-reduce; with `skip`
`now.RANK.PID` after the first all-reduce. An exception ends the worker, with its message on standard error.
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

# Between two all-reduces: many per second, and idle time for other processes.
PAUSE_SECONDS = 0.05

PR_SET_PDEATHSIG = 1


def write(folder, name, value):
    path = folder / name
    temporary = folder / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def load_data():
    time.sleep(3600)


def main():
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if "C10D_TEST_DIE_WITH_LAUNCHER" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if mode == "env":
        write(folder, f"env.{RANK}", dict(os.environ))
        return
    if mode == "timer":
        from torch.distributed.elastic import timer

        timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
        with timer.expires(after=2, scope="in time"):
            pass
        time.sleep(3)
        if RANK == 0 and RESTART_COUNT == 0:
            with timer.expires(after=0.5, scope="too slow"):
                time.sleep(3600)
        write(folder, f"done.{RANK}", {"restarts": RESTART_COUNT})
        return
    if mode == "twice":
        own = folder / f"started.{Path(os.environ['C10D_TEST_LAUNCHER']).name}"
        if not own.exists():
            own.touch()
            world_size = int(os.environ["WORLD_SIZE"])
            while RANK != 0 or len(list(folder.glob("started.*"))) < world_size:
                time.sleep(PAUSE_SECONDS)
            sys.exit(1)
        write(folder, f"env.{RANK}", dict(os.environ))
        return
    import torch
    import torch.distributed as dist

    if mode == "fork":
        if os.fork() == 0:
            sys.exit(0)
        _, status = os.wait()
        write(folder, f"done.{RANK}", {"rank": RANK, "status": status})
        return

    def all_reduce(values):
        total = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(total)
        return total.tolist()

    def result(total):
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
    # Count, sum, and sum of squares of the ranks.
    total = all_reduce([1, RANK, RANK * RANK])
    if mode == "fail":
        write(folder, f"attempt.{os.getpid()}", result(total))
        # Every worker writes its file before one fails.
        dist.barrier()
        if RESTART_COUNT < int(sys.argv[3]) and RANK == 0:
            sys.exit(f"failing on purpose, in attempt {RESTART_COUNT}")
        # Completes only if no worker has failed.
        total = all_reduce([1, RANK, RANK * RANK])
    elif mode == "loop":
        # All workers stop after the same all-reduce, which also reports whether a worker has seen the file.
        while True:
            sees_stop = int((folder / "stop").exists())
            *total, stopping = all_reduce([1, RANK, RANK * RANK, sees_stop])
            write(folder, f"now.{RANK}.{os.getpid()}", result(total))
            if stopping:
                break
            time.sleep(PAUSE_SECONDS)
    elif mode == "stall":
        stalled = folder / "stalled"
        write(folder, f"attempt.{os.getpid()}", result(total))
        for step in range(10):
            if step == 5 and RANK == int(sys.argv[3]) and not stalled.exists():
                stalled.touch()
                load_data()
            total = all_reduce([1, RANK, RANK * RANK])
            with open(os.environ["C10D_PROGRESS_FILE"], "w") as file:
                file.write(str(step))
    elif mode == "skip":
        write(folder, f"now.{RANK}.{os.getpid()}", result(total))
        if RANK == int(sys.argv[3]):
            load_data()
        all_reduce([1])
    elif mode != "sum":
        raise ValueError(f"unknown mode: {mode}")
    dist.destroy_process_group()
    write(folder, f"done.{RANK}", result(total))


main()
