"""Ranks, launchers, relays and stores of training jobs are killed, and the survivors continue. Needs PyTorch 2.14 or later.

Each job has 8 ranks under two launchers, and is disturbed in ways and at moments that follow from a seed, which is printed. SEED
repeats them. C10D_NEMESIS_ACTS is the total number of disturbances: 12 times in each job, which kills about 18 processes.

    C10D_NEMESIS_ACTS=360 python -m unittest test_nemesis
"""

import collections
import os
import random
import signal
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

from nemesis_job import NODES, PER_NODE, WORKERS_MIN, Broken, Job
from nodes import require_reconfigure

# Without it two jobs, for CI.
ACTS = int(os.environ.get("C10D_NEMESIS_ACTS", "8"))
ACTS_PER_JOB = 12 if ACTS >= 12 else 4

KINDS = ("apart", "relays", "hosted")

# The workers of all nodes, including torchrun's.
RANKS_MAX = PER_NODE * (NODES + 1)

# The length of a stop that is not noticed.
PAUSE_SECONDS = 0.3


class Nemesis:
    """Disturbs a job."""

    def __init__(self, job: Job, chance: random.Random) -> None:
        """The job has its ranks."""
        self.job = job
        self.chance = chance
        self.kills: collections.Counter[str] = collections.Counter()
        self.acts: dict[str, Callable[[], None]] = {
            "one": self.one,
            "rank 0": self.rank_0,
            "several": self.several,
            "during a change": self.during_a_change,
            "newcomer": self.newcomer,
            "pause": self.pause,
            "stop": self.stop,
        }
        if job.kind == "relays":
            self.acts["relay"] = self.relay
        if job.kind != "hosted":
            self.acts["store"] = self.store

    def run(self, acts: int) -> None:
        """Disturb the job so often. The last time a launcher is killed."""
        self.settle("start", {})
        for index in range(acts):
            name = self.chance.choice(sorted(self.acts))
            self.do("launcher" if index == acts - 1 else name)

    def do(self, name: str) -> None:
        """Disturb the job in one way, and check that the survivors continue."""
        before = self.job.settled(self.count)
        self.acts.get(name, self.launcher)()
        self.settle(name, before)

    @property
    def count(self) -> int:
        """How many ranks there are when all are replaced."""
        return PER_NODE * (NODES - len(self.job.lost_nodes))

    def settle(self, name: str, before: dict[int, int]) -> None:
        """Wait until all ranks continue, the survivors in their processes."""
        begun = time.monotonic()
        after = self.job.settled(self.count)
        for id_, pid in before.items():
            if pid not in self.job.dead and after.get(id_) != pid:
                raise Broken(f"{name}: rank {id_} was the process {pid}, and is {after.get(id_)}")
        print(f"  {name}: {time.monotonic() - begun:.2f} s", file=sys.stderr, flush=True)

    def kill(self, what: str, pids: list[int]) -> None:
        """Kill ranks at once, except for as many as the job needs."""
        spare = len(self.job.live()) - WORKERS_MIN
        for pid in pids[: max(0, spare)]:
            self.job.signal(pid, signal.SIGKILL)
            self.kills[what] += 1

    def some(self, count: int) -> list[int]:
        """Choose ranks, the same whenever the same live."""
        order = self.chance.sample(range(RANKS_MAX), RANKS_MAX)
        live = self.job.live()
        return [live[id_] for id_ in order if id_ in live][:count]

    def wait(self, seconds_max: float) -> None:
        """Let some time pass."""
        time.sleep(self.chance.uniform(0, seconds_max))

    def one(self) -> None:
        self.wait(0.1)
        self.kill("one", self.some(1))

    def rank_0(self) -> None:
        live = self.job.live()
        ranks = [it for it in self.job.ranks.values() if live.get(it.id) == it.pid and it.generations]
        newest = max(ranks, key=lambda it: (it.generations[-1]["uuid"], -it.generations[-1]["rank"]))
        self.kill("rank 0", [newest.pid])

    def several(self) -> None:
        self.kill("several", self.some(self.chance.choice([2, 2, 3, 5])))

    def during_a_change(self) -> None:
        for _ in range(self.chance.choice([2, 3, 4])):
            self.kill("during a change", self.some(1))
            self.wait(self.chance.choice([0.01, 0.05, 0.3]))

    def newcomer(self) -> None:
        known = set(self.job.ranks)
        self.kill("one", self.some(1))
        new: list[int] = []

        def has_come() -> bool:
            new[:] = [rank.pid for name, rank in self.job.ranks.items() if name not in known]
            return bool(new)

        self.job.until("a replacement", has_come)
        self.wait(self.chance.choice([0.01, 0.2]))
        self.kill("newcomer", new[:1])

    def pause(self) -> None:
        """Stop a rank for less than the silence that removes it: nothing happens to it."""
        (pid,) = self.some(1)
        os.kill(pid, signal.SIGSTOP)
        self.wait(PAUSE_SECONDS)
        os.kill(pid, signal.SIGCONT)
        self.kills["pause"] += 1

    def stop(self) -> None:
        """Stop a rank until the other ranks have continued without it."""
        (pid,) = self.some(1)
        self.job.signal(pid, signal.SIGSTOP)
        self.kills["stop"] += 1
        self.wait(1)
        if self.chance.random() < 0.5:
            self.kill("during a stop", self.some(1))

        def have_gone_on() -> bool:
            stopped = next(rank for rank in self.job.ranks.values() if rank.pid == pid)
            last = stopped.generations[-1]["uuid"]
            return any(it.steps and it.steps[-1]["uuid"] > last for it in self.job.ranks.values())

        self.job.until(f"others go on without {pid}", have_gone_on)
        self.wait(1)
        self.job.signal(pid, signal.SIGCONT)

    def relay(self) -> None:
        node = self.chance.randrange(NODES)
        self.kills["relay"] += 1
        self.job.kill_relay(node)

    def store(self) -> None:
        """Kill the store, with ranks before and after it or without."""
        before, after = self.chance.choice([0, 1, 2]), self.chance.choice([0, 0, 1])
        self.kill("before the store", self.some(before))
        self.wait(self.chance.choice([0.005, 0.05]))
        self.job.kill_store()
        self.kills["store"] += 1
        self.kill("after the store", self.some(after))
        self.wait(0.5)
        self.job.start_store()

    def launcher(self) -> None:
        """Kill a launcher. The first one stays if it has the store."""
        node = 1 if self.job.kind == "hosted" else self.chance.randrange(NODES)
        self.kills["launcher"] += 1
        self.job.kill_launcher(node)


class Disturbed(unittest.TestCase):
    def test_survivors_go_on(self) -> None:
        disturb(ACTS, ACTS_PER_JOB, lambda kind, folder, chance: Nemesis(Job(kind, folder), chance))


def disturb(acts: int, acts_per_job: int, start: Callable[[str, Path, random.Random], Nemesis]) -> None:
    """Disturb jobs of all kinds, each by its seed, and check them. `start` starts a job of a kind in a folder."""
    require_reconfigure()
    seed = int(os.environ.get("SEED", time.time_ns()))
    kills: collections.Counter[str] = collections.Counter()
    for index in range(-(-acts // acts_per_job)):
        chance = random.Random(seed + index)
        kind = KINDS[(seed + index) % len(KINDS)]
        print(f"SEED={seed + index} ({kind}), load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            nemesis = start(kind, Path(folder), chance)
            job = nemesis.job
            try:
                nemesis.run(min(acts_per_job, acts))
                job.finish()
                job.check(losses_alone)
            except BaseException:
                print(job.report(), file=sys.stderr, flush=True)
                raise
            finally:
                job.close()
                kills += nemesis.kills
    print(f"{kills.total()} disturbances: {dict(kills)}", file=sys.stderr, flush=True)


_losses: list[float] = []


def losses_alone(step: int) -> float:
    """Return the loss in this step of an undisturbed run."""
    import members
    import torch

    torch.set_num_threads(1)
    while len(_losses) <= step:
        _losses[:] = members.losses_alone(max(2 * step, 200))
    return _losses[step]


if __name__ == "__main__":
    unittest.main()
