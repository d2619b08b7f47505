"""The worker of check: what one rank does in each part. It writes one JSON object a line to RANK.PID.jsonl in a folder."""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER, MODE = Path(sys.argv[1]), sys.argv[2]
RANK = int(os.environ["RANK"])
RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
IS_REHEARSAL = os.environ.get("GPU_CHECK_REHEARSAL") == "1"
BACKEND = "gloo" if IS_REHEARSAL else "nccl"


def record(event, **fields):
    """Appends an event with the time of the system's clock, which all processes of the machine share."""
    line = {"event": event, "at": time.time(), "rank": RANK, "pid": os.getpid(), "restarts": RESTARTS, **fields}
    with open(FOLDER / f"{RANK}.{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


record("started")

import torch  # noqa: E402  The time that the import takes is one of the measured figures.
import torch.distributed as dist  # noqa: E402

record("imported", torch=torch.__version__)


def device():
    if IS_REHEARSAL:
        return torch.device("cpu")
    # Two ranks that share one device both have the local rank 0 as far as CUDA is concerned.
    index = 0 if os.environ.get("GPU_CHECK_ONE_DEVICE") else int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def synchronize():
    if not IS_REHEARSAL:
        torch.cuda.synchronize()


def step(model, where):
    loss = model(torch.ones(8, 1024, device=where)).square().mean()
    loss.backward()
    synchronize()
    return loss.item()


def train(steps):
    """A model under DDP, and this many steps."""
    where = device()
    dist.init_process_group(BACKEND)
    record("joined", device=str(where), visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    model = torch.nn.Linear(1024, 1024).to(where)
    model = torch.nn.parallel.DistributedDataParallel(model)
    for number in range(steps):
        loss = step(model, where)
        record("step", number=number, loss=loss)
    return model, where


def run():
    train(3)
    dist.destroy_process_group()
    record("done")
    # The model may keep threads of the group, which abort the process at the end of the interpreter.
    sys.stdout.flush()
    os._exit(0)


def restart():
    """Ends itself after its first step, so often as the third argument says."""
    where = device()
    tensor = torch.ones(1 << 20, device=where)
    value = float((tensor * 2).sum().item())
    synchronize()
    record("step", value=value)
    if RESTARTS < int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    record("done")


def all_reduce(where):
    total = torch.ones(4, device=where)
    dist.all_reduce(total)
    synchronize()
    return total[0].item()


def communicator():
    """Makes a communicator, uses it, and then stays in the state that the third argument names."""
    state = sys.argv[3]
    where = device()
    dist.init_process_group(BACKEND)
    record("joined", nccl=None if IS_REHEARSAL else list(torch.cuda.nccl.version()))
    if state == "constructing" and RANK != 0:
        # Rank 0 makes the communicator alone, and waits for this rank.
        time.sleep(3600)
    record("reduced", total=all_reduce(where))
    if state == "aborted" and not IS_REHEARSAL:
        dist.group.WORLD._get_backend(where).abort()
        record("aborted")
    if state == "skipped" and RANK != 0:
        time.sleep(3600)
    if state == "skipped":
        record("hangs", line=None)
        all_reduce(where)
    record("ready")
    time.sleep(3600)


def hang():
    """Hangs in the way that the third argument names. The launcher's explanation has to name the function."""
    where = device()
    dist.init_process_group(BACKEND)
    all_reduce(where)
    record("hangs")
    {"kernel": in_kernel, "synchronize": in_synchronize, "item": in_item, "sleep": in_sleep}[sys.argv[3]](where)


def endless(where):
    # About an hour at 2 GHz, in one kernel.
    for _ in range(4):
        torch.cuda._sleep(2_000_000_000_000)


def in_kernel(where):
    if IS_REHEARSAL:
        return in_sleep(where)
    endless(where)
    # The host runs on, and the next collective waits behind the kernel on the device.
    all_reduce(where)


def in_synchronize(where):
    if IS_REHEARSAL:
        return in_sleep(where)
    endless(where)
    torch.cuda.synchronize()


def in_item(where):
    if IS_REHEARSAL:
        return in_sleep(where)
    tensor = torch.ones(1, device=where)
    endless(where)
    (tensor + 1).item()


def in_sleep(where):
    time.sleep(3600)


def store():
    """Uses the store at the address in the third and fourth argument by PyTorch's own client, without a group."""
    client = dist.TCPStore(sys.argv[3], int(sys.argv[4]), is_master=False)
    client.set("a", b"1")
    sums = [client.add("n", 1) for _ in range(100)]
    client.wait(["a"])
    record("done", last=sums[-1], value=client.get("a").decode(), keys=client.num_keys())


{
    "run": run,
    "restart": restart,
    "communicator": communicator,
    "hang": hang,
    "store": store,
}[MODE]()
