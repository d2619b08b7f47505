"""Train a layer with accelerate."""

import torch
from accelerate import Accelerator
from load import load

accelerator = Accelerator(cpu=True)
layer = torch.nn.Linear(4, 1)
layer, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
for _ in range(4):
    optimizer.zero_grad()
    accelerator.backward(layer(torch.tensor(load(accelerator.process_index))).sum())
    optimizer.step()
accelerator.end_training()
