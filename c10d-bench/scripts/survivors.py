#!/usr/bin/env python3
"""Compares how soon the other ranks go on after one of them was killed, and when all are there again.

    cargo build --profile dist -p c10d-cli
    python c10d-bench/scripts/survivors.py --c10d target/dist/c10d --python PYTHON_WITH_TORCH_AND_C10D_RS \\
        --torchft DIRECTORY

Side by side: torchrun, `c10d run --preload` (both restart all), torchft, and `c10d run --keep-workers` with a preloaded
replacement. One node of four ranks, gloo, an all_reduce of 4 KiB every 5 ms; rank 1 gets SIGKILL when all have done 50.
An all_reduce counts if its sum is right. torchft has no launcher here: the measurement starts the replacement at once.
DIRECTORY is what `pip install --target DIRECTORY torchft` has filled; without it, that column says so.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

RANKS = 4
STEPS_BEFORE = 50

# Notes a right sum: its generation, how many ranks it has, and when it was there.
COMMON = """\
import os, sys, time
import torch
import torch.distributed as dist
events = open(sys.argv[1], "a", buffering=1)
def note(generation, total, size):
    if total != size:
        sys.exit(f"a sum of {total} by {size} ranks")
    events.write(f"{generation} {size} {os.getpid()} {time.time()}\\n")
    time.sleep(0.005)
"""

RESTARTED = COMMON + """\
dist.init_process_group("gloo")
while True:
    numbers = torch.ones(1024)
    dist.all_reduce(numbers)
    note(os.environ["TORCHELASTIC_RESTART_COUNT"], int(numbers[7]), dist.get_world_size())
"""

KEPT = COMMON + """\
import c10d_rs.torch as ct
step = 0
for generation in ct.join(min_size=1):
    with generation:
        step = generation.sync({"nothing": torch.zeros(1)})
        while True:
            numbers = torch.ones(1024)
            dist.all_reduce(numbers)
            step += 1
            note(generation.uuid, int(numbers[7]), generation.size)
            generation.boundary(step)
"""

# As in torchft's example: 5 s for a collective of gloo, 30 s for the rest.
TORCHFT = COMMON + """\
from datetime import timedelta
from torchft import Manager, ProcessGroupGloo
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, load_state_dict=lambda state: None,
    state_dict=dict, replica_id=f"rank_{sys.argv[2]}_", timeout=timedelta(seconds=30), use_async_quorum=False, rank=0,
    world_size=1, store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1",
)
while True:
    manager.start_quorum()
    numbers = torch.ones(1024)
    manager.allreduce(numbers, reduce_op=dist.ReduceOp.SUM).wait()
    if manager.should_commit():
        note(manager._quorum_id, int(numbers[7]), manager.num_participants())
"""

LIGHTHOUSE = """\
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, quorum_tick_ms=100, join_timeout_ms=10000)
print(server.address(), flush=True)
sys.stdin.read()
"""

ROWS = ["survivors: next right all_reduce", f"all {RANKS}: next right all_reduce", "processes that stay"]


class Job:
    """Processes that are ended together, and what they have noted."""

    def __init__(self, directory, python):
        self.directory, self.python, self.processes = pathlib.Path(directory), python, []
        self.events, self.log = self.directory / "events", self.directory / "log"
        self.events.touch()

    def start(self, *command, **options):
        with self.log.open("ab") as log:
            options = {"stdin": subprocess.DEVNULL, "stdout": log, **options}
            process = subprocess.Popen(command, stderr=log, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def script(self, text):
        path = self.directory / "worker.py"
        path.write_text(text, encoding="utf-8")
        return path

    def noted(self):
        lines = self.events.read_text(encoding="utf-8").splitlines()
        lines = [line.split() for line in lines if line.count(" ") == 3]
        return [(generation, int(size), int(pid), float(at)) for generation, size, pid, at in lines]

    def fail(self, reason):
        sys.exit(f"{self.processes[0].args}: {reason}\n{self.log.read_text(errors='replace')[-3000:]}")

    def end(self):
        for sign in [signal.SIGTERM, signal.SIGKILL]:
            for process in self.processes:
                if process.poll() is None:
                    # The sessions of the launcher's workers are its own.
                    os.killpg(process.pid, sign)
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline and any(it.poll() is None for it in self.processes):
                time.sleep(0.02)


def launched(launcher, text):
    """Workers of a launcher, which also starts the next ones."""

    def start(job):
        job.start(*launcher, "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts=9", job.script(text), job.events)
        return lambda: None

    return start


def with_torchft(directory):
    """Replicas of one rank each, and the lighthouse."""

    def start(job):
        environment = {**os.environ, "PYTHONPATH": str(directory)}
        lighthouse = job.start(
            job.python, "-c", LIGHTHOUSE, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        environment["TORCHFT_LIGHTHOUSE"] = lighthouse.stdout.readline().strip()
        script = job.script(TORCHFT)
        replica = lambda rank: job.start(job.python, script, job.events, str(rank), env=environment)
        for rank in range(RANKS):
            replica(rank)
        return lambda: replica(1)

    return start


def measure(start, python, timeout_s):
    """The figures of ROWS: milliseconds, milliseconds, a count."""
    with tempfile.TemporaryDirectory(prefix="c10d-survivors-") as directory:
        job = Job(directory, python)
        try:
            replace = start(job)
            deadline = time.monotonic() + timeout_s

            def wait_for(what, is_there):
                while not is_there(job.noted()):
                    if time.monotonic() > deadline or job.processes[0].poll() is not None:
                        job.fail(f"no {what}")
                    time.sleep(0.02)
                return job.noted()

            def by_process(notes):
                found = {}
                for generation, size, pid, at in notes:
                    found.setdefault(pid, []).append((generation, size, at))
                return found

            def is_steady(notes):
                last = {pid: sums[-STEPS_BEFORE:] for pid, sums in by_process(notes).items()}
                groups = {(generation, size) for sums in last.values() for generation, size, _ in sums}
                is_one = len(groups) == 1 and {size for _, size in groups} == {RANKS}
                return is_one and [len(it) for it in last.values()] == [STEPS_BEFORE] * RANKS

            notes = wait_for("group", is_steady)
            first, before = notes[-1][0], list(by_process(notes))
            victim = before[1]
            killed_at = time.time()
            os.kill(victim, signal.SIGKILL)
            replace()

            def later(notes):
                return by_process(note for note in notes if note[0] != first and note[3] > killed_at)

            def full(notes):
                sums = {pid: [at for _, size, at in it if size == RANKS] for pid, it in later(notes).items()}
                return {pid: min(times) for pid, times in sums.items() if times}

            notes = wait_for("group after the death", lambda notes: len(full(notes)) >= RANKS)
            after = later(notes)
            stayed = [pid for pid in before if pid in after]
            survivors = [min(at for _, _, at in after[pid]) - killed_at for pid in stayed]
            everyone = sorted(full(notes).values())[RANKS - 1] - killed_at
            return [max(survivors) * 1e3 if survivors else None, everyone * 1e3, len(stayed)]
        finally:
            job.end()


def table(results):
    lines = ["| | " + " | ".join(results) + " |", "|---|" + "---:|" * len(results)]
    for number, name in enumerate(ROWS):
        cells = []
        for rounds in results.values():
            column = [figures[number] for figures in rounds if figures[number] is not None]
            if not column:
                cells.append("none" if rounds else "not installed")
            elif number == 2:
                cells.append(f"{min(column)}")
            else:
                cells.append(f"{statistics.median(column):,.0f} ms ({min(column):,.0f} to {max(column):,.0f})")
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--c10d", default="target/dist/c10d", help="the built command")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch and c10d-rs")
    parser.add_argument("--torchft", type=pathlib.Path, help="the directory with torchft and what it needs")
    parser.add_argument("--only", action="append", help="measure only this column; can be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure everything")
    parser.add_argument("--timeout", type=float, default=180, help="of one job, in seconds")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    os.environ.update(OMP_NUM_THREADS="1", PYTHON_EXEC=arguments.python, GLOO_SOCKET_IFNAME="lo")

    # Without the variable, gloo of PyTorch 2.15 finds the addresses of the first attempt in torchrun's store.
    torchrun = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", arguments.python, "-m", "torch.distributed.run"]
    ours = [arguments.c10d, "run", "--preload", "torch,torch._dynamo", "--preload-required"]
    columns = {
        "torchrun": launched(torchrun, RESTARTED),
        "c10d run --preload": launched(ours, RESTARTED),
        "torchft": with_torchft(arguments.torchft) if arguments.torchft else None,
        "c10d run --keep-workers": launched([*ours, "--keep-workers", "--min-workers=1"], KEPT),
    }
    columns = {who: start for who, start in columns.items() if not arguments.only or who in arguments.only}
    results = {who: [] for who in columns}
    for round_number in range(arguments.rounds):
        # In turns: none always gets the warmer machine.
        for who in list(columns)[:: -1 if round_number % 2 else 1]:
            if columns[who]:
                results[who].append(measure(columns[who], arguments.python, arguments.timeout))
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    print(table(results))


if __name__ == "__main__":
    main()
