#!/usr/bin/env python3
"""Compares how soon PyTorch workers train again after one of them has failed.

    cargo build --profile dist -p c10d-cli
    python c10d-bench/scripts/restart.py --c10d target/dist/c10d --python PYTHON_WITH_TORCH

Side by side: torchrun, `c10d run`, `c10d run --preload torch,torch._dynamo`, and the same with --preload-standby. The
job is one node of four workers that train a small model with DDP and gloo; one fails when all have made some steps.
Prints a Markdown table of the medians over all rounds. Ratios to `c10d run` are taken within a round and their median
is shown, so that what else the machine does hits all sides.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WORKERS = 4
# How the command lines of the template and of the workers that wait begin.
PRELOADED = b"c10d-preload\0", b"c10d-standby\0"

WORKER = """\
import os, sys, time
events, attempt, rank = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
def note(event):
    with open(events, "a") as file:
        file.write(f"{event} {attempt} {rank} {os.getpid()} {time.time()}\\n")
def count(event):
    with open(events) as file:
        return sum(line.startswith(f"{event} {attempt} ") for line in file)
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
note("imported")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    if step == 0:
        note("step")
note("trained")
if attempt == "0":
    # The measurement looks at the memory now.
    while not os.path.exists(events + ".go"):
        time.sleep(0.01)
    if rank == "1":
        note("exit")
        os._exit(1)
    time.sleep(600)
dist.destroy_process_group()
# Without the cleaning up of an interpreter, which is not measured.
os._exit(0)
"""

LAUNCHERS = {
    "torchrun": (False, []),
    "c10d run": (True, []),
    "--preload": (True, ["--preload", "torch,torch._dynamo", "--preload-required"]),
    "--preload-standby": (True, ["--preload", "torch,torch._dynamo", "--preload-required", "--preload-standby"]),
}

ROWS = [
    ("start: torch imported in the last worker", "ms"),
    ("start: first step of all", "ms"),
    ("failure: torch imported in the last worker", "ms"),
    ("failure: first step of all", "ms"),
    ("memory of the workers", "MiB"),
    ("memory of the template and its standbys", "MiB"),
]


def memory_mib(pids):
    """Proportional: shared pages count for each process in part."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            pass
    return total / 1024


def descendants(pid):
    found, parents = [], {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = pathlib.Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(name))
        except OSError:
            pass
    queue = [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def measure(launcher, timeout_s):
    """The figures of ROWS, in seconds and MiB."""
    with tempfile.TemporaryDirectory(prefix="c10d-restart-") as directory:
        directory = pathlib.Path(directory)
        script, events, log = directory / "worker.py", directory / "events", directory / "log"
        script.write_text(WORKER, encoding="utf-8")
        events.touch()

        def noted(event, attempt):
            lines = [line.split() for line in events.read_text(encoding="utf-8").splitlines()]
            return [(int(pid), float(at)) for what, count, _, pid, at in lines if (what, count) == (event, attempt)]

        options = ["--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=1"]
        started_at = time.time()
        with log.open("wb") as output:
            job = subprocess.Popen(
                [*launcher, *options, script, events], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            deadline = time.monotonic() + timeout_s
            while len(noted("trained", "0")) < WORKERS:
                if job.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"{launcher}: no training\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.05)
            # Standbys are forked when the workers have run for a second.
            time.sleep(2)
            workers = [pid for pid, _ in noted("trained", "0")]
            others = [
                pid
                for pid in descendants(job.pid)
                if pid not in workers and pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(PRELOADED)
            ]
            memory = [memory_mib(workers), memory_mib(others)]
            pathlib.Path(f"{events}.go").touch()
            code = job.wait(timeout=timeout_s)
            if code:
                sys.exit(f"{launcher}: exit code {code}\n{log.read_text(errors='replace')[-3000:]}")
        finally:
            job.terminate()
            job.wait()
        [(_, failed_at)] = noted("exit", "0")
        last = lambda event, attempt: max(at for _, at in noted(event, attempt))
        return [
            last("imported", "0") - started_at,
            last("step", "0") - started_at,
            last("imported", "1") - failed_at,
            last("step", "1") - failed_at,
            *memory,
        ]


def table(results):
    lines = ["| | " + " | ".join(results) + " | --preload / c10d run |", "|---|" + "---:|" * (len(results) + 1)]
    for number, (name, unit) in enumerate(ROWS):
        factor = 1e3 if unit == "ms" else 1
        columns = {who: [figures[number] * factor for figures in rounds] for who, rounds in results.items()}
        cells = [f"{statistics.median(column):,.0f} {unit}" for column in columns.values()]
        pairs = list(zip(columns["--preload"], columns["c10d run"]))
        ratio = f"{statistics.median(ours / theirs for ours, theirs in pairs):.3f}" if all(b for _, b in pairs) else ""
        lines.append("| " + " | ".join([name, *cells, ratio]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--c10d", default="target/dist/c10d", help="the built command")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure everything")
    parser.add_argument("--timeout", type=float, default=180, help="of one job, in seconds")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    os.environ.update(OMP_NUM_THREADS="1", PYTHON_EXEC=arguments.python, GLOO_SOCKET_IFNAME="lo")

    results = {who: [] for who in LAUNCHERS}
    for round_number in range(arguments.rounds):
        # In turns: none always gets the warmer machine.
        order = list(LAUNCHERS)[:: -1 if round_number % 2 else 1]
        for who in order:
            is_ours, options = LAUNCHERS[who]
            launcher = [arguments.c10d, "run"]
            if not is_ours:
                # Without it, gloo of PyTorch 2.15 finds the addresses of the first attempt in torchrun's store.
                launcher = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
                launcher += [arguments.python, "-m", "torch.distributed.run"]
            results[who].append(measure([*launcher, *options], arguments.timeout))
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    print(table(results))


if __name__ == "__main__":
    main()
