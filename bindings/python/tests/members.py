"""The members of ``test_survivors.py``. Each reports its observations in the queue ``events`` of the store."""

import atexit
import copy
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as _c10d

import c10d_rs
import c10d_rs.torch as ct

# Longer than a test may take: no member is freed by it.
GROUP_TIMEOUT = timedelta(minutes=30)

# A generation of the wanted size does this many steps more.
LAST_STEPS = 20


class Member:
    """A member of a test's group."""

    def __init__(
        self, port: int, rank: int | None, size: int, min_size: int, master: int | None = None, **options: float
    ) -> None:
        """Join, over the store of the test or of the port ``master``."""
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master or port), WORLD_SIZE=str(size))
        if rank is not None:
            os.environ["RANK"] = str(rank)
        self.store = c10d_rs.TCPStore("127.0.0.1", port)
        waits = {name: timedelta(seconds=seconds) for name, seconds in options.items()}
        self.membership = ct.join(min_size=min_size, timeout=GROUP_TIMEOUT, **waits)  # type: ignore[arg-type]

    def say(self, what: str, **more: Any) -> None:
        """Report."""
        event = {"what": what, "id": self.membership.id, "pid": os.getpid(), **more}
        self.store.queue_push("events", json.dumps(event))

    def enter(self, generation: ct.Generation) -> None:
        """Report a generation."""
        fields = ("uuid", "rank", "size", "members", "joined", "left", "source")
        self.say("generation", **{name: getattr(generation, name) for name in fields})


def add_up(
    port: int,
    rank: int | None,
    size: int,
    min_size: int,
    until: int,
    length: int = 4096,
    **options: float,
) -> None:
    """Add up in every step, and end some steps after the group has the size ``until``."""
    member = Member(port, rank, size, min_size, None, **options)
    torch.manual_seed(1)
    if rank is None:
        torch.rand(7)  # other random numbers, if it did not take those of the others
    state: dict[str, Any] = {"total": torch.zeros(1, dtype=torch.float64), "sizes": []}
    try:
        for generation in member.membership:
            member.enter(generation)
            with generation:
                step = generation.sync(state)
                last = step + LAST_STEPS
                while generation.size != until or step < last:
                    values = torch.full((length,), float(generation.rank + 1))
                    dist.all_reduce(values)
                    expected = generation.size * (generation.size + 1) / 2
                    if not bool((values == expected).all()):
                        member.say("wrong", step=step, value=values[0].item(), expected=expected)
                    step += 1
                    state["total"] += values[0].item() * torch.rand(1, dtype=torch.float64).item()
                    state["sizes"].append(generation.size)
                    if step == 5:
                        member.say("steps")
                    generation.boundary(step)
    except Exception as error:
        member.say("error", kind=type(error).__name__, text=str(error))
        return
    member.say("done", step=step, total=state["total"].item(), sizes=state["sizes"], recorded=recorded())


def recorded() -> list[str]:
    """Return how torch's flight recorder describes the default group, by its collectives, each description once in a row."""
    entries = json.loads(_c10d._dump_fr_trace_json()).get("entries", [])
    described = [entry["process_group"][1] for entry in entries]
    return [it for index, it in enumerate(described) if described[index - 1 : index] != [it]]


def stay(port: int, rank: int | None, size: int, min_size: int) -> None:
    """Add up until the end of the process, and report the first sum of each generation."""
    member = Member(port, rank, size, min_size)
    for generation in member.membership:
        is_first = True
        with generation:
            step = generation.sync({})
            while True:
                values = torch.full((1000,), float(generation.rank + 1))
                dist.all_reduce(values)
                if bool((values != generation.size * (generation.size + 1) / 2).any()):
                    member.say("wrong", step=step, value=values[0].item())
                if is_first:
                    is_first = False
                    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                    descriptors = len(os.listdir("/proc/self/fd"))
                    member.say("sum", size=generation.size, resident=resident, descriptors=descriptors)
                step += 1
                generation.boundary(step)


def agree(port: int, rank: int, size: int, min_size: int, dies: bool) -> None:
    """Report the state after the first ``sync`` that succeeds. Each member begins with a different state."""
    member = Member(port, rank, size, min_size)
    state: dict[str, Any] = {"value": torch.full((1,), float(rank))}
    for generation in member.membership:
        with generation:
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            generation.sync(state)
            member.say("state", size=generation.size, value=state["value"].item())


def train(
    port: int, rank: int | None, size: int, steps: int, kill: dict[str, int] | None = None, boundary_steps: int = 1
) -> None:
    """Train with DDP on batches that follow from the step, and report the losses.

    Without ``boundary_steps``, boundaries are where a member has been notified of a change.
    """
    member = Member(port, rank, size, 1)
    net, optimizer = model()
    state: dict[str, Any] = {"net": net, "optimizer": optimizer, "losses": []}
    earlier = None
    for generation in member.membership:
        member.enter(generation)
        with generation:
            step = generation.sync(state)
            parallel = generation.ddp(net, bucket_cap_mb=0.001)
            if earlier is not None:
                refuses(earlier)
            earlier = parallel
            while step < steps:
                inputs, targets = (part.chunk(generation.size)[generation.rank] for part in batch(step))
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(parallel(inputs), targets)
                if kill and kill.get(str(member.membership.id)) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()
                told = torch.tensor([loss.item() / generation.size, generation.has_change], dtype=torch.float64)
                dist.all_reduce(told)
                mean, changes = told.tolist()
                optimizer.step()
                state["losses"].append(mean)
                step += 1
                if step == 5:
                    member.say("steps")
                generation.done(step)
                if changes if boundary_steps == 0 else step % boundary_steps == 0:
                    generation.boundary(step)
    member.say("done", losses=state["losses"])


def work(port: int, rank: int | None, size: int, master: int) -> None:
    """Do steps until the test stops them, with boundaries where a member has been notified of a change. Report every hundredth
    step.
    """
    member = Member(port, rank, size, 1, master, silence_max=600)
    for generation in member.membership:
        member.enter(generation)
        with generation:
            step = generation.sync({})
            while True:
                ends = generation.rank == 0 and member.store.check(["end"])
                told = torch.tensor([generation.has_change, ends], dtype=torch.float64)
                dist.all_reduce(told)
                has_change, is_over = told.tolist()
                step += 1
                generation.done(step)
                if step % 100 == 0:
                    member.say("hundred")
                if is_over:
                    break
                if has_change:
                    generation.boundary(step)
    member.say("done")


# The id of the newcomer that does not die in ``take_over``.
LAST_TAKER = 6


def take_over(port: int, rank: int | None, size: int, die_after: float | None = None) -> None:
    """Work until a newcomer has a large state of the other members, unless it dies while it takes this state."""
    member = Member(port, rank, size, 1)
    small = [torch.full((count,), count, dtype=torch.int16) for count in range(2000)]
    state = {"large": [torch.rand(3_000_001) for _ in range(8)], "small": small, "none": torch.rand(0)}
    if rank is None:
        state["small"] = [torch.zeros(1)]
    for generation in member.membership:
        member.enter(generation)
        with generation:
            if die_after is not None:
                threading.Timer(die_after, os.kill, (os.getpid(), signal.SIGKILL)).start()
            step = generation.sync(state)
            numbers = [sum(float(it.double().sum()) for it in state[name]) for name in ("large", "small")]
            member.say("state", numbers=numbers, size=generation.size)
            while LAST_TAKER not in generation.members:
                dist.all_reduce(torch.ones(8))
                step += 1
                generation.boundary(step)


def own_ddp(port: int, rank: int, size: int) -> None:
    """Train by one DDP object of the program's own in all generations, and report how that ends."""
    member = Member(port, rank, size, 1)
    net, _ = model()
    parallel: Any = None
    try:
        for generation in member.membership:
            member.enter(generation)
            with generation:
                step = generation.sync({"net": net})
                parallel = parallel or torch.nn.parallel.DistributedDataParallel(net)
                copy.deepcopy(parallel)
                while True:
                    parallel(batch(step)[0]).sum().backward()
                    dist.all_reduce(torch.ones(8))
                    step += 1
                    if step == 3 and rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    generation.boundary(step)
                    dist.all_reduce(torch.ones(8))
    except Exception as error:
        member.say("error", kind=type(error).__name__, text=str(error))


def refuses(parallel: Any) -> None:
    """Check that a DDP object of an earlier generation does not run."""
    try:
        parallel(batch(0)[0])
    except ct.MembershipError:
        return
    raise AssertionError("a DDP object of an earlier generation runs")


def model() -> tuple[Any, Any]:
    """Return a net and its optimizer, the same each time."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(8, 8, dtype=torch.float64) for _ in range(4)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(8, 1, dtype=torch.float64))
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of a step: 840 rows, which up to 8 members share evenly."""
    numbers = torch.Generator().manual_seed(step)
    inputs = torch.randn(840, 8, generator=numbers, dtype=torch.float64)
    return inputs, inputs.sum(1, keepdim=True).sin()


def train_alone(port: int, steps: int) -> None:
    """Train without a group, and report the losses."""
    losses = losses_alone(steps)
    store = c10d_rs.TCPStore("127.0.0.1", port)
    store.queue_push("events", json.dumps({"what": "alone", "losses": losses}))


def losses_alone(steps: int) -> list[float]:
    """Return the losses of a run without a group."""
    net, optimizer = model()
    losses = []
    for step in range(steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fail(port: int, rank: int, size: int, kind: str, until: int) -> None:
    """Raise an exception of the program's own in the fifth step."""
    member = Member(port, rank, size, 1)
    try:
        for generation in member.membership:
            with generation:
                step = generation.sync({})
                while True:
                    dist.all_reduce(torch.ones(8))
                    step += 1
                    if step == 5:
                        raise {"ValueError": ValueError, "RuntimeError": RuntimeError}[kind]("mine")
                    generation.boundary(step)
    except Exception as error:
        member.say("error", kind=type(error).__name__, text=str(error))


def freed_by_the_back_end(port: int, rank: int, size: int) -> None:
    """Wait for something that only a back end's own function interrupts, and continue after it."""
    member = Member(port, rank, size, 1)
    aborted = threading.Semaphore(0)
    member.membership._native.free_by(aborted.release)
    for generation in member.membership:
        member.enter(generation)
        with generation:
            generation.sync({})
            if generation.size == size:
                member.say("steps")
                aborted.acquire()
                raise RuntimeError("the back end has ended this collective")
            dist.all_reduce(torch.ones(8))
    member.say("done", aborts_left=aborted.acquire(blocking=False))


def own_abort(port: int) -> None:
    """Report whether a back end in Python, and gloo, have a function that ends their operations."""
    from c10d_rs._abort import device_type, own_abort

    class StandIn(_c10d.Backend):  # type: ignore[misc]
        def getBackendName(self) -> str:  # noqa: N802
            return "stand_in"

        def abort(self) -> None:
            found.append("aborted")

    found: list[str] = []
    dist.Backend.register_backend("stand_in", lambda _, rank, size, __: StandIn(rank, size), devices=["cpu"])
    for name in ("stand_in", "gloo"):
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        found.append(device_type())
        if abort := own_abort():
            abort()
        dist.destroy_process_group()
    c10d_rs.TCPStore("127.0.0.1", port).queue_push("events", json.dumps({"what": "done", "found": found}))


def come_too_late(port: int) -> None:
    """Join a group that has finished, as a worker of a launcher, and report how that ends."""
    os.environ["C10D_KEEP_WORKERS"] = "1"
    member = Member(port, None, 1, 1)
    try:
        for generation in member.membership:
            member.enter(generation)
    except SystemExit as error:
        member.say("exit", code=error.code)
        return
    member.say("the loop has ended")


def finish_beside_a_newcomer(port: int, rank: int) -> None:
    """Do the last step while a newcomer waits for a boundary that does not come."""
    member = Member(port, rank, 2, 1)
    turns = 0
    for generation in member.membership:
        turns += 1
        with generation:
            generation.sync({})
            member.say("steps")
            while not generation.has_change:
                time.sleep(0.01)
    member.say("done", turns=turns)


def leave_early(port: int, rank: int, size: int) -> None:
    """Add up in twenty steps. Rank 0 does five of them."""
    member = Member(port, rank, size, 1)
    for generation in member.membership:
        member.enter(generation)
        with generation:
            step = generation.sync({})
            while step < 20:
                if rank == 0 and step == 5:
                    member.say("leaves")
                    break
                value = torch.full((1,), float(generation.rank + 1))
                dist.all_reduce(value)
                if value.item() != generation.size * (generation.size + 1) / 2:
                    member.say("wrong", step=step, value=value.item())
                step += 1
                generation.boundary(step)
    member.say("done", step=step)


def add_up_beside_torchrun(port: int, rank: int) -> None:
    """Add up as a worker whose launcher restarts all workers, beside a worker that names the group."""
    os.environ["TORCHELASTIC_RUN_ID"] = "job"
    c10d_rs.TCPStore("127.0.0.1", port).set("c10d/membership_group", "job/0/ab")
    add_up(port, rank, 2, 1, until=1, below_min_timeout=1)


class Cycle:
    """Is there until a collection of garbage."""

    def __init__(self) -> None:
        """Begin."""
        self.own = self

    def __del__(self) -> None:
        """Say so."""
        print("collected", flush=True)


def last_of_the_threads() -> None:
    """Outlive the main thread, which the end of a process waits for."""
    threading.main_thread().join()
    print("thread")


def end_by_an_exception(path: str) -> None:
    """Work until an exception of the group makes the process exit, with resources that the exit releases."""
    module = sys.modules["__main__"]
    module.cycle, module.file = Cycle(), open(path, "w")  # type: ignore[attr-defined]
    module.file.write("buffered")
    atexit.register(print, "atexit")
    threading.Thread(target=last_of_the_threads).start()
    membership = ct.join(min_size=1)
    sys.excepthook(ValueError, ValueError("the program reports this itself, and goes on"), None)
    for generation in membership:
        with generation:
            step = generation.sync({})
            print("joined", flush=True)
            while True:
                dist.all_reduce(torch.ones(8))
                step += 1
                generation.boundary(step)


def barrier(port: int, rank: int | None, size: int) -> None:
    """Leave an operation behind that never ends, and wait for all in the next generation."""
    member = Member(port, rank, size, 1)
    for generation in member.membership:
        member.enter(generation)
        with generation:
            step = generation.sync({})
            if generation.is_first:
                # Each waits for the other to send.
                dist.broadcast(torch.ones(8), group_src=1 - generation.rank, async_op=True)
            while generation.is_first:
                step += 1
                generation.boundary(step)
            dist.barrier()
    member.say("done")


def threads(port: int) -> None:
    """Report how many operations gloo does at once: one fewer can be lost before operations of a later generation wait."""
    member = Member(port, 0, 1, 1)
    for generation in member.membership:
        with generation:
            dist.all_reduce(torch.ones(8))
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    member.say("done", names=names)


def refused_by_pytorchs_store(port: int) -> None:
    """Serve a store of PyTorch, and report how the functions fail that would make a group there."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(server.port), WORLD_SIZE="1", RANK="0")
    texts = []
    for store in (None, c10d_rs.TCPStore("127.0.0.1", server.port), c10d_rs.HashStore()):
        try:
            ct.join(store=store)
        except ct.Unrecoverable as error:
            texts.append(str(error))
    has_group = dist.is_initialized()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    dist.init_process_group("gloo", enable_reconfigure=True)
    try:
        ct.rendezvous_reconfigure(dist._get_reconfigure_handle(), min_size=1)
    except ct.Unrecoverable as error:
        texts.append(str(error))
    event = {"what": "done", "port": server.port, "texts": texts, "has_group": has_group}
    c10d_rs.TCPStore("127.0.0.1", port).queue_push("events", json.dumps(event))


def reconfigure(**parameters: Any) -> None:
    """Go through the cases of PyTorch's own test."""
    import reconfigure_cases

    reconfigure_cases.run(**parameters)


def by_hand(port: int, rank: int, size: int, until: int) -> None:
    """Make and change the group as PyTorch's documentation of ``_reconfigure`` does."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size), RANK=str(rank))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    store = c10d_rs.TCPStore("127.0.0.1", port)
    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT, enable_reconfigure=True)
    sums: list[float] = []
    while sums.count(float(until)) < LAST_STEPS:
        try:
            uuid, handles = ct.rendezvous_reconfigure(dist._get_reconfigure_handle(), min_size=2)
            dist._reconfigure(uuid=uuid, handles=handles).wait()
            while sums.count(float(until)) < LAST_STEPS:
                values = torch.ones(8)
                dist.all_reduce(values)
                sums.append(values[0].item())
                if len(sums) == 5:
                    store.queue_push("events", json.dumps({"what": "steps"}))
        except RuntimeError as error:
            if isinstance(error, ct.MembershipError) and not isinstance(error, ct.MembershipChanged):
                raise
    store.queue_push("events", json.dumps({"what": "done", "id": rank, "sums": sums}))
    # The other members may still be in their last step: the test stops this process.
    store.wait(["never"], GROUP_TIMEOUT)
