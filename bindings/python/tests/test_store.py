"""Every kind of store keeps the contract, on our server and on PyTorch's, and opens and closes as PyTorch's does."""

import fcntl
import importlib.metadata
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import time
import unittest
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import c10d_rs
import contract
from c10d_rs import (
    DistError,
    DistNetworkError,
    DistStoreError,
    FileStore,
    Group,
    HashStore,
    PrefixStore,
    Store,
    StoreFullError,
    StoreJournalError,
    StoreServer,
    StoreTimeoutError,
    StoreUnsupportedError,
    StoreValueError,
    TCPStore,
)
from servers import free_port, needs_torch, new_folder, new_secret, run_torch, torch_has, torch_server


class TestTCPStore(contract.StoreContract):
    def setUp(self) -> None:
        self.port = self.serve()
        super().setUp()

    def serve(self) -> int:
        server = StoreServer()
        self.addCleanup(server.close)
        return server.port

    def open(self) -> Store:
        return TCPStore("127.0.0.1", self.port)

    def test_refused_after_close(self) -> None:
        waiting = self.open()
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(waiting.get, "missing")
            while not waits.running():
                time.sleep(0.001)
            time.sleep(0.05)
            waiting.close()
            with self.assertRaisesRegex(DistStoreError, "closed"):
                waits.result(60)


class TestFullStore(unittest.TestCase):
    def test_a_refused_write_changes_nothing(self) -> None:
        serve = ["store", "serve", "--host=127.0.0.1", "--port=0", "--memory-max=3MiB", "--end-with-parent"]
        with subprocess.Popen([sys.executable, "-m", "c10d_rs", *serve], stdout=subprocess.PIPE, text=True) as server:
            self.addCleanup(server.kill)
            assert server.stdout is not None
            port = int(server.stdout.readline().rpartition(":")[2])
            store = TCPStore("127.0.0.1", port)
            large = bytes(4 << 20)
            store.set("key", b"value")
            writes: list[Callable[[], None]] = [
                lambda: store.set("key", large),
                lambda: store.append("key", large),
                lambda: store.multi_set(["key", "other"], [large, b"value"]),
                lambda: store.queue_push("queue", large),
            ]
            for write in writes:
                with self.assertRaisesRegex(StoreFullError, "3145728"):
                    write()
                self.assertEqual(store.get("key"), b"value")
                self.assertFalse(store.check(["other"]))
            server.kill()


class TestTCPStoreWithSecret(TestTCPStore):
    def serve(self) -> int:
        self.secret = new_secret(self)
        server = StoreServer(secret_file=self.secret)
        self.addCleanup(server.close)
        return server.port

    def open(self) -> Store:
        return TCPStore("127.0.0.1", self.port, secret_file=self.secret)

    def test_strangers_are_refused(self) -> None:
        for secret in (None, new_secret(self)):
            with self.assertRaisesRegex(DistNetworkError, "secret"):
                TCPStore("127.0.0.1", self.port, timeout=0.3, secret_file=secret)
        server = StoreServer()
        self.addCleanup(server.close)
        with self.assertRaisesRegex(DistNetworkError, "secret"):
            TCPStore("127.0.0.1", server.port, timeout=0.3, secret_file=self.secret)

    def test_a_master_serves_with_its_secret(self) -> None:
        with TCPStore("127.0.0.1", 0, is_master=True, secret_file=self.secret) as master:
            master.set("key", "value")
            with TCPStore("127.0.0.1", master.port, secret_file=self.secret) as client:
                self.assertEqual(client.get("key"), b"value")
            with self.assertRaisesRegex(DistNetworkError, "secret"):
                TCPStore("127.0.0.1", master.port, timeout=0.3)

    def test_a_file_that_is_no_secret(self) -> None:
        self.secret.chmod(0o644)
        with self.assertRaisesRegex(DistStoreError, "secret"):
            StoreServer(secret_file=str(self.secret))
        with self.assertRaisesRegex(DistStoreError, "missing"):
            TCPStore("127.0.0.1", self.port, secret_file="missing")


class TestStoreInDirectory(TestTCPStore):
    def serve(self) -> int:
        self.dir = new_folder(self) / "store"
        self.server = StoreServer(dir=self.dir)
        # The test may have replaced it.
        self.addCleanup(lambda: self.server.close())
        return self.server.port

    def test_a_store_outlives_its_server(self) -> None:
        self.store.set("key", "value")
        self.assertEqual(self.store.add("sum", 5), 5)
        self.server.close()
        self.server = StoreServer(dir=str(self.dir))
        with TCPStore("127.0.0.1", self.server.port) as store:
            self.assertEqual(store.get("key"), b"value")
            self.assertEqual(store.add("sum", 2), 7)
        self.assertIsNone(self.server.journal_failure)

    def test_directories_that_cannot_be_served(self) -> None:
        with self.assertRaisesRegex(StoreJournalError, "is in use by process "):
            StoreServer(dir=self.dir)
        self.server.close()
        (self.dir / "journal.db").write_bytes(b"no database")
        with self.assertRaises(StoreJournalError):
            StoreServer(dir=self.dir)
        with self.assertRaises(OSError):
            StoreServer(dir="/proc/missing/store")

    def test_a_failed_write_ends_the_server_and_not_the_process(self) -> None:
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGXFSZ, ignored)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        total = 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
        try:
            with self.assertRaises(DistNetworkError):
                for _ in range(1000):
                    total = self.store.add("sum", 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertRegex(self.server.journal_failure or "", "cannot append to the journal")
        self.server.close()
        self.server = StoreServer(dir=self.dir)
        with TCPStore("127.0.0.1", self.server.port) as store:
            self.assertIn(store.add("sum", 0), (total, total + 1))


@needs_torch
class TestTCPStoreOnTorch(TestTCPStore):
    checks_numbers = False

    def serve(self) -> int:
        return torch_server()

    def supports(self, operation: str) -> bool:
        return torch_has(operation)

    def test_keys_of_bytes_are_the_same_in_torch(self) -> None:
        key: Any = b"a\xff\x00"
        self.store.set(key, "ours")
        script = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), wait_for_workers=False)
assert store.get(b"a\\xff\\x00") == b"ours"
store.set(b"b\\xfe", "theirs")
"""
        run_torch(script, str(self.port))
        theirs: Any = b"b\xfe"
        self.assertEqual(self.store.get(theirs), b"theirs")


class TestPrefixStore(TestTCPStore):
    def open(self) -> Store:
        return PrefixStore("outer", PrefixStore("inner", super().open()))

    def test_names(self) -> None:
        base = super().open()
        inner = PrefixStore("inner", base)
        outer = PrefixStore("outer", inner)
        outer.set("k", "v")
        self.assertEqual(base.get("inner/outer/k"), b"v")
        self.assertIs(outer.underlying_store, inner)
        self.assertIs(outer._underlying_non_prefix_store, base)
        self.assertEqual(repr(inner), f'PrefixStore("inner", {base!r})')
        with self.assertRaises(TypeError):
            PrefixStore("p", "not a store")  # type: ignore[arg-type]


class TestHashStore(contract.StoreContract):
    def open(self) -> Store:
        store = getattr(self, "store", None)
        return store.clone() if store else HashStore()


class TestFileStore(contract.StoreContract):
    has_queues = False

    def setUp(self) -> None:
        self.path = new_folder(self) / "store"
        super().setUp()

    def open(self) -> Store:
        return FileStore(self.path)

    def test_the_last_of_the_workers_removes_the_file(self) -> None:
        path = self.path.with_name("two")
        first, second = FileStore(str(path), 2), FileStore(file_name=str(path), world_size=2)
        self.assertEqual(first.path, str(path))
        first.close()
        self.assertTrue(path.exists())
        second.close()
        self.assertFalse(path.exists())

    def test_other_threads_run_while_a_store_is_dropped(self) -> None:
        path = self.path.with_name("one")
        stores = [FileStore(path, 1)]
        reference = weakref.ref(stores[0])
        with path.open() as file, ThreadPoolExecutor(1) as pool:
            # The dropped store waits for this lock, to remove the file.
            fcntl.flock(file, fcntl.LOCK_EX)
            dropped = pool.submit(stores.clear)
            until(lambda: reference() is None)
            fcntl.flock(file, fcntl.LOCK_UN)
            dropped.result(60)
        self.assertFalse(path.exists())


def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < 60, "timed out"
        time.sleep(0.001)


class TestThingsThatEnd(unittest.TestCase):
    """Features that only servers of this package have."""

    def setUp(self) -> None:
        server = StoreServer()
        self.addCleanup(server.close)
        self.owner, self.other = (TCPStore("127.0.0.1", server.port) for _ in range(2))

    def test_a_key_ends_with_its_owner(self) -> None:
        owner = PrefixStore("p", self.owner)
        self.assertIsNone(owner.set_ephemeral("leader", "first", will=("left", b"\xff")))
        self.assertEqual(self.other.set_ephemeral("p/leader", b"second"), b"first")
        self.assertTrue(owner.keep_alive(timedelta(minutes=1)))
        owner.close()
        self.assertEqual(self.other.get("p/left"), b"\xff")
        self.assertIsNone(self.other.set_ephemeral("p/leader", b"second", None))

    def test_a_key_ends_by_silence(self) -> None:
        self.assertIsNone(self.owner.set_ephemeral("k", bytearray(b"v")))
        self.assertTrue(self.owner.keep_alive(silence_max=0.001))
        until(lambda: not self.other.check(["k"]))
        self.assertFalse(self.owner.keep_alive())
        self.assertTrue(self.owner.keep_alive(None))

    def test_waits_end(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(self.owner.wait, ["p/missing"])
            until(lambda: self.other.end_waits("p/") == 1)
            with self.assertRaisesRegex(DistStoreError, "ended"):
                waits.result(60)
        self.assertEqual(self.other.end_waits(""), 0)
        self.owner.set("it stays usable", "")

    def test_a_prefix_is_deleted(self) -> None:
        for key in ("p/a", "p/b", "q"):
            self.owner.set(key, "")
        self.owner.queue_push("p/c", "")
        self.assertEqual(self.owner.delete_prefix("p/"), 3)
        self.assertEqual(self.owner.list_keys(), ["q"])
        self.assertEqual(self.owner.delete_prefix("q", delay=0.001), 0)
        until(lambda: not self.owner.check(["q"]))
        with self.assertRaises(StoreValueError):
            self.owner.delete_prefix("")

    def test_other_stores_have_none_of_it(self) -> None:
        store = HashStore()
        calls: list[Callable[[], object]] = [
            lambda: store.set_ephemeral("k", "v"),
            store.keep_alive,
            lambda: store.end_waits("k"),
            lambda: store.delete_prefix("k"),
        ]
        for call in calls:
            with self.assertRaises(StoreUnsupportedError):
                call()


class TestOpening(unittest.TestCase):
    def test_master_and_workers(self) -> None:
        port = free_port()
        with ThreadPoolExecutor(2) as pool:
            workers = [pool.submit(TCPStore, "localhost", port, 3) for _ in range(2)]
            with TCPStore("localhost", port, 3, is_master=True, timeout=timedelta(seconds=60)) as master:
                master.set("k", "v")
                for worker in workers:
                    with worker.result(60) as store:
                        self.assertEqual(store.get("k"), b"v")
                self.assertEqual((master.host, master.port), ("localhost", port))

    def test_missing_workers(self) -> None:
        with self.assertRaisesRegex(StoreTimeoutError, "1 of 2"):
            TCPStore("localhost", 0, 2, True, contract.SHORT)
        TCPStore("localhost", 0, 2, True, contract.SHORT, wait_for_workers=False).close()

    def test_no_server(self) -> None:
        port = free_port()
        with self.assertRaisesRegex(DistNetworkError, str(port)):
            TCPStore("127.0.0.1", port, timeout=timedelta(seconds=0.3))

    def test_address_in_use(self) -> None:
        with StoreServer() as server:
            with self.assertRaisesRegex(DistNetworkError, "in use"):
                TCPStore("127.0.0.1", server.port, is_master=True)

    def test_a_master_is_a_client_of_its_launchers_store(self) -> None:
        with StoreServer() as server:
            port = str(server.port)
            for flag, named in (("True", "1"), ("0", port), ("", port)):
                with patch.dict(os.environ, TORCHELASTIC_USE_AGENT_STORE=flag, MASTER_PORT=named):
                    with self.assertRaisesRegex(DistNetworkError, "in use"):
                        TCPStore("127.0.0.1", server.port, is_master=True)
            for flag in ("True", "1"):
                with patch.dict(os.environ, TORCHELASTIC_USE_AGENT_STORE=flag, MASTER_PORT=port):
                    with TCPStore("127.0.0.1", server.port, is_master=True) as store:
                        store.add("n", 1)
                        self.assertEqual(store.port, server.port)
                        self.assertNotIn("is_master", repr(store))
            self.assertEqual(TCPStore("127.0.0.1", server.port).get("n"), b"2")

    def test_multi_tenant(self) -> None:
        port = free_port()
        with TCPStore("127.0.0.1", port, is_master=True, multi_tenant=True) as first:
            with TCPStore("127.0.0.1", first.port, is_master=True, multi_tenant=True) as second:
                first.set("k", "v")
                self.assertEqual(second.get("k"), b"v")
            first.set("still", "served")

    def test_a_name_that_is_not_known(self) -> None:
        for multi_tenant in (False, True):
            with self.assertRaisesRegex(DistNetworkError, "look up does-not-exist.invalid"):
                TCPStore("does-not-exist.invalid", 0, is_master=True, timeout=0.3, multi_tenant=multi_tenant)

    def test_listening_on_all_interfaces_is_a_warning(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for quiet in ("localhost", "127.0.0.1", "0.0.0.0", "::"):
                TCPStore(quiet, 0, is_master=True).close()
            listener = socket.create_server(("", 0))
            port = listener.getsockname()[1]
            TCPStore("127.0.0.1", port, is_master=True, master_listen_fd=listener.detach()).close()
            self.assertEqual(caught, [])
            # It resolves, but no machine has it (RFC 5737).
            TCPStore("192.0.2.1", 0, is_master=True).close()
            (warning,) = caught
        self.assertEqual((warning.category, warning.filename), (RuntimeWarning, __file__))
        self.assertRegex(str(warning.message), "listens on all interfaces, because 192.0.2.1")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with self.assertRaisesRegex(RuntimeWarning, "all interfaces"):
                TCPStore("192.0.2.1", 0, is_master=True)

    def test_listening_socket(self) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.listen()
        with TCPStore("127.0.0.1", port, is_master=True, master_listen_fd=listener.detach()) as store:
            self.assertEqual(TCPStore("127.0.0.1", port).add("n", 1), 1)
            self.assertEqual(store.port, port)
        with self.assertRaisesRegex(ValueError, "master_listen_fd"):
            TCPStore("127.0.0.1", 0, is_master=True, master_listen_fd=100_000)

    def test_world_sizes(self) -> None:
        with self.assertRaises(ValueError):
            TCPStore("localhost", 0, 0, True)
        TCPStore("localhost", 0, -1, True).close()
        for port in (-1, 70_000):
            with self.assertRaises(OverflowError):
                TCPStore("localhost", port)

    def test_the_end_of_the_server(self) -> None:
        server = StoreServer()
        store = TCPStore("127.0.0.1", server.port)
        self.assertEqual(server.connection_count, 1)
        server.close()
        with self.assertRaises(DistNetworkError):
            store.get("k")
        self.assertEqual(server.connection_count, 0)
        self.assertIn("closed", repr(server))
        with self.assertRaisesRegex(TypeError, "cannot pickle"):
            pickle.dumps(server)

    def test_subclasses(self) -> None:
        class Mixin:
            def count(self: Any, key: str) -> int:
                value: int = self.add(key, 1)
                return value

        class Counted(Mixin, TCPStore):
            def __init__(self, *arguments: Any, name: str) -> None:
                super().__init__(*arguments)
                self.name = name

        class Late(HashStore):
            def __init__(self) -> None:
                pass

        with StoreServer() as server, Counted("127.0.0.1", server.port, name="a") as store:
            self.assertEqual((store.count("n"), store.name, store.libuvBackend), (1, "a", True))
            self.assertEqual(PrefixStore("p", store).underlying_store, store)
            self.assertIsInstance(store.clone(), TCPStore)
            with self.assertRaisesRegex(RuntimeError, "called twice"):
                TCPStore.__init__(store, "127.0.0.1", server.port)
        with self.assertRaisesRegex(RuntimeError, "super.*__init__"):
            Late().set("k", "v")
        self.assertFalse(TCPStore("127.0.0.1", 0, is_master=True, use_libuv=False).libuvBackend)

    def test_arguments_that_lie(self) -> None:
        class Long(list[Any]):
            def __len__(self) -> int:
                return sys.maxsize

        store = HashStore()
        store.multi_set(Long(["a", "b"]), Long([b"1", "2"]))
        self.assertEqual(store.multi_get(Long(["a", "b"])), [b"1", b"2"])
        for text in ("ab", b"ab"):
            for call in (store.wait, store.check, store.multi_get):
                with self.assertRaisesRegex(TypeError, "keys are a list of str, not"):
                    call(text)  # type: ignore[arg-type]
            with self.assertRaisesRegex(TypeError, "values are a list of bytes or str, not"):
                store.multi_set(["a", "b"], text)  # type: ignore[arg-type]

    def test_nested_prefixes(self) -> None:
        store: Store = HashStore()
        with self.assertRaisesRegex(DistStoreError, "limit of 100|100"):
            for _ in range(100_000):
                store = PrefixStore("p", store)
        store.set("k", "v")
        self.assertEqual(store.get("k"), b"v")

    def test_the_base_class(self) -> None:
        with self.assertRaises(TypeError):
            Store()
        for kind in (TCPStore, FileStore, HashStore, PrefixStore):
            self.assertTrue(issubclass(kind, Store))
        self.assertTrue(issubclass(DistError, RuntimeError))
        self.assertEqual(sorted(c10d_rs.__all__), c10d_rs.__all__)

    def test_the_version_is_that_of_the_installed_package(self) -> None:
        self.assertEqual(c10d_rs.__version__, importlib.metadata.version("c10d-rs"))

    def test_weak_references(self) -> None:
        with StoreServer() as server:
            base = HashStore()
            objects: list[Any] = [
                TCPStore("127.0.0.1", server.port),
                FileStore(new_folder(self) / "store"),
                HashStore(),
                PrefixStore("p", base),
                base.clone(),
                StoreServer(),
                Group.join(HashStore(), 0, 1),
            ]
            references = [weakref.ref(it) for it in objects]
            self.assertEqual([reference() for reference in references], objects)
            objects.clear()
            self.assertEqual([reference() for reference in references], [None] * len(references))


if __name__ == "__main__":
    unittest.main()
