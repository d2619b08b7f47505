"""Nodes of torchrun join and leave jobs with survivors, beside all faults of ``test_nemesis.py``. Needs PyTorch 2.14 or later.

While a node of torchrun takes part, the death of a rank restarts all. Before and after it, the survivors stay.
C10D_NEMESIS_MIXED_ACTS is the total number of disturbances, 12 for each job; SEED, which is printed, repeats them.

    C10D_NEMESIS_MIXED_ACTS=120 python -m unittest test_nemesis_mixed
"""

import os
import random
import signal
import unittest

from nemesis_job import PER_NODE
from nemesis_mixed import PER_GUEST, MixedJob
from test_nemesis import Nemesis, disturb

# Without it one short job, for CI.
ACTS = int(os.environ.get("C10D_NEMESIS_MIXED_ACTS", "2"))
ACTS_PER_JOB = 12

# Within this time a node of torchrun has imported torch, more or less.
ARRIVAL_SECONDS = 8


class MixedNemesis(Nemesis):
    """Disturbs a job that has a node of torchrun from time to time."""

    job: MixedJob

    def __init__(self, job: MixedJob, chance: random.Random) -> None:
        """The job has its ranks, and no node of torchrun."""
        super().__init__(job, chance)
        self.acts |= {"refused": self.refused, "launcher again": self.launcher_again}
        if job.kind != "relays":
            # Ranks without a relay exit with their store.
            self.acts.pop("store", None)
        self.guest_acts = {"guest": self.guest}

    def run(self, acts: int) -> None:
        """Disturb the job so often, and have it finish."""
        self.settle("start", {})
        for index in range(acts):
            # A node of torchrun joins first, and in every third act a node of torchrun joins or leaves.
            is_guest = index == 0 or self.chance.random() < 0.34
            self.do("guest" if is_guest else self.chance.choice(sorted(self.acts)))
        self.last()

    def do(self, name: str) -> None:
        """Disturb the job in one way. The survivors stay, unless a node of torchrun takes part before or after."""
        before = self.job.settled(self.count)
        is_kept = self.job.guest is None
        {**self.acts, **self.guest_acts}[name]()
        self.settle(name, before if is_kept and self.job.guest is None else {})

    @property
    def count(self) -> int:
        """How many ranks there are when all are replaced."""
        nodes = len(self.job.launchers) - len(self.job.lost_nodes)
        return PER_NODE * nodes + PER_GUEST * (self.job.guest is not None)

    def guest(self) -> None:
        """A node of torchrun comes, or leaves, with deaths of ranks while it does."""
        if self.job.guest is None:
            self.job.start_guest(self.chance.choice(["c10d", "c10d", "c10d-rs"]))
            self.kills["guest joins"] += 1
            if self.chance.random() < 0.5:
                self.wait(ARRIVAL_SECONDS)
                self.kill("while a guest joins", self.some(self.chance.choice([1, 2])))
            return
        how = self.chance.choice(["killed", "killed", "orphans", "terminated"])
        self.kills[f"guest {how}"] += 1
        number = signal.SIGTERM if how == "terminated" else signal.SIGKILL
        self.job.leave_guest(number, are_ranks_killed=how == "killed")
        if self.chance.random() < 0.3:
            self.wait(5)
            self.kill("after a guest", self.some(1))

    def refused(self) -> None:
        """Our node, which does not keep its workers."""
        self.kills["refused"] += 1
        self.job.refuse()

    def launcher_again(self) -> None:
        """Kill a launcher that does not serve the store, and start another launcher."""
        live = sorted(set(range(len(self.job.launchers))) - self.job.lost_nodes)
        self.kills["launcher"] += 1
        self.job.kill_launcher(live[-1] if self.job.kind == "hosted" else self.chance.choice(live))
        self.wait(3)
        self.job.start_launcher()

    def store(self) -> None:
        """Kill the store like in the base class. A node of torchrun would exit and close the rendezvous, so it is lost at that
        moment.
        """
        if self.job.guest is not None:
            self.kills["guest killed"] += 1
            self.job.leave_guest(signal.SIGKILL, are_ranks_killed=True)
        super().store()

    def relay(self) -> None:
        live = sorted(set(range(len(self.job.launchers))) - self.job.lost_nodes)
        self.kills["relay"] += 1
        self.job.kill_relay(self.chance.choice(live))

    def newcomer(self) -> None:
        """Only where a death has one replacement."""
        if self.job.guest is None:
            super().newcomer()
        else:
            self.during_a_change()

    def stop(self) -> None:
        """Stop a rank until the other ranks have continued without it. Beside a node of torchrun they do not, so stop it for some
        time.
        """
        if self.job.guest is None:
            super().stop()
            return
        (pid,) = self.some(1)
        os.kill(pid, signal.SIGSTOP)
        self.kills["stop"] += 1
        self.wait(8)
        os.kill(pid, signal.SIGCONT)

    def last(self) -> None:
        """Let a node of torchrun join at random when the job finishes, even after its ranks have done their last step."""
        if self.job.guest is None and self.chance.random() < 0.7:
            self.kills["guest at the end"] += 1
            self.job.start_guest("c10d")
            self.wait(ARRIVAL_SECONDS)


class Mixed(unittest.TestCase):
    def test_nodes_of_torchrun_come_and_go(self) -> None:
        disturb(ACTS, ACTS_PER_JOB, lambda kind, folder, chance: MixedNemesis(MixedJob(kind, folder), chance))


if __name__ == "__main__":
    unittest.main()
