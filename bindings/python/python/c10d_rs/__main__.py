"""``python -m c10d_rs ARGUMENTS``: replaces this process by the command ``c10d`` of the same installation.

Under ``python -m debugpy`` the process stays and runs the command as a child, because the debugger's session lasts only as long
as the process.
"""

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files
from types import FrameType
from typing import List, Optional

PR_SET_PDEATHSIG = 1


def command() -> str:
    """Return the path of the installed command."""
    try:
        installed = files("c10d-rs") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        path = os.path.abspath(str(file.locate()))
        if file.name == "c10d" and file.parent.name == "bin" and os.path.exists(path):
            return path
    sys.exit("error: the command c10d is not part of this installation: reinstall the wheel c10d-rs")


def debugger() -> List[str]:
    """Return the words between ``python -u`` and ``--file`` that make a worker another process of this debugger."""
    if "debugpy" not in sys.modules or "pydevd" not in sys.modules:
        return []
    monkey = importlib.import_module("_pydev_bundle.pydev_monkey")
    # As the debugger starts any Python program that a program starts.
    words: List[str] = monkey.patch_args([sys.executable, "-u", "worker.py"])
    return words[2:-2] if words[-2:] == ["--file", "worker.py"] else []


def end_with_parent() -> None:
    """Have the system send this process SIGTERM when its parent is killed, for example by an editor (Linux)."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def run_as_child(arguments: List[str]) -> int:
    """Run a command, pass signals on, and return its exit code."""
    child = subprocess.Popen(arguments, preexec_fn=end_with_parent)

    def forward(number: int, _: Optional[FrameType]) -> None:
        child.send_signal(number)

    def leave_to_child(number: int, _: Optional[FrameType]) -> None:
        """The terminal also sends these signals to the child."""

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, forward)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, leave_to_child)
    code = child.wait()
    return code if code >= 0 else 128 - code


def main() -> None:
    """Run the command with the arguments of this process."""
    arguments = [command(), *sys.argv[1:]]
    if sys.executable:
        # The workers' interpreter, unless PYTHON_EXEC names a different interpreter.
        os.environ["C10D_PYTHON"] = sys.executable
    words = debugger()
    if words:
        os.environ["C10D_DEBUGGER"] = "\n".join(words)
        sys.exit(run_as_child(arguments))
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()
