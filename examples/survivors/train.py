"""Trains with DistributedDataParallel while ranks die and come. See all_reduce.py for how to start it.

The batches follow from the step, so that a step that failed is done again on the same data. Each rank takes its share of
them: with 840 rows and 1 to 8 ranks, the mean of the shares' gradients is the gradient of the batch.
"""

import os
import random
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import c10d_rs.torch as ct

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
ROWS = 840
CHECKPOINT = "survivors.pt"
CHECKPOINT_STEPS = 500

torch.manual_seed(0)
inputs = torch.randn(8400, 16)
dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a step, the same on all ranks."""
    epoch, begin = divmod(step * ROWS, len(dataset))
    order = list(range(len(dataset)))
    random.Random(epoch).shuffle(order)
    x, y = dataset[order[begin : begin + ROWS]]
    return x, y


def main() -> None:
    """Train."""
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    # What a newcomer gets from the rank with the most steps; torch's random numbers come with it.
    state = {"net": net, "optimizer": optimizer, "scheduler": scheduler}

    step = 0
    if os.path.exists(CHECKPOINT):  # after the end of all processes
        saved = torch.load(CHECKPOINT)
        step = saved.pop("step")
        for name, values in saved.items():
            state[name].load_state_dict(values)

    for generation in (membership := ct.join(min_size=1, step=step)):
        print(f"process {os.getpid()}: rank {generation.rank} of {generation.size}, step {membership.step}", flush=True)
        with generation:
            step = generation.sync(state)
            # All that knows the number of ranks is made anew: DDP, a DistributedSampler, subgroups.
            parallel = generation.ddp(net)
            while step < STEPS:
                x, y = (rows.chunk(generation.size)[generation.rank] for rows in batch(step))
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(parallel(x), y)
                loss.backward()  # raises if a rank is lost; the parameters have not changed then
                optimizer.step()
                scheduler.step()
                step += 1
                if step % CHECKPOINT_STEPS == 0 and generation.rank == 0:
                    saved = {name: each.state_dict() for name, each in state.items()}
                    torch.save({"step": step, **saved}, CHECKPOINT)
                generation.boundary(step)
    print(f"process {os.getpid()}: {step} steps, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
