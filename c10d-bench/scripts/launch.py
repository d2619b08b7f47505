#!/usr/bin/env python3
"""Compares how soon `c10d run` and torchrun have their workers running, side by side.

    cargo build --profile dist -p c10d-cli
    python c10d-bench/scripts/launch.py --c10d target/dist/c10d

Needs a Python that has torch (--python, if it is not the one that runs this). The worker is the same
shell script for both, which notes the time and ends, so what is measured is the launcher. Each round
runs both launchers, one after the other. Prints a Markdown table of the medians over all rounds.
Ratios are taken within a round and their median is shown, so that what else the machine does hits
both sides. All nodes are on this machine.
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# One line for each event, in one write, so that workers can share the file.
WORKER = """\
echo "start $GROUP_RANK $(date +%s.%N)" >> "$1"
"""

# Every worker of the first attempt waits until both are there. Then that of node 1 fails, and the
# other one runs until it is stopped. The count of restarts does not tell the attempts apart: a node
# whose own worker has not failed need not have one. A worker looks for the failure before it notes its
# start, without which there is none in its own attempt.
FAILING_WORKER = (
    "failed=$(grep -c '^exit ' \"$1\")\n"
    + WORKER
    + """\
[ "$failed" = 0 ] || exit 0
while [ "$(grep -c '^start ' "$1")" -lt 2 ]; do sleep 0.01; done
if [ "$GROUP_RANK" = 1 ]; then
    echo "exit $GROUP_RANK $(date +%s.%N)" >> "$1"
    exit 1
fi
exec sleep 60
"""
)


class Launch:
    """The launchers of one job, from their start to their end, and what its workers have noted."""

    def __init__(self, launcher, arguments_of_nodes, worker, timeout_s):
        with tempfile.TemporaryDirectory(prefix="c10d-launch-") as directory:
            directory = pathlib.Path(directory)
            script, events = directory / "worker.sh", directory / "events"
            script.write_text(worker, encoding="utf-8")
            events.touch()
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.started_at = time.time()
            nodes = []
            try:
                for number, arguments in enumerate(arguments_of_nodes):
                    command = [*launcher, *arguments, "--no-python", "sh", script, events]
                    with (directory / f"log-{number}").open("wb") as log:
                        nodes.append(
                            subprocess.Popen(
                                command,
                                stdin=subprocess.DEVNULL,
                                stdout=log,
                                stderr=subprocess.STDOUT,
                                env=environment,
                            )
                        )
                self._await_success(nodes, directory, timeout_s)
            finally:
                # Asked first: a launcher that is killed leaves its workers.
                for node in nodes:
                    node.terminate()
                for node in nodes:
                    try:
                        node.wait(timeout=10)
                    except subprocess.TimeoutExpired:
                        node.kill()
                        node.wait()
            lines = events.read_text(encoding="utf-8").splitlines()
        self.events = [
            (event, int(node), float(at)) for event, node, at in (line.split() for line in lines)
        ]

    @staticmethod
    def _await_success(nodes, directory, timeout_s):
        deadline = time.monotonic() + timeout_s
        for number, node in enumerate(nodes):
            try:
                code = node.wait(timeout=max(0.0, deadline - time.monotonic()))
                failure = f"exit code {code}" if code else None
            except subprocess.TimeoutExpired:
                failure = f"not done after {timeout_s} s"
            if failure:
                log = (directory / f"log-{number}").read_text(encoding="utf-8", errors="replace")
                sys.exit(f"{node.args[0]}, node {number}: {failure}\n{log[-2000:]}")

    def last_start(self, node_count, after=0.0):
        """When the last of all nodes had its worker running."""
        starts = {}
        for event, node, at in self.events:
            if event == "start" and at > after:
                starts.setdefault(node, at)
        if sorted(starts) != list(range(node_count)):
            sys.exit(f"{node_count} workers should have started after {after}: {self.events}")
        return max(starts.values())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def two_nodes(*options):
    endpoint = f"127.0.0.1:{free_port()}"
    node = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=bench"]
    # So that neither depends on what this machine's name leads to.
    return [[*node, "--nproc-per-node=1", "--local-addr=127.0.0.1", *options]] * 2


def one_node(launcher, timeout_s):
    launch = Launch(launcher, [["--standalone", "--nproc-per-node=1"]], WORKER, timeout_s)
    return launch.last_start(1) - launch.started_at


def both_nodes(launcher, timeout_s):
    launch = Launch(launcher, two_nodes(), WORKER, timeout_s)
    return launch.last_start(2) - launch.started_at


def restart(launcher, timeout_s):
    launch = Launch(launcher, two_nodes("--max-restarts=1"), FAILING_WORKER, timeout_s)
    failures = [at for event, _, at in launch.events if event == "exit"]
    if len(failures) != 1:
        sys.exit(f"one worker should have failed: {launch.events}")
    return launch.last_start(2, after=failures[0]) - failures[0]


# What is measured, how, and what c10d should need at most, in milliseconds.
MEASUREMENTS = [
    ("start, one node", one_node, 50),
    ("start, two nodes", both_nodes, 100),
    ("restart, two nodes", restart, 300),
]


def table(results):
    lines = ["| | unit | c10d | torchrun | torchrun / c10d | goal |", "|---|---|---:|---:|---:|---|"]
    for name, _, goal_ms in MEASUREMENTS:
        ours, theirs = ([1e3 * time_s for time_s in results[who][name]] for who in results)
        ratio = statistics.median(b / a for a, b in zip(ours, theirs))
        median = statistics.median(ours)
        cells = [
            name,
            "ms",
            f"{median:,.1f}",
            f"{statistics.median(theirs):,.0f}",
            f"{ratio:,.0f}",
            f"< {goal_ms} {'met' if median < goal_ms else 'MISSED'}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--c10d", default="target/dist/c10d", help="the built command")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=5, help="how often to measure everything")
    parser.add_argument("--timeout", type=float, default=120, help="of one launch, in seconds")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")

    launchers = {
        "c10d": [arguments.c10d, "run"],
        "torchrun": [arguments.python, "-m", "torch.distributed.run"],
    }
    results = {who: {name: [] for name, _, _ in MEASUREMENTS} for who in launchers}
    for round_number in range(arguments.rounds):
        # The other one first in every second round: neither always gets the warmer machine.
        order = list(launchers)[:: -1 if round_number % 2 else 1]
        for name, measure, _ in MEASUREMENTS:
            for who in order:
                results[who][name].append(measure(launchers[who], arguments.timeout))
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    print(table(results))


if __name__ == "__main__":
    main()
