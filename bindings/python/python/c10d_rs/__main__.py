"""``python -m c10d_rs ARGUMENTS``: replaces this process by the command ``c10d`` of the same installation."""

import os
import sys
from importlib.metadata import PackageNotFoundError, files


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


def main() -> None:
    """Run the command with the arguments of this process."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
