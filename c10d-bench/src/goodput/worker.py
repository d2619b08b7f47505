"""A rank of `c10d-bench goodput`: trains by DDP until the file `finish` exists, and writes down all that it does.

    worker.py restarted|kept FOLDER SHARED

`restarted`: the launcher restarts all ranks, which go on from the checkpoint. `kept`: survivors go on, by c10d_rs.torch.
FOLDER has a file for each process, named by node, local rank and process id. SHARED has the checkpoint. Each line of such
a file is one write, so that a kill leaves whole lines; its last field is the time of the monotonic clock:

    start WORLD                      the process has its imports
    generation ID RANK SIZE          it is in a process group
    step STEP CHAIN LOSS             it has done this step
    wrong STEP VALUE EXPECTED        a sum is wrong
    saved STEP, unsaved STEP         it has written the checkpoint, or could not
    error TYPE                       an exception ends it
    done STEP                        it has seen the end
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

STEP_SECONDS = int(os.environ["GOODPUT_STEP_MS"]) / 1000
CHECKPOINT_STEPS = 50

# Rows of the batch of all ranks: up to 8 share them evenly, so that each size of the group trains alike.
ROWS = 840
FEATURES = 8

# Of the sum that is checked in each step: 100 kB of float64, in which it is exact.
SUM_LENGTH = 12_500

# Of the group's collectives. No stop of the nemesis lasts as long.
TIMEOUT = timedelta(seconds=60)

# A member that is silent for so long is left behind: a fault of one rank is to cost the others 1.5 s at most.
SILENCE_MAX = timedelta(seconds=1)


class Lines:
    """The file of this process."""

    def __init__(self, folder: Path) -> None:
        """Create it."""
        name = "-".join([os.environ["GOODPUT_NODE"], os.environ["LOCAL_RANK"], str(os.getpid())])
        self.file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, *fields: object) -> None:
        """Write a line."""
        os.write(self.file, (" ".join(map(str, fields)) + f" {time.monotonic():.4f}\n").encode())


class Training:
    """What is trained. Its state follows from the number of steps alone."""

    def __init__(self, lines: Lines, folder: Path, shared: Path) -> None:
        """Begin at the checkpoint, if there is one."""
        self.lines = lines
        self.end = folder / "finish"
        self.checkpoint = shared / "checkpoint"
        self.net = torch.nn.Linear(FEATURES, 1, dtype=torch.float64)
        torch.nn.init.zeros_(self.net.weight)
        torch.nn.init.zeros_(self.net.bias)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        # Differs for each order and each number of steps that were done.
        self.chain = torch.zeros(1, dtype=torch.int64)
        self.state = {"net": self.net, "optimizer": self.optimizer, "chain": self.chain}
        self.begin = 0
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint)
            self.begin = saved["step"]
            self.net.load_state_dict(saved["net"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.chain.copy_(saved["chain"])

    def step(
        self, parallel: torch.nn.Module, step: int, rank: int, size: int, has_change: bool = False
    ) -> tuple[bool, bool]:
        """Do a step, and return whether it is the last one, and whether a member knows that members come or leave."""
        begun = time.monotonic()
        share = ROWS // size
        rows = torch.arange(rank * share, (rank + 1) * share)
        features = torch.arange(FEATURES)
        inputs = ((rows[:, None] * 7 + features * 29 + step * 13) % 101).double() / 101 - 0.5
        targets = ((rows[:, None] * 31 + step * 17) % 89).double() / 89
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
        loss.backward()
        values = torch.full((SUM_LENGTH,), float(rank + 1 + step % 7), dtype=torch.float64)
        values[0] = loss.detach() / size
        values[1] = self.end.exists()
        values[2] = has_change
        dist.all_reduce(values)
        expected = size * (size + 1) / 2 + size * (step % 7)
        if not bool((values[3:] == expected).all()):
            self.lines.say("wrong", step, values[3].item(), expected)
        # Only now: a step that failed has changed nothing.
        self.optimizer.step()
        self.chain.mul_(48271).add_(step + 1).remainder_(2147483647)
        self.lines.say("step", step, self.chain.item(), repr(values[0].item()))
        if (step + 1) % CHECKPOINT_STEPS == 0 and rank == 0:
            self.save(step + 1)
        time.sleep(max(0.0, begun + STEP_SECONDS - time.monotonic()))
        return bool(values[1] > 0), bool(values[2] > 0)

    def save(self, step: int) -> None:
        """Write the checkpoint, or go on without it if there is no space."""
        saved = {"step": step, "chain": self.chain, "net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
        new = self.checkpoint.with_name(f"checkpoint-{os.getpid()}")
        try:
            with new.open("wb") as file:
                torch.save(saved, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.checkpoint)
            print(f"step {step}", flush=True)
            self.lines.say("saved", step)
        except (OSError, RuntimeError):  # torch makes a RuntimeError of a full disk
            self.lines.say("unsaved", step)
            new.unlink(missing_ok=True)


def restarted(training: Training) -> None:
    """Train in one group, which ends with its first rank."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank, size = dist.get_rank(), dist.get_world_size()
    # A name that no other group has, and all that is rank 0's: the checkpoint may have changed while the ranks started.
    told = torch.tensor([time.time_ns() // 1000, training.begin, training.chain.item()])
    dist.broadcast(told, 0)
    generation, step, chain = told.tolist()
    training.chain.fill_(chain)
    training.lines.say("generation", generation, rank, size)
    parallel = torch.nn.parallel.DistributedDataParallel(training.net)  # with the weights of rank 0
    while not training.step(parallel, step, rank, size)[0]:
        step += 1
    training.lines.say("done", step + 1)
    dist.barrier()
    dist.destroy_process_group()


def kept(training: Training) -> None:
    """Train in one group after the other, each of the ranks that are left and those that have come."""
    import c10d_rs.torch as ct

    # A relay that is a process of its own, in place of the launcher's.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["GOODPUT_RELAY_PORT"]}
    membership = ct.join(step=training.begin, timeout=TIMEOUT, silence_max=SILENCE_MAX)
    step = training.begin
    for generation in membership:
        training.lines.say("generation", generation.uuid, generation.rank, generation.size)
        with generation:
            step = generation.sync(training.state)
            parallel = generation.ddp(training.net)
            while True:
                is_last, must_ask = training.step(
                    parallel, step, generation.rank, generation.size, generation.has_change
                )
                if is_last:
                    break
                step += 1
                generation.done(step)
                if must_ask:
                    generation.boundary(step)
    training.lines.say("done", step + 1)


def main() -> None:
    """Run, and write down an exception."""
    mode, folder, shared = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    lines = Lines(folder)
    lines.say("start", os.environ["WORLD_SIZE"])
    try:
        {"restarted": restarted, "kept": kept}[mode](Training(lines, folder, shared))
    except BaseException as error:
        lines.say("error", type(error).__name__)
        raise


if __name__ == "__main__":
    main()
