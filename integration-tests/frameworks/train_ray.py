"""Train a layer with Ray Train, whose workers are rank 0 and rank 1."""

import os

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from load import load


def train() -> None:
    """Train as one rank, in a group whose store is at STORE."""
    context = ray.train.get_context()
    host, port = os.environ["STORE"].split(":")
    dist.destroy_process_group()
    store = dist.TCPStore(host, int(port))
    dist.init_process_group("gloo", store=store, rank=context.get_world_rank(), world_size=context.get_world_size())
    layer = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        layer(torch.tensor(load(context.get_world_rank()))).sum().backward()
        optimizer.step()


variables = {name: os.environ[name] for name in ("GO_ON", "STORE")}
ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": variables})
scaling = ray.train.ScalingConfig(num_workers=2)
run = ray.train.RunConfig(storage_path=os.environ["OUTPUT"])
ray.train.torch.TorchTrainer(train, scaling_config=scaling, run_config=run).fit()
