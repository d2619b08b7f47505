"""torchrun jobs whose store is killed. Needs PyTorch beside the package, and for a store in etcd the program, in C10D_ETCD."""

import os
import signal
import subprocess
import time
import unittest
import urllib.request
from collections import Counter
from pathlib import Path

from nodes import LIMIT_SECONDS, TorchrunCase, needs_torch_here
from servers import free_port, new_folder

from c10d_rs.__main__ import command

STEPS = 25

# All ranks count each step in the store. Rank 0 keeps the number of steps, so that the next workers continue from it.
WORKER = f"""
import os, sys, time
import torch
import torch.distributed as dist
path = sys.argv[1] + "/steps"
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
first = len(open(path).readlines()) if os.path.exists(path) else 0
for step in range(first, {STEPS}):
    dist.all_reduce(torch.ones(4))
    store.add("counted", 1)
    store.set(f"{{step}}/{{rank}}", "done")
    store.wait([f"{{step}}/{{other}}" for other in range(size)])
    if rank == 0:
        with open(path, "a") as file:
            print(step, os.getpid(), file=file)
    dist.barrier()
    time.sleep(float(sys.argv[2]))
print("RESULT", store.add("counted", 0), first, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@needs_torch_here
class Durable(TorchrunCase):
    script = WORKER

    def node(self, *options: str, conf: str, step_seconds: float = 0.1) -> "subprocess.Popen[str]":
        """Start a node of two, with one worker."""
        job = ("--nnodes=2", "--rdzv-id=job", "--max-restarts=3", "--monitor-interval=0.1")
        return self.torchrun(*job, *options, self.worker, self.folder, step_seconds, PET_RDZV_CONF=conf)

    def steps(self) -> list[tuple[int, int]]:
        """Return the steps so far, and the process of rank 0 in each."""
        try:
            lines = (self.folder / "steps").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(int(step), int(pid)) for step, pid in (line.split() for line in lines)]

    def await_steps(self, number: int) -> None:
        """Wait until there are at least this many steps."""
        began = time.monotonic()
        while len(self.steps()) < number:
            self.assertLess(time.monotonic() - began, LIMIT_SECONDS)
            time.sleep(0.02)

    def expect(self, *nodes: "subprocess.Popen[str]", restarts: bool) -> None:
        """Wait for the nodes. Each step was counted once, and the workers were restarted or not."""
        for node in nodes:
            output, log = node.communicate(timeout=LIMIT_SECONDS)
            self.assertEqual(node.returncode, 0, log)
            found = [line.split()[1:] for line in output.splitlines() if line.startswith("RESULT ")]
            # The next workers begin with an empty store.
            self.assertEqual([int(counted) for counted, _ in found], [2 * (STEPS - int(first)) for _, first in found])
            self.assertEqual(len(found), 1, output)
        self.assertEqual(Counter(step for step, _ in self.steps()), Counter(range(STEPS)))
        # On a busy machine, a node can count as lost once more.
        processes = len({pid for _, pid in self.steps()})
        self.assertEqual(processes > 1, restarts, self.steps())

    def kill(self, node: "subprocess.Popen[str]") -> None:
        """Kill a node like the loss of its machine: also kill its worker, which is in a separate process group."""
        for pid in Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        node.kill()
        node.communicate()

    def test_workers_behind_relays_outlive_a_store_apart_from_the_job(self) -> None:
        port, folder = free_port(), self.folder / "store"
        words = [command(), "store", "serve", "--host=127.0.0.1", f"--port={port}", f"--dir={folder}"]

        def serve() -> "subprocess.Popen[bytes]":
            server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(server.wait)
            self.addCleanup(server.kill)
            return server

        server = serve()
        conf = "relay=1,workers_store=rendezvous,is_host=0"
        nodes = [self.node(f"--rdzv-endpoint=127.0.0.1:{port}", conf=conf) for _ in range(2)]
        self.await_steps(3)
        server.kill()
        server.wait()
        serve()
        self.expect(*nodes, restarts=False)

    def test_a_node_that_is_killed_goes_on_with_its_directory(self) -> None:
        endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
        conf = f"relay=1,store_dir={self.folder / 'store'},keep_alive_interval=1"
        host, other = (self.node(endpoint, conf=f"{conf},is_host={is_host}") for is_host in (1, 0))
        self.await_steps(3)
        self.kill(host)
        self.assertTrue((self.folder / "store" / "journal.db").exists())
        host = self.node(endpoint, conf=f"{conf},is_host=1")
        self.expect(host, other, restarts=True)

    def test_a_node_that_counts_as_lost_joins_again(self) -> None:
        endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
        conf = "relay=1,workers_store=rendezvous,keep_alive_interval=1"
        host, other = (self.node(endpoint, conf=f"{conf},is_host={it}", step_seconds=1) for it in (1, 0))
        self.await_steps(2)
        # Only the agent stops. Its worker continues.
        other.send_signal(signal.SIGSTOP)
        time.sleep(8)
        other.send_signal(signal.SIGCONT)
        self.expect(host, other, restarts=True)

    @unittest.skipUnless(os.environ.get("C10D_ETCD"), "set C10D_ETCD to the program etcd")
    def test_a_store_in_etcd_outlives_the_node_that_serves(self) -> None:
        conf = f"etcd={self.etcd()}/c10d/job,keep_alive_interval=1"
        nodes = [self.node(conf=conf) for _ in range(2)]
        self.await_steps(3)
        self.kill(nodes[0])
        nodes[0] = self.node(conf=conf)
        self.expect(*nodes, restarts=True)

    def etcd(self) -> str:
        """Start an etcd of one member, and return its address."""
        clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        member = subprocess.Popen(
            [
                os.environ["C10D_ETCD"],
                f"--data-dir={new_folder(self)}",
                f"--listen-client-urls={clients}",
                f"--advertise-client-urls={clients}",
                f"--listen-peer-urls={peers}",
                f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
                "--log-level=error",
            ]
        )
        self.addCleanup(member.wait)
        self.addCleanup(member.kill)
        began = time.monotonic()
        while True:
            try:
                urllib.request.urlopen(f"{clients}/health", timeout=5).close()
                return clients.removeprefix("http://")
            except OSError as error:
                self.assertLess(time.monotonic() - began, LIMIT_SECONDS, error)
                time.sleep(0.1)


if __name__ == "__main__":
    unittest.main()
