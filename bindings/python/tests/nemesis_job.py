"""A job of 8 ranks under two launchers, for ``test_nemesis.py``: its processes, the output of its ranks, and its laws."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nodes
from c10d_rs.__main__ import command
from servers import free_port

NODES = 2
PER_NODE = 4
WORKERS_MIN = 2

# Of a single thing that a job does, torch's start on a busy machine included.
LIMIT_SECONDS = 120

# Of the template of the ranks' processes.
PRELOADED = "torch,torch._dynamo,c10d_rs.torch"

WORKER = Path(__file__).with_name("nemesis_worker.py")

# Messages of a launcher that no longer keeps the workers.
RESTARTS = ("stopping the workers", "restarting the workers", "does not keep the other workers")

# How a rank exits if the other ranks continued without it: it was silent, or its relay exited.
ENDS_OF_VICTIMS = ("Evicted", "Unrecoverable")

VARIABLES = {**nodes.VARIABLES, "PYTHON_EXEC": sys.executable}

# How much of a file a report has: of a launcher, with the stacks of its ranks.
TAIL_LINES = {True: 90, False: 6}


class Broken(AssertionError):
    """A law does not hold."""


class Rank:
    """A process that is a rank, or was one, by its file."""

    def __init__(self, path: Path) -> None:
        """Begin without reading."""
        self.path = path
        self.id, self.pid = map(int, path.name.split("-"))
        self.node = -1
        self.round = 0
        self.is_mixed = False
        self.done_at = math.inf
        self.generations: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.error: dict[str, Any] | None = None
        self._read_bytes = 0

    def read(self) -> None:
        """Read the lines that have come. Generations ascend over all groups, as each round of the job has a group."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            *lines, _ = file.read().split(b"\n")
        self._read_bytes += sum(len(line) + 1 for line in lines)
        for line in lines:
            fields = json.loads(line)
            if "wrong" in fields:
                raise Broken(f"{self.path.name} has a wrong sum: {fields}")
            if "uuid" in fields:
                fields["uuid"] = (self.round, fields["uuid"])
            if "node" in fields:
                self.node = fields["node"]
            elif "group" in fields:
                self.round = int(fields["group"].split("/")[1])
                self.is_mixed = fields["is_mixed"]
            elif "done" in fields:
                self.done_at = fields["done"]
            elif "members" in fields:
                self.generations.append(fields)
            elif "step" in fields:
                self.steps.append(fields)
            elif "error" in fields:
                self.error = fields


class Job:
    """A running job. ``kind`` is the place of its store.

    ``apart``: a separate process, with a directory; the launchers have relays. ``relays``: the same, and each node has a relay in
    a separate process. ``hosted``: on the first launcher.
    """

    # Messages that no launcher may print, unless it is lost.
    never: tuple[str, ...] = RESTARTS
    variables: dict[str, str] = VARIABLES
    can_relay = True
    rdzv_conf = "keep_alive_interval=3,last_call_timeout=2"
    limit_seconds = LIMIT_SECONDS

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        nodes: int = NODES,
        nnodes: str = str(NODES),
        per_node: int = PER_NODE,
        preload: str = PRELOADED,
        options: tuple[str, ...] = (),
    ) -> None:
        """Start it with ``nodes`` launchers, which have the options."""
        self.kind = kind
        self.folder = folder
        self.options = [f"--nnodes={nnodes}", f"--nproc-per-node={per_node}", *options]
        if preload:
            self.options += [f"--preload={preload}", "--preload-required"]
        self.ranks: dict[str, Rank] = {}
        # The killed processes, and the nodes without which the other nodes may continue.
        self.dead: set[int] = set()
        self.lost_nodes: set[int] = set()
        self.processes: list[subprocess.Popen[str]] = []
        self.relays: list[tuple[subprocess.Popen[str], str]] = []
        self.launchers: list[subprocess.Popen[str]] = []
        (folder / "ranks").mkdir()
        if kind == "hosted":
            self.address = f"127.0.0.1:{free_port()}"
        else:
            self.store, self.address = self._serve("store", "serve", f"--dir={folder / 'store'}", "--port=0")
        if kind == "relays":
            self.relays = [self._relay("127.0.0.1:0") for _ in range(nodes)]
        for _ in range(nodes):
            self.start_launcher()

    def _serve(self, *arguments: str) -> tuple["subprocess.Popen[str]", str]:
        """Start a server, and return it and its address."""
        with (self.folder / "servers").open("a") as log:
            process = subprocess.Popen([command(), *arguments], stdout=subprocess.PIPE, stderr=log, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise Broken(f"{arguments} does not start: {(self.folder / 'servers').read_text()}")
        return process, line.split()[-1]

    def _relay(self, address: str) -> tuple["subprocess.Popen[str]", str]:
        return self._serve("relay", f"--upstream={self.address}", f"--listen={address}")

    def start_launcher(self) -> None:
        """Start one more launcher."""
        node = len(self.launchers)
        options = [
            *self.options,
            *self.rendezvous(is_host=self.kind == "hosted" and node == 0),
            "--local-addr=127.0.0.1",
            "--workers-store=rendezvous",
            "--keep-workers",
            f"--min-workers={WORKERS_MIN}",
            "--max-restarts=100000",
        ]
        if self.kind == "apart" and self.can_relay:
            options.append("--relay")
        variables = {**os.environ, **self.variables, "NEMESIS_NODE": str(node)}
        if self.relays:
            if node == len(self.relays):
                self.relays.append(self._relay("127.0.0.1:0"))
            variables["NEMESIS_RELAY_PORT"] = self.relays[node][1].rpartition(":")[2]
        with self._log(node).open("w") as log:
            process = subprocess.Popen(
                [command(), "run", *options, str(WORKER), str(self.folder / "ranks")],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=variables,
                text=True,
            )
        self.processes.append(process)
        self.launchers.append(process)

    def rendezvous(self, *, is_host: bool) -> list[str]:
        """Return the options for the meeting of the nodes."""
        return [
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            f"--rdzv-endpoint={self.address}",
            f"--rdzv-conf=is_host={int(is_host)},{self.rdzv_conf}",
        ]

    def _log(self, node: int) -> Path:
        return self.folder / f"launcher-{node}"

    def read(self) -> None:
        """Read what the ranks have written."""
        for path in (self.folder / "ranks").glob("*-*"):
            if path.name not in self.ranks:
                self.ranks[path.name] = Rank(path)
        for rank in self.ranks.values():
            rank.read()

    def kill_store(self) -> None:
        """End the store's process."""
        _kill(self.store)

    def start_store(self) -> None:
        """Restart the store, with the data that it has kept."""
        port = self.address.rpartition(":")[2]
        self.store, _ = self._serve("store", "serve", f"--dir={self.folder / 'store'}", f"--port={port}")

    def kill_relay(self, node: int) -> None:
        """Kill the relay of a node and restart it. This makes the ranks of the node exit."""
        process, address = self.relays[node]
        self._lose_ranks(node)
        _kill(process)
        self.relays[node] = self._relay(address)

    def kill_launcher(self, node: int) -> None:
        """Kill a launcher. This makes its ranks exit."""
        self._lose(node)
        _kill(self.launchers[node])

    def stop_launcher(self, node: int) -> None:
        """Have a launcher leave the job."""
        self._lose(node)
        self.launchers[node].terminate()

    def _lose(self, node: int) -> None:
        self.lost_nodes.add(node)
        self._lose_ranks(node)

    def _lose_ranks(self, node: int) -> None:
        self.dead |= {rank.pid for rank in self.ranks.values() if rank.node == node}

    def live(self) -> dict[int, int]:
        """Return the process ids of the ranks, by id: of each the newest process that is not known to be dead."""
        self.read()
        ranks = [rank for rank in self.ranks.values() if rank.pid not in self.dead and rank.error is None]
        return {rank.id: rank.pid for rank in ranks if _is_alive(rank.pid)}

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a rank, if it is there."""
        if number != signal.SIGCONT:
            self.dead.add(pid)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def settled(self, count: int) -> dict[int, int]:
        """Wait until this many ranks are one generation and have done a step in it from now on. Return their process ids."""
        self.read()
        newest = max((rank.steps[-1]["step"] for rank in self.ranks.values() if rank.steps), default=-1)
        found: dict[int, int] = {}

        def is_settled() -> bool:
            found.clear()
            candidates = [rank for rank in self.ranks.values() if rank.pid not in self.dead and rank.error is None]
            uuid = max((rank.generations[-1]["uuid"] for rank in candidates if rank.generations), default=None)
            for rank in candidates:
                if rank.steps and rank.steps[-1]["uuid"] == uuid and rank.steps[-1]["step"] > newest:
                    found[rank.id] = rank.pid
            members = [rank.generations[-1]["members"] for rank in candidates if rank.pid in found.values()]
            return len(found) == count and all(len(it) == count for it in members)

        self.until(f"{count} ranks go on from step {newest}", is_settled)
        return found

    def until(self, what: str, is_so: Callable[[], bool], limit_seconds: float | None = None) -> None:
        """Wait for a condition on the output of the ranks. Raises Broken if the job ends before."""
        limit_seconds = limit_seconds or self.limit_seconds
        end = time.monotonic() + limit_seconds
        while not is_so():
            if time.monotonic() > end:
                raise Broken(f"not within {limit_seconds} s: {what}")
            for node, launcher in enumerate(self.launchers):
                if node not in self.lost_nodes and launcher.poll() is not None:
                    raise Broken(f"launcher {node} ended with {launcher.returncode} before {what}")
            self.check_logs()
            time.sleep(0.01)
            self.read()

    def check_logs(self) -> None:
        """Check that no launcher has logged what it must not, such as that it does not keep the workers."""
        for node in set(range(len(self.launchers))) - self.lost_nodes:
            log = self._log(node).read_text()
            for text in self.never:
                if text in log:
                    raise Broken(f"launcher {node} says: {text}")

    def finish(self) -> None:
        """Have the ranks end, and check that the job succeeds."""
        (self.folder / "ranks" / "finish").touch()
        for node, launcher in enumerate(self.launchers):
            if node in self.lost_nodes:
                continue
            try:
                code = launcher.wait(self.limit_seconds)
            except subprocess.TimeoutExpired as error:
                raise Broken(f"launcher {node} does not end") from error
            if code != 0:
                raise Broken(f"launcher {node} ends with {code}")

    def check(self, losses: Callable[[int], float]) -> None:
        """Check the laws. ``losses`` returns the loss of a step in an undisturbed run."""
        self.read()
        self.check_logs()
        lists: dict[tuple[int, int], list[int]] = {}
        entered: dict[tuple[int, int], list[Rank]] = {}
        firsts: dict[tuple[int, int], int] = {}
        for rank in self.ranks.values():
            # In a round with a node of torchrun all ranks end when one does.
            if rank.error is not None and not rank.is_mixed and not self._is_victim(rank, rank.error["error"]):
                raise Broken(f"{rank.path.name} ended by {rank.error}")
            _check_ascends(rank, "generations", [it["uuid"] for it in rank.generations])
            _check_ascends(rank, "steps", [it["step"] for it in rank.steps])
            for generation in rank.generations:
                uuid, members = generation["uuid"], generation["members"]
                entered.setdefault(uuid, []).append(rank)
                if lists.setdefault(uuid, members) != members:
                    raise Broken(f"generation {uuid} has two lists: {lists[uuid]} and {members}")
                if members[generation["rank"]] != rank.id:
                    raise Broken(f"{rank.path.name} has another one's rank: {generation}")
            for first, before in zip(rank.steps, [{"uuid": None}, *rank.steps], strict=False):
                uuid, step = first["uuid"], first["step"]
                if uuid != before["uuid"] and firsts.setdefault(uuid, step) != step:
                    raise Broken(f"generation {uuid} begins at the steps {firsts[uuid]} and {step}")
                if not math.isclose(first["loss"], losses(step), rel_tol=1e-6, abs_tol=1e-12):
                    raise Broken(f"{rank.path.name}: loss {first['loss']} in step {step}, alone {losses(step)}")
        # Two halves have no rank in common.
        known: dict[int, set[int]] = {}
        for uuid in sorted(entered):
            pids = {rank.pid for rank in entered[uuid]}
            earlier = known.setdefault(uuid[0], set())
            if earlier and not earlier & pids:
                raise Broken(f"generation {uuid} has no rank of an earlier one: {lists[uuid]}")
            earlier |= pids
        self._check_one_group()

    def _check_one_group(self) -> None:
        """Check that no two groups have ever worked at once, and that no rank works after the end."""
        ranks = sorted(self.ranks.values(), key=lambda rank: rank.round)
        done_at = min(rank.done_at for rank in ranks)
        last_at, last_round, last_name = 0.0, 0, ""
        for round_, members in itertools.groupby(ranks, key=lambda rank: rank.round):
            steps = [(step["at"], rank.path.name) for rank in members for step in rank.steps]
            if not steps:
                continue
            if min(steps)[0] <= last_at:
                raise Broken(
                    f"two groups work at once: {last_name} of round {last_round} does its last step "
                    f"{last_at - min(steps)[0]:.3f} s after the first one of {min(steps)[1]} in round {round_}"
                )
            (last_at, last_name), last_round = max(steps), round_
            if last_at > done_at:
                raise Broken(f"{last_name} works in round {round_} {last_at - done_at:.3f} s after the job has finished")

    def _is_victim(self, rank: Rank, error: str) -> bool:
        return rank.pid in self.dead and error in ENDS_OF_VICTIMS

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            _kill(process)
        self.read()
        for rank in self.ranks.values():
            if _is_alive(rank.pid):
                os.kill(rank.pid, signal.SIGKILL)

    def report(self) -> str:
        """Return the report of the store, and the end of all output of the processes."""
        for pid in self.live().values():
            os.kill(pid, signal.SIGUSR1)
        why = subprocess.run([command(), "why", f"--connect={self.address}"], capture_output=True, text=True)
        paths = [path for pattern in ("launcher-*", "servers", "ranks/*-*") for path in self.folder.glob(pattern)]
        texts = [f"job of kind {self.kind}, dead {sorted(self.dead)}", why.stdout + why.stderr]
        for path in sorted(paths, key=lambda path: path.stat().st_mtime)[-14:]:
            lines = path.read_text().splitlines()[-TAIL_LINES[path.name.startswith("launcher")] :]
            texts += [f"--- {path.name}", *lines]
        return "\n".join(texts)


def _check_ascends(rank: Rank, what: str, numbers: list[int]) -> None:
    for earlier, later in zip(numbers, numbers[1:], strict=False):
        if later <= earlier:
            raise Broken(f"the {what} of {rank.path.name} go from {earlier} to {later}")


def _kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
