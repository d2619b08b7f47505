"""Nodes enter a running job, and replace lost nodes, while the ranks of the other nodes continue.

Needs PyTorch 2.14 or later.
"""

import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemesis_job import Job
from nodes import require_reconfigure
from test_nemesis import losses_alone

PER_NODE = 2


class SilentJob(Job):
    """A job in which a failed collective is explained only by a silence that is longer than 5 s."""

    variables = {**Job.variables, "NEMESIS_SILENCE_MAX": "8"}


# Two nodes more may enter.
GROWS: dict[str, Any] = {"nodes": 1, "nnodes": "1:3"}

# One node more is a spare.
FULL: dict[str, Any] = {"nodes": 2, "nnodes": "2"}


class Growth(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        require_reconfigure()

    @contextmanager
    def job(self, kind: str, type_: type[Job] = Job, **parameters: Any) -> Iterator[Job]:
        """Start a job, and check in the end that it succeeds and that its laws hold."""
        with tempfile.TemporaryDirectory() as folder:
            job = type_(kind, Path(folder), per_node=PER_NODE, **parameters)
            try:
                yield job
                job.finish()
                job.check(losses_alone)
            except BaseException:
                print(job.report(), file=sys.stderr, flush=True)
                raise
            finally:
                job.close()

    def settle(self, job: Job, nodes: int, before: dict[int, int]) -> dict[int, int]:
        """Wait until the ranks of this many nodes continue, earlier ranks in their processes."""
        begun = time.monotonic()
        after = job.settled(nodes * PER_NODE)
        live = {id_: pid for id_, pid in before.items() if pid not in job.dead}
        self.assertLessEqual(live.items(), after.items())
        print(f"  {nodes} nodes after {time.monotonic() - begun:.2f} s", file=sys.stderr, flush=True)
        return after

    def grow(self, kind: str, **parameters: Any) -> None:
        """A job of one node grows to three, loses one of them, and has three again."""
        with self.job(kind, **GROWS, **parameters) as job:
            before = self.settle(job, 1, {})
            for nodes in (2, 3):
                job.start_launcher()
                before = self.settle(job, nodes, before)
            job.kill_launcher(1)
            before = self.settle(job, 2, before)
            job.start_launcher()
            after = self.settle(job, 3, before)
            # The lost node's ranks.
            self.assertEqual(sorted(after), list(range(3 * PER_NODE)))

    def test_hosted(self) -> None:
        self.grow("hosted", preload="")

    def test_with_a_preloaded_template(self) -> None:
        self.grow("hosted")

    def test_with_relays_and_a_preloaded_template(self) -> None:
        self.grow("apart")

    def test_with_relays(self) -> None:
        # The store notices a killed launcher by the silence of its ranks, because its relay could come back.
        self.grow("apart", type_=SilentJob, preload="")

    def test_spare_replaces_a_killed_node(self) -> None:
        with self.job("apart", **FULL) as job:
            before = self.settle(job, 2, {})
            job.start_launcher()
            job.kill_launcher(1)
            # On a slow machine the spare arrives before the other nodes have continued without that node.
            self.assertEqual(self.settle(job, 2, before).keys(), before.keys())

    def test_spare_replaces_a_node_that_leaves(self) -> None:
        with self.job("hosted", **FULL) as job:
            before = self.settle(job, 2, {})
            job.start_launcher()
            job.stop_launcher(1)
            self.assertEqual(self.settle(job, 2, before).keys(), before.keys())


if __name__ == "__main__":
    unittest.main()
