"""Each form of a torchrun command works with PET_RDZV_BACKEND=c10d-rs. Needs PyTorch beside the package."""

import importlib
import json
import os
import re
import subprocess
import time
import unittest
import urllib.error
import urllib.request

from nodes import LIMIT_SECONDS, TorchrunCase, needs_torch_here
from servers import free_port

from c10d_rs.__main__ import command

# Prints what the launcher has chosen. With an argument it then waits until that many workers have printed theirs.
WORKER = """
import json, os, sys, time
from datetime import timedelta
import torch.distributed as dist
print("RESULT", json.dumps(dict(os.environ)), flush=True)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
folder, count = sys.argv[1], int(sys.argv[2])
open(os.path.join(folder, f"there-{os.getpid()}"), "w").close()
while sum(name.startswith("there-") for name in os.listdir(folder)) < count:
    time.sleep(0.02)
dist.barrier()
dist.destroy_process_group()
"""


@needs_torch_here
class Variable(TorchrunCase):
    script = WORKER

    def setUp(self) -> None:
        super().setUp()
        # How many workers run at the same time.
        self.workers = 1

    def start(self, *options: str, variable: bool = True, **environment: str) -> "subprocess.Popen[str]":
        """Start torchrun with these options."""
        return self.torchrun(*options, self.worker, self.folder, self.workers, variable=variable, **environment)

    def results(self, *nodes: "subprocess.Popen[str]") -> list[dict[str, str]]:
        """Wait for the nodes, and return what the worker of each has printed."""
        found = []
        for node in nodes:
            output, log = node.communicate(timeout=LIMIT_SECONDS)
            self.assertEqual(node.returncode, 0, log)
            lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
            self.assertEqual(len(lines), 1, output)
            found.append(json.loads(lines[0].removeprefix("RESULT ")))
        return found

    def test_one_node_without_an_endpoint_beside_another_job(self) -> None:
        self.workers = 2
        jobs = self.results(self.start(), self.start("--nnodes=1", "--node-rank=0", "--master-addr=localhost"))
        self.assertEqual([job["WORLD_SIZE"] for job in jobs], ["1", "1"])
        for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID"):
            self.assertNotEqual(jobs[0][name], jobs[1][name])

    def test_nodes_with_a_master_keep_their_ranks(self) -> None:
        self.workers = 2
        port = str(free_port())
        options = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}")
        second = self.start(*options, "--node-rank=1")
        time.sleep(1)
        first = self.start(*options, PET_NODE_RANK="0")
        jobs = self.results(first, second)
        self.assertEqual([job["GROUP_RANK"] for job in jobs], ["0", "1"])
        self.assertEqual([job["MASTER_PORT"] for job in jobs], [port, port])

    def test_a_node_with_the_variable_beside_one_without(self) -> None:
        self.workers = 2
        for with_variable in (0, 1):
            options = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
            nodes = [
                self.start(*options, f"--node-rank={rank}", variable=rank == with_variable) for rank in range(2)
            ]
            with self.subTest(with_variable=with_variable):
                self.assertEqual([job["GROUP_RANK"] for job in self.results(*nodes)], ["0", "1"])

    def pages(self, node: "subprocess.Popen[str]") -> tuple[str, list[str]]:
        """Wait for the line about the pages, and return their address and the words of the command after it."""
        assert node.stderr is not None
        for line in node.stderr:
            found = re.search(r"status page: (http://\S+/); if the job hangs: c10d (why .*)$", line)
            if found is not None:
                return found[1], found[2].split()
        self.fail("torchrun has not logged the line about the status page")

    def let_workers_end(self) -> None:
        """Take the place of the worker that the workers of this job wait for."""
        (self.folder / "there-test").touch()

    def test_pages_of_the_workers_store(self) -> None:
        self.workers = 2
        for options in ((), (f"--master-port={free_port()}",)):
            with self.subTest(options):
                node = self.start(*options)
                address, why = self.pages(node)
                for path, expected in (("", b"<html"), ("why.json", b'"findings"'), ("metrics", b"c10d_store_")):
                    with urllib.request.urlopen(address + path, timeout=20) as answer:
                        self.assertIn(expected, answer.read())
                answer = subprocess.run([command(), *why], capture_output=True, text=True, timeout=20)
                self.assertIn(answer.returncode, (0, 4), answer)
                self.let_workers_end()
                self.assertEqual(len(self.results(node)), 1)
                (self.folder / "there-test").unlink()

    def test_a_secret_protects_the_pages(self) -> None:
        self.workers = 2
        secret = self.folder / "job.secret"
        with secret.open("w") as file:
            os.fchmod(file.fileno(), 0o600)
            subprocess.run([command(), "secret", "new"], stdout=file, check=True)
        node = self.start(PET_RDZV_CONF=f"secret_file={secret}")
        address, why = self.pages(node)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address + "why.json", timeout=20)
        self.assertEqual(refused.exception.code, 401)
        self.assertEqual(why[-2:], ["--secret-file", str(secret)])
        answer = subprocess.run([command(), *why], capture_output=True, text=True, timeout=20)
        self.assertIn(answer.returncode, (0, 4), answer)
        self.let_workers_end()
        self.results(node)

    def test_no_pages(self) -> None:
        node = self.start(PET_RDZV_CONF="status=0")
        _, log = node.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual(node.returncode, 0, log)
        self.assertNotIn("status page", log)

    def test_a_port_for_the_workers_store(self) -> None:
        port = str(free_port())
        (job,) = self.results(self.start(f"--rdzv-conf=workers_port={port},protocol=http"))
        self.assertEqual(job["MASTER_PORT"], port)

    def test_workers_have_the_environment_that_they_have_without_the_variable(self) -> None:
        rendezvous = {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}
        # PyTorch's own, of the folder with the error files of the workers and of the process of the agent.
        differs = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_AGENT_PID"}
        relay = {"C10D_MASTER_ADDR", "C10D_MASTER_PORT", "DCP_USE_PREFIX_STORE"}
        (usual,) = self.results(self.start(variable=False))
        for conf, added in (("status=1", set[str]()), ("relay=1", relay)):
            (job,) = self.results(self.start(PET_RDZV_CONF=conf))
            names = {name for name in usual.keys() | job.keys() if usual.get(name) != job.get(name)}
            given = {"PET_RDZV_BACKEND", "PET_RDZV_CONF"}
            # The master's address is localhost or 127.0.0.1.
            self.assertEqual(names - {"MASTER_ADDR"} - rendezvous - differs, given | added)
            self.assertIn(job["MASTER_ADDR"], ("localhost", "127.0.0.1"))

    def test_unknown_options_are_refused_with_a_list(self) -> None:
        api = importlib.import_module("torch.distributed.elastic.rendezvous.api")
        handlers = importlib.import_module("c10d_rs.torchrun")
        for conf, expected in (
            ("statsu=0", 'unknown option "statsu" .*; the options are .*join_timeout, .*secret_file, .*status, '),
            ("status=maybe", "the rendezvous setting status is \"maybe\"; expected yes or no"),
            ("workers_port=0", "workers_port: "),
            ("relay=maybe", "the rendezvous setting relay is \"maybe\"; expected yes or no"),
            ("etcd=127.0.0.1", '"etcd://127.0.0.1" is not etcd://HOST:PORT,.../PREFIX: '),
            ("etcd=h:1/p,store_dir=d", "store_dir and etcd: "),
        ):
            config = dict(option.split("=") for option in conf.split(","))
            with self.subTest(conf), self.assertRaisesRegex(ValueError, expected):
                handlers.Handler(api.RendezvousParameters("c10d-rs", "", "none", 1, 1, **config))

    def test_several_nodes_without_a_place_fail_at_once(self) -> None:
        node = self.start("--nnodes=1:4", "--rdzv-id=17")
        _, log = node.communicate(timeout=LIMIT_SECONDS)
        self.assertNotEqual(node.returncode, 0)
        self.assertIn("ValueError: ", log)
        self.assertIn("Add --rdzv-endpoint=HOST:29400 to the command of each node", log)

    def test_other_backends_are_not_affected(self) -> None:
        port = free_port()
        for backend, options in (
            ("c10d", ("--standalone",)),
            ("c10d", ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")),
            ("static", ("--rdzv-backend=static", f"--master-port={port}")),
        ):
            with self.subTest(options):
                node = self.start(*options, LOGLEVEL="INFO")
                _, log = node.communicate(timeout=LIMIT_SECONDS)
                self.assertEqual(node.returncode, 0, log)
                self.assertRegex(log, rf"rdzv_backend +: {backend}\n")


if __name__ == "__main__":
    unittest.main()
