#!/usr/bin/env python3
"""Compares this store's server with PyTorch's libuv server, side by side.

    cargo build --profile dist -p c10d-cli -p c10d-bench
    python c10d-bench/scripts/compare.py --c10d target/dist/c10d

Needs Linux, two cores, and a Python that has torch (--python, if it is not the one that runs this).
Each round starts both servers afresh on core 0, runs `c10d-bench store` from core 1 against one and
then the other, and stops them. Prints a Markdown table of the medians over all rounds. Ratios are
taken within a round and their median is shown, so that what else the machine does hits both sides.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time

SERVER_CORE = 0

# A server has a client of its own here, as PyTorch always starts both. It ends with its input.
TORCH_SERVER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True,
                 timeout=timedelta(seconds=30))
print(f"listening on 127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
"""

# Against its reverse look-up of every peer; see the hint below. 8,000 ranks come from each address.
HOSTS_LINES = ["::ffff:127.0.0.1 localhost", "::ffff:127.0.0.2 localhost"]


class Server:
    """A server process on its core, from the line in which it tells its address to its end."""

    def __init__(self, name, command, start_timeout_s):
        def on_its_core():
            os.sched_setaffinity(0, {SERVER_CORE})

        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=on_its_core,
        )
        self.address = self._address(start_timeout_s)

    def _address(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        line = b""
        while not line.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                self.stop()
                sys.exit(f"{self.name}: did not start within {timeout_s} s")
            piece = os.read(self.process.stdout.fileno(), 4096)
            if not piece:
                self.stop()
                sys.exit(f"{self.name}: did not start; run it by hand to see why")
            line += piece
        return line.decode().removeprefix("listening on ").strip()

    def stop(self):
        self.process.kill()
        self.process.wait()


def measure(arguments, server):
    command = [os.path.join(os.path.dirname(arguments.c10d), "c10d-bench"), "store", "--json"]
    command += ["--connect", server.address, "--server-pid", str(server.process.pid)]
    command += ["--rounds", str(arguments.inner_rounds), "--seconds", str(arguments.seconds)]
    command += ["--ranks", str(arguments.ranks)]
    for workload in arguments.only:
        command += ["--only", workload]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if finished.returncode != 0:
        sys.exit(f"{server.name}: the measurement failed with exit code {finished.returncode}")
    return {row["name"]: row for row in json.loads(finished.stdout)["rows"]}


def hint_at_hosts():
    try:
        with open("/etc/hosts", encoding="utf-8") as hosts:
            known = {word for line in hosts for word in line.split("#")[0].split()[:1]}
    except OSError:
        return
    missing = [line for line in HOSTS_LINES if line.split()[0] not in known]
    if missing:
        print(
            "hint: PyTorch's server looks up the name of every peer. To measure the server and not"
            " the name service, add to /etc/hosts:",
            *missing,
            sep="\n  ",
            file=sys.stderr,
        )


def number(value, unit):
    if unit in ("ops/s", "bytes"):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def table(ours, theirs):
    """`ours` and `theirs`: for each round, the rows by name."""
    lines = [
        "| | unit | c10d | PyTorch | c10d / PyTorch |",
        "|---|---|---:|---:|---:|",
    ]
    for name, row in ours[0].items():
        if not all(name in rows for rows in theirs):
            continue

        pairs = [(a[name]["median"], b[name]["median"]) for a, b in zip(ours, theirs)]
        cells = [
            name,
            row["unit"],
            number(statistics.median(value for value, _ in pairs), row["unit"]),
            number(statistics.median(value for _, value in pairs), row["unit"]),
        ]
        # Memory may not have grown at all.
        if all(theirs_value for _, theirs_value in pairs):
            cells.append(f"{statistics.median(a / b for a, b in pairs):.2f}")
        else:
            cells.append("")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--c10d", default="target/dist/c10d", help="the built command")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=3, help="how often to start both servers")
    parser.add_argument("--inner-rounds", type=int, default=3, help="rounds of each measurement")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of an inner round")
    parser.add_argument("--ranks", type=int, default=16000)
    parser.add_argument("--only", action="append", default=[], help="as of c10d-bench store")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    hint_at_hosts()

    commands = {
        "c10d": [arguments.c10d, "store", "serve", "--port", "0", "--end-with-parent"],
        "PyTorch": [arguments.python, "-c", TORCH_SERVER],
    }
    results = {name: [] for name in commands}
    for round_number in range(arguments.rounds):
        # The other one first in every second round: neither always gets the warmer machine.
        order = list(commands)[:: -1 if round_number % 2 else 1]
        servers = {}
        try:
            for name in order:
                servers[name] = Server(name, commands[name], start_timeout_s=120)
            for name in order:
                results[name].append(measure(arguments, servers[name]))
        finally:
            for server in servers.values():
                server.stop()
        print(f"round {round_number + 1} of {arguments.rounds} done", file=sys.stderr)
    print(table(results["c10d"], results["PyTorch"]))


if __name__ == "__main__":
    main()
