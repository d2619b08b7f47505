"""The wheel brings the command c10d, a program that needs no interpreter."""

import os
import subprocess
import sys
import tempfile
import unittest
from importlib.metadata import version
from pathlib import Path

from c10d_rs import StoreServer, TCPStore
from c10d_rs.__main__ import command

WORKER = 'test "$WORLD_SIZE" = 2 && echo "rank $RANK"'


class Command(unittest.TestCase):
    def test_it_is_a_program(self) -> None:
        self.assertEqual(Path(command()).read_bytes()[:4], b"\x7fELF")
        self.assertEqual(Path(command()).parent, Path(sys.executable).parent)
        printed = subprocess.run([command(), "--version"], check=True, capture_output=True, text=True).stdout
        self.assertTrue(printed.startswith(f"c10d {version('c10d-rs')} "), printed)

    def test_its_manual_and_completions_come_with_it(self) -> None:
        share = Path(sys.prefix) / "share"
        self.assertIn("--preload", (share / "man/man1/c10d-run.1").read_text().replace("\\-", "-"))
        places = {
            "bash": "bash-completion/completions/c10d",
            "fish": "fish/vendor_completions.d/c10d.fish",
            "zsh": "zsh/site-functions/_c10d",
        }
        for shell, name in places.items():
            made = subprocess.run([command(), "completions", shell], check=True, capture_output=True).stdout
            self.assertEqual((share / name).read_bytes(), made)

    def test_it_uses_a_store_of_the_package(self) -> None:
        with StoreServer() as server, TCPStore("127.0.0.1", server.port) as store:
            arguments = ["store", "set", "k", "v", "--connect", f"127.0.0.1:{server.port}"]
            subprocess.run([sys.executable, "-m", "c10d_rs", *arguments], check=True)
            self.assertEqual(store.get("k"), b"v")

    def test_it_launches_workers(self) -> None:
        arguments = ["run", "--standalone", "--nproc-per-node=2", "--no-python", "/bin/sh", "-c", WORKER]
        run = subprocess.run([command(), *arguments], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(sorted(run.stdout.split("\n")), ["", "rank 0", "rank 1"])

    def test_its_workers_run_in_the_environment_of_the_interpreter_that_starts_it(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "report.py")
            script.write_text("import os, sys; print(sys.prefix, 'C10D_PYTHON' in os.environ)")
            arguments = [sys.executable, "-m", "c10d_rs", "run", "--standalone", str(script)]
            environment = {**os.environ, "PATH": "/usr/bin:/bin", "TMPDIR": folder}
            environment.pop("PYTHON_EXEC", None)
            run = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(run.stdout, f"{sys.prefix} False\n", run.stderr)


if __name__ == "__main__":
    unittest.main()
