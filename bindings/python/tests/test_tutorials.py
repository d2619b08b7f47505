"""The tutorial for users of torchrun, typed as it stands, in two terminals where it has two nodes."""

import os
import re
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from c10d_rs.__main__ import command
from nodes import needs_torch_here
from pages import blocks
from servers import free_port, new_folder

PAGE = Path(__file__).resolve().parents[3] / "docs/tutorials/move-a-torchrun-job.md"
LIMIT_SECS = 300


def comparable(line: str) -> str:
    """Return a line without the parts that differ from run to run: white space, times, process ids and ports."""
    line = re.sub(r"^\[\S+ ", "[TIME ", " ".join(line.split()))
    line = re.sub(r"pid [\d, ]*\d", "pid N", line)
    return re.sub(r"localhost:\d+|127\.0\.0\.1:\d+", "HOST:PORT", line)


def start(script: str, folder: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["sh", "-c", script],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def end(terminal: "subprocess.Popen[str]") -> str:
    try:
        output, _ = terminal.communicate(timeout=LIMIT_SECS)
    finally:
        if terminal.poll() is None:
            os.killpg(terminal.pid, signal.SIGKILL)
    return output


@needs_torch_here
class TutorialTest(unittest.TestCase):
    def test_each_command_prints_what_the_page_shows(self) -> None:
        typed = 0
        folder = new_folder(self)
        # The interpreter may have PyTorch from another environment, without its commands.
        torchrun = folder / "torchrun"
        torchrun.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@"\n')
        torchrun.chmod(0o755)
        folders = [str(folder), str(Path(command()).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = {**os.environ, "PATH": os.pathsep.join(folders), "PET_NO_SCHEDULER": "1"}
        environment.pop("OMP_NUM_THREADS", None)
        found = blocks(PAGE)
        for index, (language, text) in enumerate(found):
            if language == "python":
                # PyTorch 2.15 with gloo sometimes aborts while the interpreter exits.
                (folder / "train.py").write_text(text + "import os\n\nos._exit(0)\n")
            if language != "sh":
                continue
            typed += 1
            text = text.replace("localhost:29400", f"localhost:{free_port()}")
            # A job of two nodes is typed in two terminals.
            terminals = [start(text, folder, environment) for _ in range(2 if "--nnodes 2" in text else 1)]
            printed = "".join(end(terminal) for terminal in terminals)
            self.assertEqual([terminal.returncode for terminal in terminals], [0] * len(terminals), printed)
            lines = [comparable(line) for line in printed.splitlines()]
            for language, shown in found[index + 1 :]:
                if language != "text":
                    break
                for line in shown.splitlines():
                    # Omitted lines, and results of both ranks, which may share a line with each other.
                    if line != "..." and " is done" not in line:
                        self.assertTrue(any(comparable(line) in it for it in lines), f"{line}: {printed}")
        self.assertEqual(typed, 5)
