"""Folders, ports, secrets, and servers of PyTorch, for the tests."""

import atexit
import functools
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TORCH_PYTHON = os.environ.get("C10D_TORCH_PYTHON")

needs_torch = unittest.skipUnless(TORCH_PYTHON, "set C10D_TORCH_PYTHON to a Python that has PyTorch")

# Prints the operations of its stores. Then starts a server for each line that it reads, and prints its port.
_SERVE = """
import sys
from torch.distributed import TCPStore
print(*dir(TCPStore), flush=True)
servers = []
for line in sys.stdin:
    servers.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    print(servers[-1].port, flush=True)
"""


def new_folder(test: unittest.TestCase) -> Path:
    """Return an empty folder, which lasts as long as the test."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return Path(folder.name).resolve()


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def new_secret(test: unittest.TestCase) -> Path:
    """Return the path of a file with a new secret, which lasts as long as the test."""
    path = new_folder(test) / "secret"
    secret = subprocess.run([sys.executable, "-m", "c10d_rs", "secret", "new"], stdout=subprocess.PIPE, check=True)
    path.touch(0o600)
    path.write_bytes(secret.stdout)
    return path


def torch_server() -> int:
    """Start a server of PyTorch, which lasts as long as this process, and return its port."""
    process, _ = _process()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def torch_has(operation: str) -> bool:
    """Return whether this release of PyTorch has the operation of a store."""
    return operation in _process()[1]


def run_torch(script: str, *arguments: str) -> None:
    """Run a script in a process that has PyTorch."""
    assert TORCH_PYTHON is not None
    subprocess.run([TORCH_PYTHON, "-c", script, *arguments], env=_environment(), check=True)


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


@functools.cache
def _process() -> tuple[subprocess.Popen[str], list[str]]:
    assert TORCH_PYTHON is not None
    process = subprocess.Popen(
        [TORCH_PYTHON, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_environment(),
    )
    atexit.register(process.communicate)
    assert process.stdout is not None
    return process, process.stdout.readline().split()
