"""Ctrl-C interrupts a call that blocks the main thread. In the meantime, Python's other threads run."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import c10d_rs

# The time from the signal to the exception. An idle machine takes less than 5 ms; a busy one may stop the process. All calls
# have a far longer timeout.
LIMIT_SECONDS = float(os.environ.get("C10D_INTERRUPT_LIMIT", "10.0"))


def state(task: Path) -> str:
    """The state of a thread: T if it is stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Interrupt(unittest.TestCase):
    def setUp(self) -> None:
        self.server = c10d_rs.StoreServer()
        self.addCleanup(self.server.close)
        self.store = c10d_rs.TCPStore("127.0.0.1", self.server.port)

    def interrupted(self, call: Callable[[], object], is_blocked: Callable[[], bool] = lambda: True) -> float:
        """Send SIGINT to a call that blocks, and return the seconds until it ended."""
        sent = 0.0

        def send() -> None:
            nonlocal sent
            while not (in_call.is_set() and is_blocked()):
                time.sleep(0.001)
            time.sleep(0.1)
            sent = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

        in_call = threading.Event()
        sender = threading.Thread(target=send)
        sender.start()
        try:
            in_call.set()
            with self.assertRaises(KeyboardInterrupt):
                call()
            ended = time.monotonic()
        finally:
            sender.join()
        self.assertLess(ended - sent, LIMIT_SECONDS)
        return ended - sent

    def test_calls_that_wait(self) -> None:
        store = self.store
        nested = c10d_rs.PrefixStore("p", c10d_rs.PrefixStore("q", store))
        with ThreadPoolExecutor(2) as pool:
            pair = list(pool.map(lambda rank: c10d_rs.Group.join(store.clone(), rank, 2, name="pair"), range(2)))
        with tempfile.TemporaryDirectory() as folder:
            file = c10d_rs.FileStore(Path(folder) / "store")
            file.set_timeout(60)
            for call in (
                lambda: store.get("missing"),
                lambda: store.wait(["missing"]),
                lambda: store.wait(["missing", "other"], 60),
                lambda: store.multi_get(["missing"]),
                lambda: store.queue_pop("missing"),
                lambda: store.barrier("alone", 2),
                lambda: nested.get("missing"),
                lambda: nested.barrier("alone", 2),
                lambda: c10d_rs.HashStore().get("missing"),
                lambda: file.get("missing"),
                lambda: c10d_rs.Group.join(store.clone(), 0, 2),
                lambda: pair[0].barrier(),
            ):
                self.interrupted(call)
        # The interrupts were for the calls before: the store and its later waits are unharmed.
        writer = threading.Timer(0.05, lambda: store.set("late", "x"))
        writer.start()
        self.assertEqual(store.get("late"), b"x")
        writer.join()

    def test_requests_to_a_server_that_hangs(self) -> None:
        """A stopped server: the system accepts connections for it and does not answer."""

        def fill_buffers() -> None:
            for _ in range(16):
                store.set("key", bytes(4 << 20))

        code = "import c10d_rs\nserver = c10d_rs.StoreServer()\nprint(server.port, flush=True)\ninput()\n"
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            store = c10d_rs.TCPStore("127.0.0.1", int(server.stdout.readline()))
            prefix = c10d_rs.PrefixStore("p", store)
            server.send_signal(signal.SIGSTOP)
            while any(state(task) != "T" for task in Path(f"/proc/{server.pid}/task").iterdir()):
                time.sleep(0.001)
            try:
                for call in (
                    lambda: store.add("key", 1),
                    lambda: store.check(["key"]),
                    lambda: prefix.check(["key"]),
                    lambda: store.compare_set("key", "", "1"),
                    lambda: store.delete_key("key"),
                    lambda: store.num_keys(),
                    lambda: store.queue_len("key"),
                    lambda: store.queue_pop("key"),
                    lambda: store.get("key"),
                    lambda: store.clone(),
                    fill_buffers,
                    lambda: c10d_rs.Group.join(store, 0, 2),
                ):
                    self.interrupted(call)
            finally:
                server.send_signal(signal.SIGCONT)
            # An interrupted request costs its connection, not the store.
            store.set("after", "1")
            self.assertEqual(store.get("after"), b"1")
            store.close()
            server.communicate(b"\n")

    def test_a_signal_during_requests(self) -> None:
        """A handler uses the store at any moment of a call on it."""
        handled = 0

        def handle(*_: object) -> None:
            nonlocal handled
            handled = self.store.add("handled", 1)

        previous = signal.signal(signal.SIGALRM, handle)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        calls = 0
        while handled < 100:
            calls += 1
            self.assertEqual(self.store.add("calls", 1), calls)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def test_no_thread_is_left(self) -> None:
        def threads() -> int:
            return len(os.listdir("/proc/self/task"))

        with socket.socket() as closed, tempfile.TemporaryDirectory() as folder:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
            file = c10d_rs.FileStore(Path(folder) / "store")
            environment = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with patch.dict(os.environ, environment):
                # Starts the thread that reads signals.
                self.interrupted(lambda: self.store.get("missing"))
                before = threads()
                for call in (
                    lambda: file.get("missing"),
                    lambda: self.store.get("missing"),
                    lambda: c10d_rs.TCPStore("127.0.0.1", port),
                    lambda: c10d_rs.TCPStore("127.0.0.1", 0, world_size=2, is_master=True),
                    lambda: c10d_rs.init_from_env(),
                ):
                    self.interrupted(call)
                    # A thread that was joined ends a moment later for the system.
                    by = time.monotonic() + 30
                    while threads() > before and time.monotonic() < by:
                        time.sleep(0.001)
                    # One of an earlier test may have ended since.
                    self.assertLessEqual(threads(), before)

    def test_a_handler_that_does_not_raise(self) -> None:
        handled: list[bytes] = []
        # The handler uses the same store, as its main thread waits in it.
        previous = signal.signal(signal.SIGUSR1, lambda *_: handled.append(self.store.get("present")))
        self.addCleanup(signal.signal, signal.SIGUSR1, previous)
        self.store.set("present", "1")

        def work() -> None:
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGUSR1)
            while not handled:
                time.sleep(0.001)
            other = self.store.clone()
            other.set("key", "2")
            other.close()

        thread = threading.Thread(target=work)
        thread.start()
        self.assertEqual(self.store.get("key"), b"2")
        thread.join()
        self.assertEqual(handled, [b"1"])

    def test_other_threads_run(self) -> None:
        ticks = 0

        def count() -> None:
            nonlocal ticks
            for _ in range(100):
                ticks += 1
                time.sleep(0.001)
            self.store.clone().set("done", "")

        thread = threading.Thread(target=count)
        thread.start()
        self.store.wait(["done"])
        self.assertEqual(ticks, 100)
        thread.join()

    def test_a_process_on_its_own(self) -> None:
        """Without another thread of Python, which could take the signal."""
        code = (
            "import c10d_rs, sys\n"
            f"store = c10d_rs.TCPStore('127.0.0.1', {self.server.port})\n"
            "print('ready', flush=True)\n"
            "store.get('missing')\n"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stderr is not None
            self.assertEqual(child.stdout.readline(), b"ready\n")
            time.sleep(0.1)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            errors = child.stderr.read()
            self.assertLess(time.monotonic() - sent, LIMIT_SECONDS)
        self.assertIn(b"KeyboardInterrupt", errors)
        self.assertEqual(child.returncode, -signal.SIGINT)


if __name__ == "__main__":
    unittest.main()
