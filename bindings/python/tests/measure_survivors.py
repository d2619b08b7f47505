"""Prints how soon a group continues when members die: python measure_survivors.py [KILLS [SIZE ...]].

Members add up without a pause over gloo. One after another is killed at a random moment, and later replaced by a fork; then some
are stopped. Times are from the launcher's ``waitpid``, the fork, or ``silence_max`` after the stop, to the first right sum of the
last member. A wrong sum, an exiting survivor, or a change that takes a minute fails the run. The seed is printed; SEED repeats
it. STATE_MB gives the members a state of that many MB in 32 tensors, which replacements take. A row then shows how much of the
replacement's time the program took to make its own tensors, before it joined.
"""

import json
import os
import random
import select
import signal
import sys
import time
from datetime import timedelta
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}

import torch
from torch import distributed as dist

import c10d_rs
import c10d_rs.torch as ct

KILLS = 50
SIZES = [4, 8, 16]
LIMIT_SECONDS = 60
SILENCE_MAX = timedelta(seconds=2)
STATE_MB = int(os.environ.get("STATE_MB", "0"))


def add_up(port: int, rank: int | None, size: int, reports: int) -> None:
    """Add up until the end, and report the first sum of each generation."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size))
    if rank is not None:
        os.environ["RANK"] = str(rank)
    make = torch.zeros if rank is None else torch.ones
    begun = time.monotonic()
    state = {str(part): make(STATE_MB * 1_000_000 // 128) for part in range(32)}
    made = time.monotonic() - begun
    for generation in ct.join(min_size=2, silence_max=SILENCE_MAX):
        with generation:
            step = generation.sync(state)
            if not all(part[-1] == 1 for part in state.values() if len(part)):
                raise ArithmeticError("this member has not taken the state")
            is_first = True
            while True:
                values = torch.ones(1024)
                dist.all_reduce(values)
                if not bool((values == generation.size).all()):
                    raise ArithmeticError(f"{values[0].item()} for {generation.size} members")
                if is_first:
                    is_first = False
                    report = [os.getpid(), generation.uuid, generation.size, time.monotonic(), made]
                    os.write(reports, json.dumps(report).encode() + b"\n")
                step += 1
                generation.boundary(step)


class Group:
    """The members and their reports."""

    def __init__(self, size: int) -> None:
        """Start them."""
        self.server = c10d_rs.StoreServer()
        self.size = size
        reading, self.writing = os.pipe()
        self.reports = os.fdopen(reading, "rb", buffering=0)
        self.rest = b""
        self.pids: set[int] = set()
        self.made: dict[int, float] = {}
        for rank in range(size):
            self.fork(rank)

    def fork(self, rank: int | None) -> int:
        """Start one, and return its process id."""
        pid = os.fork()
        if pid == 0:
            try:
                add_up(self.server.port, rank, self.size, self.writing)
            finally:
                os._exit(1)
        self.pids.add(pid)
        return pid

    def wait(self) -> float:
        """Return when the last of the members had its first sum in a generation of all of them."""
        until = time.monotonic() + LIMIT_SECONDS
        first: dict[int, dict[int, float]] = {}
        while True:
            for pid, uuid, size, at, self.made[pid] in self.read(until):
                times = first.setdefault(uuid, {})
                times[pid] = at
                if size == len(self.pids) and times.keys() == self.pids:
                    return max(times.values())

    def read(self, until: float) -> list[Any]:
        """Return reports."""
        if not select.select([self.reports], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError(f"{len(self.pids)} members do not go on")
        *lines, self.rest = (self.rest + os.read(self.reports.fileno(), 65536)).split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self, pid: int) -> float:
        """Kill a member, and return when its launcher noticed this."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.pids.remove(pid)
        return time.monotonic()

    def close(self) -> None:
        """End all."""
        for pid in list(self.pids):
            self.kill(pid)
        self.reports.close()
        os.close(self.writing)
        self.server.close()


def row(name: str, size: int, seconds: list[float]) -> None:
    """Print a line of the table."""
    ms = sorted(1000 * it for it in seconds)
    p50, p99 = ms[len(ms) // 2], ms[min(len(ms) - 1, len(ms) * 99 // 100)]
    print(f"{name:<12} n={size:<3} p50 {p50:7.1f} ms  p99 {p99:7.1f} ms  max {ms[-1]:7.1f} ms  ({len(ms)})", flush=True)


def main() -> None:
    """Kill and replace members of groups of each size."""
    numbers = [int(it) for it in sys.argv[1:]]
    kills, sizes = (numbers or [KILLS])[0], numbers[1:] or SIZES
    seed = int(os.environ.get("SEED", time.time_ns()))
    print(f"SEED={seed}, state {STATE_MB} MB, load {os.getloadavg()[0]:.1f}", flush=True)
    chance = random.Random(seed)
    torch.set_num_threads(1)
    for size in sizes:
        group = Group(size)
        group.wait()
        survivors, replaced, made = [], [], []
        for _ in range(kills):
            time.sleep(chance.uniform(0, 0.2))
            at = group.kill(chance.choice(sorted(group.pids)))
            survivors.append(group.wait() - at)
            time.sleep(chance.uniform(0, 0.1))
            at = time.monotonic()
            pid = group.fork(None)
            replaced.append(group.wait() - at)
            made.append(group.made[pid])
        stopped = []
        for _ in range(-(-kills // 10)):
            pid = chance.choice(sorted(group.pids))
            os.kill(pid, signal.SIGSTOP)
            at = time.monotonic() + SILENCE_MAX.total_seconds()
            group.pids.remove(pid)
            stopped.append(group.wait() - at)
            group.pids.add(pid)
            group.kill(pid)
            group.fork(None)
            group.wait()
        group.close()
        row("survivors", size, survivors)
        row("replacement", size, replaced)
        if STATE_MB:
            row("its tensors", size, made)
        row("after a stop", size, stopped)


if __name__ == "__main__":
    main()
