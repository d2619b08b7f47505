"""The part that all the jobs of this folder share: rank 1 hangs when it loads its third sample."""

import os

calls = 0


def load(rank: int) -> list[float]:
    """Return a sample. The third of rank 1 does not arrive until `check` has read the explanation of the hang."""
    global calls
    calls += 1
    if rank == 1 and calls == 3:
        with open(os.environ["GO_ON"]) as go_on:
            go_on.read()
    return [1.0, 1.0, 1.0, 1.0]
