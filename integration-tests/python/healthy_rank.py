"""A rank of a healthy job that can look like one that hangs.

Usage: healthy_rank.py KIND FOLDER

KIND is the name of a function below `main`. All ranks run it again and again, for C10D_TEST_SECONDS, then
exit.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
SECONDS = float(os.environ["C10D_TEST_SECONDS"])
RANK = int(os.environ["RANK"])

# Longer than the default of --explain-after.
LONG_SECONDS = 45


def main():
    dist.init_process_group("gloo")
    end = time.monotonic() + SECONDS
    (FOLDER / f"trains.{RANK}").touch()
    is_over = False
    while not is_over:
        globals()[KIND]()
        # Rank 0 decides for all.
        flag = torch.tensor([time.monotonic() > end], dtype=torch.int32)
        dist.broadcast(flag, 0)
        is_over = bool(flag.item())
    dist.destroy_process_group()


def steady():
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)


def long_steps():
    """All ranks wait for something outside, for a time that is not yet a stall."""
    time.sleep(15)


def uneven_steps():
    """Each rank waits for something outside, and the other ranks for that rank."""
    time.sleep(random.uniform(0, 20))


def evaluation():
    if RANK == 0:
        compute(LONG_SECONDS)
    dist.barrier()
    time.sleep(5)


def checkpoint():
    if RANK == 0:
        end = time.monotonic() + LONG_SECONDS
        with open(FOLDER / "checkpoint", "wb") as file:
            while time.monotonic() < end:
                file.seek(0)
                file.write(bytes(1 << 20))
                os.fsync(file)
                time.sleep(0.2)
    dist.barrier()
    time.sleep(5)


def compilation():
    if RANK == 3:
        compiler = f"import time\nwhile time.process_time() < {LONG_SECONDS}: pass"
        subprocess.run([sys.executable, "-c", compiler], check=True)
    dist.all_reduce(torch.ones(4))
    time.sleep(5)


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


if __name__ == "__main__":
    import torch
    import torch.distributed as dist

    main()
