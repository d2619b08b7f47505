"""With PET_RDZV_BACKEND=c10d-rs, torchrun's log explains hangs and failures. Needs PyTorch beside the package."""

import errno
import os
import re
import subprocess
import time
import unittest

from nodes import LIMIT_SECONDS, TorchrunCase, needs_torch_here
from servers import free_port

from c10d_rs.__main__ import command

# Its line numbers are in the tests.
WORKER = """
import os, signal, sys, time
import torch
import torch.distributed as dist
act, folder = sys.argv[1:]
# Before there is a group: PyTorch 2.15's next workers would read the addresses of these in the store that they share.
if act == "fail-once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(7) if os.environ["RANK"] == "1" else time.sleep(100)
dist.init_process_group("gloo")
def train():
    for step in range(3):
        if step == 2 and dist.get_rank() == 1:
            fetch()
        dist.all_reduce(torch.ones(4))
def fetch():
    if act == "hang":
        open(folder + "/fetching", "w").close()
        open(folder + "/go-on").read()
    elif act == "exit":
        os._exit(7)
    elif act == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
train()
dist.barrier()
dist.destroy_process_group()
"""

# torchrun's report of a failed worker.
FAILED = re.compile(r"rank +: (\d+) .*\n +exitcode +: (-?\d+) \(")


@needs_torch_here
class Watch(TorchrunCase):
    script = WORKER

    def setUp(self) -> None:
        super().setUp()
        # The worker that hangs waits for a writer.
        os.mkfifo(self.folder / "go-on")

    def let_go_on(self) -> None:
        """End the hang, if there is one."""
        try:
            os.close(os.open(self.folder / "go-on", os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            self.assertEqual(error.errno, errno.ENXIO)

    def end(self, node: "subprocess.Popen[str]") -> None:
        super().end(node)
        self.let_go_on()

    def start(self, act: str, *options: str, variable: bool = True, **environment: str) -> "subprocess.Popen[str]":
        """Start torchrun with two workers. Rank 1 does this in its third step."""
        # torchrun's own check of its workers can be first, and then the exit code of a worker is lost for others.
        words = ("--nproc-per-node=2", "--monitor-interval=1", *options, self.worker, act, self.folder)
        return self.torchrun(*words, variable=variable, **environment)

    def test_a_hang_is_explained(self) -> None:
        node = self.start("hang", PET_RDZV_CONF="explain_after=3s")
        log = self.read_until(node, "if the job hangs: c10d why ")
        why = log.split("if the job hangs: c10d ")[1].split()
        log = self.read_until(node, "because of: rank 1; waiting: rank 0")
        self.assertIn("c10d-rs: the job has made no progress for ", log)
        text = " ".join(log.split())
        self.assertIn("Rank 0 waits in all_reduce (worker.py:14). Rank 1 does not take part", text)
        self.assertIn("at worker.py:18 (fetch)", text)
        # From outside: the same reason, and the stacks of this node's workers.
        answer = subprocess.run([command(), *why], capture_output=True, text=True, timeout=20)
        self.assertEqual(answer.returncode, 4, answer)
        self.assertIn("Rank 1 does not take part", " ".join(answer.stdout.split()))
        stacks = subprocess.run([command(), "stacks", *why[1:]], capture_output=True, text=True, timeout=20)
        self.assertIn("fetch", stacks.stdout, stacks)
        self.let_go_on()
        node.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(node.returncode, 0)

    def test_a_failure_has_its_cause_before_torchruns_report(self) -> None:
        for act, code, cause in (
            ("exit", 7, "exited with code 7"),
            ("kill", -9, "was killed by signal 9"),
        ):
            with self.subTest(act):
                node = self.start(act)
                _, log = node.communicate(timeout=LIMIT_SECONDS)
                text = " ".join(log.split())
                self.assertRegex(text, rf"When the first worker failed: Rank 1 \(pid \d+ on [^)]+\) {cause}")
                self.assertLess(log.index("When the first worker failed"), log.index("Root Cause"))
                self.assertEqual(dict(FAILED.findall(log))["1"], str(code))
                self.assertEqual(node.returncode, 1)

    def test_a_failure_that_no_rank_waits_for_is_named(self) -> None:
        node = self.start("fail-once")
        _, log = node.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(node.returncode, 1)
        named = "The first worker that failed on this node: rank 1 "
        self.assertRegex(log, named + r"\(pid \d+\), exit code 7\. Other ranks did not wait for it yet\.\n")
        self.assertLess(log.index(named), log.index("Root Cause"))

    def test_a_job_that_succeeds_after_a_restart_has_no_cause(self) -> None:
        for options in ((), ("--rdzv-conf=relay=1",), ("--rdzv-conf=relay=1", f"--master-port={free_port()}")):
            with self.subTest(options):
                node = self.start("fail-once", "--max-restarts=1", *options)
                _, log = node.communicate(timeout=LIMIT_SECONDS)
                self.assertEqual(node.returncode, 0, log)
                self.assertNotIn("When the first worker failed", log)

    def test_a_signal_ends_torchrun_as_without_the_variable(self) -> None:
        codes = []
        for variable in (False, True):
            node = self.start("hang", variable=variable)
            while not (self.folder / "fetching").exists():
                time.sleep(0.1)
            (self.folder / "fetching").unlink()
            sent = time.monotonic()
            node.terminate()
            _, log = node.communicate(timeout=LIMIT_SECONDS)
            codes.append(node.returncode)
            self.assertLess(time.monotonic() - sent, 20, log)
            self.assertNotIn("When the first worker failed", log)
        self.assertEqual(codes[0], codes[1])


if __name__ == "__main__":
    unittest.main()
