"""``torchrun --rdzv-backend c10d-rs`` shares a job with the other launchers. Needs PyTorch beside the package."""

import importlib
import os
import signal
import subprocess
import sys
import time
import unittest

from nodes import LIMIT_SECONDS, VARIABLES, TorchrunCase, needs_torch_here
from servers import free_port

import c10d_rs
from c10d_rs.__main__ import command

# With an argument, rank 0 fails once: the file of that name remembers it.
WORKER = """
import os, pathlib, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(f"RESULT rank {dist.get_rank()} of {dist.get_world_size()}: {total.item():.0f}", flush=True)
if len(sys.argv) > 1 and dist.get_rank() == 0 and not os.path.exists(sys.argv[1]):
    pathlib.Path(sys.argv[1]).touch()
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
"""


@needs_torch_here
class Torchrun(TorchrunCase):
    script = WORKER

    def setUp(self) -> None:
        super().setUp()
        self.endpoint = f"127.0.0.1:{free_port()}"

    def start(self, kind: str, nodes: int, fails: bool = False) -> "subprocess.Popen[str]":
        """Start a node: of c10d-run, or of torchrun with the backend c10d or c10d-rs."""
        torchrun = [sys.executable, "-m", "torch.distributed.run"]
        launcher, backend = ([command(), "run"], "c10d") if kind == "c10d-run" else (torchrun, kind)
        arguments = [
            f"--nnodes={nodes}",
            "--nproc-per-node=1",
            f"--rdzv-backend={backend}",
            f"--rdzv-endpoint={self.endpoint}",
            "--rdzv-id=job",
            "--max-restarts=2",
            "--local-addr=127.0.0.1",
            "--monitor-interval=0.1",
        ]
        worker = [str(self.worker), *([str(self.folder / "failed")] if fails else [])]
        with open(self.folder / f"{time.monotonic_ns()}-{kind}", "w") as output:
            node = subprocess.Popen(
                [*launcher, *arguments, *worker],
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **VARIABLES, "PYTHON_EXEC": sys.executable},
            )
        self.addCleanup(node.wait)
        self.addCleanup(node.kill)
        return node

    def output(self) -> str:
        """Return what all nodes have printed."""
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*-*")))

    def job(self, *kinds: str, fails: bool = False) -> None:
        """Run a job of one node of each kind, and check that all ranks met, after a failure once more."""
        nodes = [self.start(kind, len(kinds), fails) for kind in kinds]
        for node in nodes:
            self.assertEqual(node.wait(LIMIT_SECONDS), 0, self.output())
        size = len(kinds)
        for rank in range(size):
            line = f"RESULT rank {rank} of {size}: {size * (size + 1) // 2}\n"
            self.assertEqual(self.output().count(line), 2 if fails else 1, self.output())

    def test_one_node(self) -> None:
        self.job("c10d-rs")

    def test_beside_c10d_run_with_a_restart(self) -> None:
        self.job("c10d-rs", "c10d-run", fails=True)

    def test_all_launchers_in_one_job(self) -> None:
        self.job("c10d-rs", "c10d", "c10d-run")

    def test_a_store_that_the_agent_holds_does_not_delay_the_end(self) -> None:
        api = importlib.import_module("torch.distributed.elastic.rendezvous.api")
        handlers = importlib.import_module("c10d_rs.torchrun")
        node = handlers.Handler(api.RendezvousParameters("c10d-rs", "", "none", 1, 1, timeout=900))
        store = node.next_rendezvous().store
        store.set("key", "value")
        self.assertEqual(store.get("key"), b"value")
        began = time.monotonic()
        self.assertTrue(node.shutdown())
        # A server waits for 3 s until its clients have left.
        self.assertLess(time.monotonic() - began, 2.8)

    def test_ctrl_c_ends_a_join(self) -> None:
        leaving = self.start("c10d-rs", 2)
        # Serves the rendezvous' store, and waits for another node.
        store = c10d_rs.TCPStore("127.0.0.1", int(self.endpoint.split(":")[1]), timeout=LIMIT_SECONDS)
        store.wait(["torch.rendezvous.job"])
        leaving.send_signal(signal.SIGINT)
        sent = time.monotonic()
        self.assertNotEqual(leaving.wait(LIMIT_SECONDS), 0)
        self.assertLess(time.monotonic() - sent, 20, self.output())
        self.assertIn("KeyboardInterrupt", self.output())


if __name__ == "__main__":
    unittest.main()
