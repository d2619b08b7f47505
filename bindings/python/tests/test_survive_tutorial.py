"""The tutorial on killed ranks, typed as it stands. Needs PyTorch 2.14 or later."""

import os
import re
import shlex
import signal
import subprocess
import time
import unittest
from pathlib import Path

from c10d_rs.__main__ import command
from nodes import require_reconfigure
from pages import blocks

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/tutorials/survive-a-killed-rank.md"
# Seconds of a step. In the second run another process has to import torch before the work is done.
PAUSES = ("0.2", "2", "0.2")
LIMIT_SECONDS = 240


def runs() -> list[tuple[list[str], str]]:
    """Return the words of each command that starts a job, and the output that the page shows for it."""
    typed = [block for block in blocks(PAGE) if block[0] in ("sh", "text")]
    found = []
    for (language, text), (_, output) in zip(typed, typed[1:]):
        if language == "sh" and text.startswith("c10d run"):
            found.append((shlex.split(text), output))
    return found


def shape(output: str) -> set[str]:
    """Return the lines of an output without their numbers, and up to a semicolon.

    A busy machine changes ranks, sizes and the order of lines, and after a semicolon is what depends on the environment.
    """
    # Ranks share the stream, so a line may begin after another line.
    lines = re.sub(r"(?=process \d+(?::| is rank))", "\n", output).splitlines()
    return {re.sub(r"\d+(?:[-T:.]\d+)*Z?", "N", line.split(";")[0].rstrip()) for line in lines if line.strip()}


class Tutorial(unittest.TestCase):
    def type(self, words: list[str], pause: str) -> str:
        """Run a command of the page, kill rank 2 in its third step, and return the output."""
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        environment.pop("OMP_NUM_THREADS", None)
        launcher = subprocess.Popen(
            [command(), *words[1:], pause],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(launcher.communicate)
        self.addCleanup(launcher.terminate)
        assert launcher.stdout
        output = ""
        while not (rank := re.search(r"process (\d+) is rank 2 of 4", output)):
            line = launcher.stdout.readline()
            self.assertTrue(line, output)
            output += line
        time.sleep(2.5 * float(pause))
        os.kill(int(rank[1]), signal.SIGKILL)
        return output + launcher.communicate(timeout=LIMIT_SECONDS)[0]

    def test_commands_print_the_lines_of_the_page(self) -> None:
        require_reconfigure()
        found = runs()
        self.assertEqual(len(found), len(PAUSES))
        for (words, shown), pause in zip(found, PAUSES):
            with self.subTest(command=shlex.join(words)):
                output = self.type(words, pause)
                missing = shape(shown) - shape(output)
                self.assertFalse(missing, output)


if __name__ == "__main__":
    unittest.main()
