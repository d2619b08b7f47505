"""A rank of a job that hangs, or that is healthy and looks like it.

Usage: hanging_rank.py KIND FOLDER

KIND is the name of a function below `stalls`. Rank 2, or C10D_TEST_BROKEN, breaks the job, unless the function says
otherwise. Reports must name the lines of the function with the comment HERE.

A rank writes `stalled.RANK` into FOLDER, with the time, when it is about to do what it never finishes. PyTorch's timeout
is its default, or C10D_TEST_TIMEOUT, in seconds.
"""

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK = int(os.environ["RANK"])
BROKEN = int(os.environ.get("C10D_TEST_BROKEN", 2))
TIMEOUT = timedelta(seconds=float(os.environ.get("C10D_TEST_TIMEOUT", 1800)))

CLONE_VFORK = 0x4000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}


def stalls():
    """Reports that this rank is about to stop."""
    found = {
        "time": time.time(),
        "pid": os.getpid(),
        "store": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    }
    temporary = FOLDER / f".stalled.{RANK}"
    temporary.write_text(json.dumps(found))
    temporary.rename(FOLDER / f"stalled.{RANK}")


def before_init():
    stalls()
    if RANK == BROKEN:
        time.sleep(3600)  # HERE
    join()


def exit_before_init():
    stalls()
    if RANK != BROKEN:
        join()


def skipped_collective():
    if RANK == BROKEN:
        stalls()
        time.sleep(3600)  # HERE
    stalls()
    dist.all_reduce(torch.ones(4))


def late_rank():
    """Rank 2 comes late, and the job continues."""
    stalls()
    if RANK == BROKEN:
        time.sleep(20)  # HERE
    dist.all_reduce(torch.ones(4))
    time.sleep(30)  # The launcher reports progress after 10 s.


def skipped_one_of_many():
    """Rank 2 does not evaluate, and comes to the end of the epoch alone."""
    stalls()
    if RANK != BROKEN:
        dist.all_reduce(torch.ones(4))  # HERE
    dist.broadcast(torch.ones(4), 0)  # HERE


def different_orders():
    """Ranks 1 and 3 do both in the other order."""
    stalls()
    if RANK % 2 == 0:
        dist.all_reduce(torch.ones(4))  # HERE
        dist.all_gather([torch.zeros(4) for _ in range(4)], torch.ones(4))
    else:
        dist.all_gather([torch.zeros(4) for _ in range(4)], torch.ones(4))  # HERE
        dist.all_reduce(torch.ones(4))


def crossed_groups():
    """Ranks 1 and 2 are in both groups, and use them in opposite orders."""
    first, second = (dist.new_group(ranks, timeout=TIMEOUT) for ranks in ([0, 1, 2], [1, 2, 3]))
    for group in (first, second):
        if RANK in dist.get_process_group_ranks(group):
            dist.all_reduce(torch.ones(4), group=group)
    stalls()
    if RANK < 2:
        dist.all_reduce(torch.ones(4), group=first)  # HERE
    dist.all_reduce(torch.ones(4), group=second)  # HERE
    if RANK == 2:
        dist.all_reduce(torch.ones(4), group=first)


def cycle_of_groups():
    """Rank 0 waits for rank 1, rank 1 for rank 2, rank 2 for rank 0."""
    pairs = [dist.new_group(pair, timeout=TIMEOUT) for pair in ([0, 1], [1, 2], [0, 2])]
    for pair in pairs:
        if RANK in dist.get_process_group_ranks(pair):
            dist.all_reduce(torch.ones(4), group=pair)
    stalls()
    if RANK < 3:
        dist.all_reduce(torch.ones(4), group=pairs[RANK])  # HERE
    dist.barrier()


def group_not_made():
    stalls()
    if RANK == BROKEN:
        time.sleep(3600)  # HERE
    dist.new_group([0, 1, 2, 3], timeout=TIMEOUT)


def subgroup_skipped():
    """Ranks 0 and 2 are a group whose first collective rank 2 skips."""
    group = dist.new_group([0, 2], timeout=TIMEOUT)
    stalls()
    if RANK == 0:
        dist.all_reduce(torch.ones(4), group=group)  # HERE
    dist.barrier()  # HERE


def blocked_read():
    if RANK == BROKEN:
        path = FOLDER / "fifo"
        os.mkfifo(path)
        # With a writer that writes nothing.
        file = os.open(path, os.O_RDWR)
        stalls()
        os.read(file, 1)  # HERE
    stalls()
    dist.all_reduce(torch.ones(4))


def frozen_file_system():
    """Rank 2 is in state D, in which a read from a frozen file system would leave it too: the kernel waits for the child
    to replace its program, and it does not. Unlike a frozen file system, this leaves nothing behind.
    """
    if RANK == BROKEN:
        libc = ctypes.CDLL(None)
        clone = SYS_CLONE[os.uname().machine]
        stalls()
        libc.syscall(clone, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0)  # HERE
        # Only the child comes here.
        time.sleep(3600)
    stalls()
    dist.all_reduce(torch.ones(4))


def endless_loop():
    if RANK == BROKEN:
        stalls()
        while True: pass  # HERE
    stalls()
    dist.all_reduce(torch.ones(4))


def endless_loop_in_c():
    """The engine of regular expressions holds the interpreter's lock."""
    if RANK == BROKEN:
        stalls()
        re.match("(a+)+$", "a" * 60 + "b")  # HERE
    stalls()
    dist.all_reduce(torch.ones(4))


def deadlocked_threads():
    if RANK == BROKEN:
        data, log = threading.Lock(), threading.Lock()
        both = threading.Barrier(2)

        def write_log():
            with log:
                both.wait()
                with data:
                    pass

        threading.Thread(target=write_log, daemon=True).start()
        with data:
            both.wait()
            stalls()
            with log:  # HERE
                pass
    stalls()
    dist.all_reduce(torch.ones(4))


class Samples:
    """A dataset that calls a function for its second sample in the broken rank."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 1 and RANK == BROKEN:
            self.function()
        return float(index)


def killed_loader():
    """PyTorch notices that the loader's process is dead, and raises an exception."""
    samples = Samples(lambda: os.kill(os.getpid(), signal.SIGKILL))
    for _ in torch.utils.data.DataLoader(samples, num_workers=1):
        stalls()
        dist.all_reduce(torch.ones(4))


def blocked_loader():
    samples = Samples(lambda: time.sleep(3600))
    for _ in torch.utils.data.DataLoader(samples, num_workers=1):  # HERE
        stalls()
        dist.all_reduce(torch.ones(4))


def killed_pool():
    """`multiprocessing` waits forever for the result of a process that was killed."""
    if RANK == BROKEN:
        import multiprocessing

        pool = multiprocessing.get_context("fork").Pool(1)
        stalls()
        pool.apply(os.kill, (pool.apply(os.getpid), signal.SIGKILL))  # HERE
    stalls()
    dist.all_reduce(torch.ones(4))


def stopped():
    if RANK == BROKEN:
        stalls()
        os.kill(os.getpid(), signal.SIGSTOP)  # HERE
    stalls()
    dist.all_reduce(torch.ones(4))


def missing_key():
    stalls()
    if RANK == BROKEN:
        store = dist.distributed_c10d._get_default_store()
        store.wait(["dataset is ready"], timedelta(hours=1))  # HERE
    dist.all_reduce(torch.ones(4))


def lost_link():
    """The test cuts the network of one node."""
    stalls()
    while True:
        dist.all_reduce(torch.ones(4))  # HERE
        time.sleep(0.05)


def checkpoint():
    """Healthy: rank 0 writes for two minutes, with little use of the CPU."""
    stalls()
    if RANK == 0:
        with open(FOLDER / "checkpoint", "wb") as file:
            block = bytes(1 << 20)
            for _ in range(600):
                file.seek(0), file.write(block), os.fsync(file), time.sleep(0.2)  # HERE
    dist.barrier()


def compilation():
    """Healthy: rank 3 waits for the processes that compile its first step."""
    stalls()
    if RANK == 3:
        compiler = "import time\nwhile time.process_time() < 120: pass"
        subprocess.run([sys.executable, "-c", compiler], check=True)  # HERE
    dist.all_reduce(torch.ones(4))


def computing():
    """Healthy: rank 0 evaluates alone."""
    stalls()
    if RANK == 0:
        end = time.monotonic() + 120
        while time.monotonic() < end: sum(range(100))  # HERE
    dist.barrier()


def forked_lock():
    """A thread holds a lock while the process forks: in the child, no thread will ever release it."""
    if RANK == BROKEN:
        lock = threading.Lock()
        lock.acquire()
        child = os.fork()
        if child == 0:
            lock.acquire()
        stalls()
        os.waitpid(child, 0)  # HERE
    stalls()
    dist.all_reduce(torch.ones(4))


def debugger():
    stalls()
    if RANK == BROKEN:
        breakpoint()
        time.sleep(0)  # HERE
    dist.all_reduce(torch.ones(4))


def cycle_at_one_line():
    """Each rank waits for the next one in a group of two, and all of them at the same line."""
    pairs = [dist.new_group(pair, timeout=TIMEOUT) for pair in ([0, 1], [1, 2], [2, 3], [3, 0])]
    for pair in pairs:
        if RANK in dist.get_process_group_ranks(pair):
            dist.all_reduce(torch.ones(4), group=pair)
    stalls()
    dist.all_reduce(torch.ones(4), group=pairs[RANK])  # HERE


def join():
    dist.init_process_group("gloo", timeout=TIMEOUT)
    dist.all_reduce(torch.ones(4))


if __name__ == "__main__":
    import torch
    import torch.distributed as dist

    if not KIND.endswith("before_init"):
        join()
    globals()[KIND]()
    if dist.is_initialized():
        dist.destroy_process_group()
