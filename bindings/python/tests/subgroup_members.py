"""The members of ``test_subgroups.py``, which make new groups of torch in each generation."""

import copy
import gc
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import c10d_rs.torch as ct
from c10d_rs._subgroups import Subgroups
from members import Member, batch, model


def shard(port: int, rank: int | None, size: int, kill: dict[str, int] | None = None) -> None:
    """Train by FSDP2 over a mesh of all members, of two dimensions if their number is even, beside two subgroups.

    The work ends some steps after a newcomer has joined.
    """
    member = Member(port, rank, size, 1)
    net, _ = model()
    state: dict[str, Any] = {"net": net, "losses": []}
    for generation in member.membership:
        member.enter(generation)
        with generation:
            step = generation.sync(state)
            half = generation.size // 2
            groups = [dist.new_group(range(half)), dist.new_group(range(half, generation.size))]
            if generation.size % 2:
                mesh = init_device_mesh("cpu", (generation.size,))
            else:
                mesh = init_device_mesh("cpu", (half, 2), mesh_dim_names=("replicate", "shard"))
            sharded: Any = copy.deepcopy(net)
            for layer in sharded:
                fully_shard(layer, mesh=mesh)
            fully_shard(sharded, mesh=mesh)
            optimizer = torch.optim.SGD(sharded.parameters(), lr=0.05)
            last = step + 5
            while step < last or generation.members[-1] < size:
                inputs, targets = (part.chunk(generation.size)[generation.rank] for part in batch(step))
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(sharded(inputs), targets)
                if kill and kill.get(str(member.membership.id)) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()
                ranks = range(half) if generation.rank < half else range(half, generation.size)
                own = torch.tensor([float(generation.rank)])
                dist.all_reduce(own, group=groups[generation.rank >= half])
                if own.item() != sum(ranks):
                    member.say("wrong", step=step, value=own.item(), expected=sum(ranks))
                mean = torch.tensor(loss.item() / generation.size, dtype=torch.float64)
                dist.all_reduce(mean)
                optimizer.step()
                whole = [parameter.full_tensor() for parameter in sharded.parameters()]
                dist.all_reduce(torch.ones(1))
                with torch.no_grad():
                    for parameter, value in zip(net.parameters(), whole, strict=True):
                        parameter.copy_(value)
                state["losses"].append(mean.item())
                step += 1
                generation.boundary(step)
    member.say("done", losses=state["losses"], alone=train_by_sgd_alone(step))


def train_by_sgd_alone(steps: int) -> list[float]:
    """Train as ``shard`` does, without a group, and return the losses."""
    net, _ = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def die_in_new_group(port: int, rank: int, size: int, has_met: bool) -> None:
    """Make a group while a member dies, before or after it meets the other members, and again without it."""
    member = Member(port, rank, size, 1, ready_timeout=5)
    for generation in member.membership:
        member.enter(generation)
        with generation:
            generation.sync({})
            if rank == 1:
                if has_met:
                    Subgroups._make = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            group = dist.new_group()
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            member.say("sum", value=total.item(), size=generation.size)
    member.say("done")


def misuse(port: int, rank: int, size: int, kind: str) -> None:
    """Use groups or numbers of steps in a way that membership refuses, after the death of a member, and report the error."""
    member = Member(port, rank, size, 1)
    group: Any = None
    try:
        if kind == "early":
            dist.new_group()
        for generation in member.membership:
            member.enter(generation)
            with generation:
                step = generation.sync({})
                group = group or dist.new_group()
                if kind == "split":
                    dist.split_group(split_ranks=[list(range(generation.size))])
                if kind == "end":
                    generation.boundary(2**64 - 1)
                if kind == "mark":
                    generation.done(2**62)
                while True:
                    dist.all_reduce(torch.ones(8), group=group)
                    step += 1
                    if step == 3 and rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    generation.boundary(step)
    except (ct.MembershipError, ValueError) as error:
        member.say("error", kind=type(error).__name__, text=str(error))


def old_shards(port: int, rank: int, size: int, age: int) -> None:
    """Use an object of FSDP2 that is this many generations old, after as many deaths, and report the error."""
    member = Member(port, rank, size, 1)
    net, _ = model()
    sharded: Any = None
    try:
        for number, generation in enumerate(member.membership):
            member.enter(generation)
            with generation:
                step = generation.sync({})
                sharded = sharded or fully_shard(net, mesh=init_device_mesh("cpu", (generation.size,)))
                if number == 0 or number >= age:
                    # Frees the parameters of all ranks, so that the next forward gathers them again.
                    sharded(batch(0)[0]).sum().backward()
                    member.say("loss", generation=number)
                while True:
                    dist.all_reduce(torch.ones(8))
                    step += 1
                    if step == 3 * (number + 1) and rank == number + 1 <= age:
                        os.kill(os.getpid(), signal.SIGKILL)
                    generation.boundary(step)
    except Exception as error:
        member.say("error", kind=type(error).__name__, text=str(error))


def regroup(port: int, rank: int | None, size: int) -> None:
    """Make a group and a mesh in each generation until the end of the process, and report the first sum of each."""
    member = Member(port, rank, size, 1)
    for generation in member.membership:
        with generation:
            step = generation.sync({})
            group = dist.new_group()
            net, _ = model()
            fully_shard(net, mesh=init_device_mesh("cpu", (1, generation.size), mesh_dim_names=("replicate", "shard")))
            net(batch(0)[0]).sum().backward()
            is_first = True
            while True:
                values = torch.ones(1000)
                dist.all_reduce(values, group=group)
                if is_first:
                    is_first = False
                    # The shards of the generation before refer to each other.
                    gc.collect()
                    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
                    threads = sum(name.startswith("pt_gloo_run") for name in names)
                    descriptors = len(os.listdir("/proc/self/fd"))
                    member.say("sum", size=generation.size, value=values[0].item(), descriptors=descriptors, threads=threads)
                step += 1
                generation.boundary(step)


def compiled(port: int, rank: int, size: int) -> None:
    """Train by compiled DDP objects, also by one of the generation before, and report the gradients and the error."""
    member = Member(port, rank, size, 1)
    net = torch.nn.Linear(4, 1)
    earlier: Any = None
    try:
        for generation in member.membership:
            member.enter(generation)
            with generation:
                step = generation.sync({"net": net})
                parallel = torch.compile(generation.ddp(net), backend="aot_eager")
                net.zero_grad()
                parallel(torch.full((2, 4), float(generation.rank))).sum().backward()
                member.say("gradient", size=generation.size, value=net.weight.grad.mean().item())
                if earlier is not None:
                    earlier(torch.ones(2, 4))
                earlier = parallel
                while True:
                    dist.all_reduce(torch.ones(8))
                    step += 1
                    if step == 3 and rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    generation.boundary(step)
    except ct.MembershipError as error:
        member.say("error", kind=type(error).__name__, text=str(error))
