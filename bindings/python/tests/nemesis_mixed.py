"""A job that nodes of torchrun join and leave, beside the nodes of ``nemesis_job.py``, for ``test_nemesis_mixed.py``."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from nemesis_job import LIMIT_SECONDS, NODES, VARIABLES, WORKER, Broken, Job

from c10d_rs.__main__ import command

# The ranks of a node of torchrun. With 4 or 8 others, the ranks share the rows of a batch evenly.
PER_GUEST = 2

# The message that a launcher prints once, however many rounds have a node of torchrun.
WARNING = "--keep-workers is off in this round"


class MixedJob(Job):
    """A job of up to one node more, which may be one of torchrun: a guest."""

    # Each round with a guest restarts all, and so does its end.
    never = ("does not keep the other workers",)
    variables = {**VARIABLES, "NEMESIS_CHECKPOINT": "1"}
    # A node of torchrun has no relay, and a job has them on all nodes or on none.
    can_relay = False
    # On a busy machine a node of torchrun takes long for each thing that it does.
    rdzv_conf = "keep_alive_interval=5,last_call_timeout=2"
    limit_seconds = 300

    def __init__(self, kind: str, folder: Path) -> None:
        """Start it without a guest."""
        self.guest: subprocess.Popen[str] | None = None
        self.guests = 0
        super().__init__(kind, folder, nnodes=f"{NODES}:{NODES + 1}")

    def start_guest(self, backend: str) -> None:
        """Start a node of torchrun."""
        # Its address makes it the last node in the order of nodes, so that the ranks meet in our store.
        arguments = [
            *(it for it in self.options if it.startswith("--nnodes")),
            *self.rendezvous(is_host=False),
            f"--rdzv-backend={backend}",
            f"--nproc-per-node={PER_GUEST}",
            "--local-addr=127.0.0.2",
            "--max-restarts=1000",
            "--monitor-interval=0.1",
        ]
        self.guests += 1
        program = [sys.executable, "-m", "torch.distributed.run", *arguments]
        self.guest = self._start(program, f"launcher-guest-{self.guests}", -self.guests)

    def leave_guest(self, number: signal.Signals, *, are_ranks_killed: bool) -> None:
        """End the node of torchrun, at once with its ranks or without them, by this signal."""
        assert self.guest is not None
        self._lose_ranks(-self.guests)
        pids = _descendants(self.guest.pid) if are_ranks_killed else []
        self.guest.send_signal(number)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.guest = None

    def refuse(self) -> None:
        """Start one of our nodes without keeping workers, and check that it is refused."""
        name = "launcher-refused"
        arguments = [
            *(it for it in self.options if not it.startswith("--preload")),
            *self.rendezvous(is_host=False),
            "--local-addr=127.0.0.1",
            "--workers-store=rendezvous",
            "--max-restarts=100000",
        ]
        process = self._start([command(), "run", *arguments], name, 1000)
        try:
            code = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Broken("a node without --keep-workers is not refused") from error
        text = (self.folder / name).read_text()
        if code != 1 or " has --keep-workers, and " not in text:
            raise Broken(f"a node without --keep-workers ends with {code}: {text}")

    def _start(self, program: list[str], log: str, node: int) -> "subprocess.Popen[str]":
        variables = {**os.environ, **self.variables, "NEMESIS_NODE": str(node)}
        with (self.folder / log).open("w") as file:
            process = subprocess.Popen(
                [*program, str(WORKER), str(self.folder / "ranks")],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=variables,
                text=True,
            )
        self.processes.append(process)
        return process

    def check_logs(self) -> None:
        """Check that there is one warning at most, and that the guest runs."""
        super().check_logs()
        for node in range(len(self.launchers)):
            count = self._log(node).read_text().count(WARNING)
            if count > 1:
                raise Broken(f"launcher {node} warns {count} times: {WARNING}")
        is_over = (self.folder / "ranks" / "finish").exists()
        if self.guest is not None and self.guest.poll() is not None and not is_over:
            raise Broken(f"the node of torchrun ended with {self.guest.returncode}")

    def close(self) -> None:
        """End all processes. Those of torchrun have children that outlive them."""
        if self.guest is not None and self.guest.poll() is None:
            self.leave_guest(signal.SIGKILL, are_ranks_killed=True)
        super().close()


def _descendants(pid: int) -> list[int]:
    """Return the processes that this one has started, and so on."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found[1:]
