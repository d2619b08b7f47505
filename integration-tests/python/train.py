"""Trains a small model with DDP over gloo, for tests that compare ways to start workers.

    train.py FOLDER MODE

Mode `sums` trains for 12 steps with dropout, a sampler, DataLoader workers and a checkpoint, multiplies matrices, and
writes what came out to FOLDER/sums.RANK as JSON. At the first start, rank 1 dies after the checkpoint in the middle,
and the next start continues from it.

Mode `cycle` writes its process id to FOLDER/cycle.RESTARTS.RANK after the first step of all ranks, and goes on until
it is killed or there is a file FOLDER/end.

Mode `server` writes to FOLDER/server.RANK whether a debug server listens on this worker's socket.
"""

import hashlib
import json
import os
import socket
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FOLDER, MODE = sys.argv[1:]
RANK, RESTARTS = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
STEPS, CHECKPOINT_AT = 12, 6


class Numbers(Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(32, generator=generator)


def write(name, value):
    path = os.path.join(FOLDER, name)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(path + ".tmp", path)


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def products():
    """Uses as many threads as OpenMP has."""
    matrix = torch.randn(400, 400, generator=torch.Generator().manual_seed(7)) / 20
    result = matrix
    for _ in range(10):
        result = torch.tanh(result @ matrix)
    return digest([result]), float(numpy.linalg.norm(result.numpy() @ result.numpy()))


def model_and_optimizer():
    torch.manual_seed(1)
    layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def sums(unseeded):
    torch.use_deterministic_algorithms(True)
    model, optimizer = model_and_optimizer()
    checkpoint = os.path.join(FOLDER, "checkpoint.pt")
    first, losses = 0, []
    if RESTARTS:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    data = Numbers()
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=3), num_workers=2)
    batches = [batch for batch, _ in zip(loader, range(STEPS))]
    for number in range(first, STEPS):
        torch.manual_seed(100 * number + RANK)
        losses.append(step(model, optimizer, batches[number]))
        if number + 1 == CHECKPOINT_AT and not RESTARTS:
            if RANK == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number + 1}
                torch.save(state, checkpoint)
            dist.barrier()
            if RANK == 1:
                os._exit(9)
            time.sleep(600)
    total = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(total)
    threads = torch.get_num_threads()
    result = {"losses": losses, "total": total.tolist(), "products": products(), "threads": threads}
    result |= {"parameters": digest(model.parameters()), "unseeded": unseeded}
    write(f"sums.{RANK}", result)


def cycle():
    model, optimizer = model_and_optimizer()
    loader = DataLoader(Numbers(), batch_size=8, num_workers=1, persistent_workers=True)
    dist.barrier()
    first = True
    while not os.path.exists(os.path.join(FOLDER, "end")):
        for batch in loader:
            step(model, optimizer, batch)
            if first:
                write(f"cycle.{RESTARTS}.{RANK}", os.getpid())
            first = False
            time.sleep(0.02)
        # All leave in the same epoch.
        dist.barrier()


def server():
    path = os.environ["C10D_DEBUG_SOCKET"]
    with socket.socket(socket.AF_UNIX) as client:
        write(f"server.{RANK}", [client.connect_ex(path), os.path.basename(path)])


def main():
    if MODE == "server":
        return server()
    unseeded = [torch.initial_seed(), float(numpy.random.random())]
    dist.init_process_group("gloo")
    sums(unseeded) if MODE == "sums" else cycle()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
