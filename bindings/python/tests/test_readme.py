"""The README's programs run as they stand there, in the order in which a reader types them."""

import os
import shlex
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

from c10d_rs import StoreServer
from c10d_rs.__main__ import command
from nodes import VARIABLES, needs_torch_here, require_reconfigure
from pages import blocks_in
from servers import new_folder, new_secret

README = Path(__file__).resolve().parents[1] / "README.md"
LIMIT_SECONDS = 240

# Around the line of the process group: temporary objects die at once, and every kind of subgroup has to work.
BEFORE_GROUP = """
import gc, sys
host, port, rank, world_size = "127.0.0.1", int(sys.argv[1]), int(sys.argv[2]), 2
def main():
"""
AFTER_GROUP = """
main()
gc.collect()
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import c10d_rs, c10d_rs.torch

def check(group):
    tensor = torch.ones(2) * (dist.get_rank() + 1)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [3.0, 3.0], tensor

for _ in range(2):
    check(dist.new_group([0, 1]))
    gc.collect()
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}], objects
dist.broadcast_object_list(objects, src=0)
dist.monitored_barrier()
check(init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b")).get_group("b"))
if hasattr(dist, "split_group"):
    try:
        group = dist.split_group(None, [[0, 1]])
    except RuntimeError as error:  # this back end of this release cannot split
        assert "INTERNAL ASSERT" not in str(error) and "pure virtual" not in str(error), error
    else:
        check(group)
client = c10d_rs.TCPStore(host, port, secret_file="job.secret")
prefixed = dist.PrefixStore("p", c10d_rs.torch.Store(client))
gc.collect()
prefixed.set(f"rank {rank}", "here")
prefixed.wait(["rank 0", "rank 1"])
dist.destroy_process_group()
"""

BEFORE_SURVIVORS = """
import torch
net = torch.nn.Linear(2, 2)
state, steps = {"net": net}, 3
def train_step(parallel, step):
    parallel(torch.ones(1, 2)).sum().backward()
"""
AFTER_SURVIVORS = """
assert step == steps, step
"""


class Readme(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = new_folder(self)

    def run_worker(self, line: str, script: str) -> None:
        """Type a line that runs c10d with worker.py."""
        (self.folder / "worker.py").write_text(script)
        words = shlex.split(line, comments=True)
        self.assertEqual((words[:2], words[-1]), (["c10d", "run"], "worker.py"))
        environment = {**os.environ, **VARIABLES, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run([command(), *words[1:]], cwd=self.folder, env=environment, check=True, timeout=LIMIT_SECONDS)

    def test_stores(self) -> None:
        stores, _ = blocks_in(README, "python")
        subprocess.run([sys.executable, "-c", stores], check=True, timeout=LIMIT_SECONDS)

    def test_groups_under_the_launcher(self) -> None:
        _, groups = blocks_in(README, "python")
        (line,) = (line for line in blocks_in(README, "sh")[0].splitlines() if line.startswith("c10d run"))
        self.run_worker(line, groups)

    @needs_torch_here
    def test_process_groups(self) -> None:
        secret = new_secret(self)
        (self.folder / "job.secret").symlink_to(secret)
        block, _ = blocks_in(README, "py")
        script = BEFORE_GROUP + textwrap.indent(block, "    ") + AFTER_GROUP
        with StoreServer(secret_file=secret) as server:
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-c", script, str(server.port), str(rank)],
                    cwd=self.folder,
                    env={**os.environ, **VARIABLES},
                )
                for rank in range(2)
            ]
            try:
                self.assertEqual([rank.wait(LIMIT_SECONDS) for rank in ranks], [0, 0])
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()

    def test_survivors(self) -> None:
        require_reconfigure()
        _, block = blocks_in(README, "py")
        script = BEFORE_SURVIVORS + block + AFTER_SURVIVORS
        self.run_worker("c10d run --standalone --nproc-per-node 2 --keep-workers worker.py", script)


if __name__ == "__main__":
    unittest.main()
