"""Train a layer with torchft: one replica group of two ranks, which share a gradient and a decision to commit each step."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from load import load
from torchft import Manager, Optimizer, ProcessGroupGloo

dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 1)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
    load_state_dict=layer.load_state_dict,
    state_dict=layer.state_dict,
    min_replica_size=1,
)
optimizer = Optimizer(manager, torch.optim.SGD(layer.parameters(), lr=0.1))
for _ in range(4):
    optimizer.zero_grad()
    layer(torch.tensor(load(int(os.environ["RANK"])))).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
        manager.allreduce(parameter.grad).wait()
    optimizer.step()
manager.shutdown()
dist.destroy_process_group()
