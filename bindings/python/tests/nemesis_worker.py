"""A rank of the jobs of ``nemesis.py``: trains by DDP and adds up in every step, until the file ``finish`` exists.

It adds up over all ranks, and over half of them in a subgroup of the generation. It writes a line for each generation and each
step, and how it ended, to its own file, whose name is its id and its process id. In a job that also restarts all ranks
(NEMESIS_CHECKPOINT), rank 0 writes checkpoints.
"""

import faulthandler
import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import c10d_rs.torch as ct
from c10d_rs import _place

sys.path.insert(0, str(Path(__file__).parent))
from members import GROUP_TIMEOUT, batch, model

# Longer than a pause of the machine, shorter than the stops of the nemesis.
SILENCE_MAX = timedelta(seconds=float(os.environ.get("NEMESIS_SILENCE_MAX", "4")))

# A busy machine must not look like a member that hangs.
PATIENCE = timedelta(minutes=2)

CHECKPOINT_STEPS = 10

# This comes after the last step, like in a program that writes its results.
LAST_WORK_SECONDS = 3


class Lines:
    """The file of this process. Each line is one write, so that a kill leaves whole lines."""

    def __init__(self, folder: Path) -> None:
        """Create it."""
        # A launcher that keeps no workers gives no id.
        id_ = os.environ.get("C10D_MEMBER_ID", os.environ["RANK"])
        name = folder / f"{id_}-{os.getpid()}"
        self.file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, **fields: Any) -> None:
        """Write a line."""
        os.write(self.file, json.dumps(fields).encode() + b"\n")


def train(folder: Path, lines: Lines) -> None:
    """Take part until the end."""
    note_group(lines)
    net, optimizer = model()
    state: dict[str, Any] = {"net": net, "optimizer": optimizer}
    checkpoint = folder.parent / "checkpoint"
    has_checkpoints = "NEMESIS_CHECKPOINT" in os.environ
    done = 0
    if has_checkpoints and checkpoint.exists():
        saved = torch.load(checkpoint)
        done = saved.pop("step")
        for name, values in saved.items():
            state[name].load_state_dict(values)
    membership = ct.join(
        step=done,
        timeout=GROUP_TIMEOUT,
        silence_max=SILENCE_MAX,
        ready_timeout=PATIENCE,
        below_min_timeout=PATIENCE,
    )
    for generation in membership:
        uuid = generation.uuid
        lines.say(uuid=uuid, rank=generation.rank, members=generation.members, at=time.monotonic())
        with generation:
            step = generation.sync(state)
            half = generation.size // 2
            halves = [range(half), range(half, generation.size)]
            groups = [dist.new_group(ranks) for ranks in halves]
            parallel = generation.ddp(net, bucket_cap_mb=0.001)
            is_last = False
            while not is_last:
                inputs, targets = (part.chunk(generation.size)[generation.rank] for part in batch(step))
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
                loss.backward()
                mean = loss.detach().clone() / generation.size
                dist.all_reduce(mean)
                is_second = generation.rank >= half
                add_up_half(generation, step, lines, halves[is_second], groups[is_second])
                is_last = add_up(generation, step, lines, is_end=(folder / "finish").exists())
                optimizer.step()
                lines.say(uuid=uuid, step=step, loss=mean.item(), at=time.monotonic())
                step += 1
                if has_checkpoints and generation.rank == 0 and step % CHECKPOINT_STEPS == 0:
                    save(checkpoint, step, state)
                generation.boundary(step)
    lines.say(done=time.monotonic())
    if has_checkpoints:
        time.sleep(LAST_WORK_SECONDS)


def note_group(lines: Lines) -> None:
    """Have the name of the group written down that this process joins."""
    open_ = _place.Place.open

    def open_noted(self: _place.Place, *arguments: Any) -> Any:
        lines.say(group=self.name, is_mixed=self.is_mixed)
        return open_(self, *arguments)

    _place.Place.open = open_noted  # type: ignore[method-assign, assignment]


def save(checkpoint: Path, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint, which is whole whenever this process exits."""
    saved = {name: each.state_dict() for name, each in state.items()}
    new = checkpoint.with_name(f"checkpoint-{os.getpid()}")
    torch.save({"step": step, **saved}, new)
    new.rename(checkpoint)


def add_up(generation: ct.Generation, step: int, lines: Lines, *, is_end: bool) -> bool:
    """Check a sum, which is exact in this type, and return whether any rank has seen the end."""
    length = random.Random(step).choice([4, 1000, 50_000])
    values = torch.full((length,), float(generation.rank + 1 + step % 7))
    values[0] = is_end
    dist.all_reduce(values)
    expected = generation.size * (generation.size + 1) / 2 + generation.size * (step % 7)
    if not bool((values[1:] == expected).all()):
        lines.say(wrong=values[1:4].tolist(), expected=expected, uuid=generation.uuid, step=step)
    return bool(values[0] > 0)


def add_up_half(generation: ct.Generation, step: int, lines: Lines, ranks: range, group: Any) -> None:
    """Check a sum over a subgroup of this generation."""
    values = torch.full((1000,), float(generation.rank))
    dist.all_reduce(values, group=group)
    if not bool((values == sum(ranks)).all()):
        lines.say(wrong=values[:3].tolist(), expected=sum(ranks), uuid=generation.uuid, step=step)


def main() -> None:
    """Run, and write down an exception."""
    # The test's own relay, instead of the launcher's.
    os.environ["MASTER_PORT"] = os.environ.get("NEMESIS_RELAY_PORT", os.environ["MASTER_PORT"])
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)  # shows where a rank hangs
    folder = Path(sys.argv[1])
    lines = Lines(folder)
    lines.say(node=int(os.environ["NEMESIS_NODE"]))
    try:
        train(folder, lines)
    except BaseException as error:
        lines.say(error=type(error).__name__, text=str(error), at=time.monotonic())
        raise


if __name__ == "__main__":
    main()
