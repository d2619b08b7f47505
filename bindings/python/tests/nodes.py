"""PyTorch beside the package, and nodes of torchrun, for the tests."""

import functools
import importlib.util
import os
import subprocess
import sys
import threading
import unittest

from servers import new_folder

# A node that runs for this long is stopped: the tests read its log, which ends with the node.
LIMIT_SECONDS = 120

needs_torch_here = unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed beside c10d_rs")


# For processes that use PyTorch.
VARIABLES = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}

HAS_RECONFIGURE = "import torch.distributed as dist, sys; sys.exit(not hasattr(dist, '_reconfigure'))"


@functools.cache
def can_reconfigure() -> bool:
    """Return whether this environment's torch can change a process group."""
    return subprocess.run([sys.executable, "-c", HAS_RECONFIGURE]).returncode == 0


def require_reconfigure() -> None:
    """Skip the tests if this environment has no torch that can change a process group."""
    if not importlib.util.find_spec("torch"):
        raise unittest.SkipTest("needs torch in this environment")
    if not can_reconfigure():
        raise unittest.SkipTest("needs PyTorch 2.14 or later")


class TorchrunCase(unittest.TestCase):
    """A test that runs a script under torchrun, with PET_RDZV_BACKEND=c10d-rs."""

    script = ""

    def setUp(self) -> None:
        self.folder = new_folder(self)
        self.worker = self.folder / "worker.py"
        self.worker.write_text(self.script)

    def torchrun(self, *words: object, variable: bool = True, **environment: str) -> "subprocess.Popen[str]":
        """Start torchrun with these words on its command line."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
        node = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **inherited,
                **({"PET_RDZV_BACKEND": "c10d-rs"} if variable else {}),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
        )
        self.addCleanup(node.communicate)
        self.addCleanup(self.end, node)
        timer = threading.Timer(LIMIT_SECONDS, self.end, [node])
        timer.start()
        self.addCleanup(timer.cancel)
        return node

    def end(self, node: "subprocess.Popen[str]") -> None:
        """Have a node and its workers end. The workers hold its output open, and outlive it if it is killed."""
        node.terminate()

    def read_until(self, node: "subprocess.Popen[str]", expected: str) -> str:
        """Return the log up to the line that has this."""
        log = ""
        assert node.stderr is not None
        for line in node.stderr:
            log += line
            if expected in line:
                return log
        self.fail(f"torchrun has not logged {expected!r}:\n{log}")
