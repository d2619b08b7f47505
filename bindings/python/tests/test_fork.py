"""A forked child neither uses nor closes the stores of its parent."""

import gc
import os
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

from c10d_rs import FileStore, HashStore, PrefixStore, Store, StoreServer, TCPStore


def in_child(work: Callable[[], None]) -> int:
    """Run work in a forked child, and return its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Fork(unittest.TestCase):
    def test_every_store(self) -> None:
        with tempfile.TemporaryDirectory() as folder, StoreServer() as server:
            master = TCPStore("127.0.0.1", 0, is_master=True)
            client = TCPStore("127.0.0.1", server.port)
            stores: list[Store] = [
                master,
                client,
                PrefixStore("p", client),
                FileStore(Path(folder) / "store", 1),
                HashStore(),
            ]
            # A helper thread exists, which the child does not have.
            with self.assertRaises(TimeoutError):
                client.barrier("alone", 2, 0.05)

            def child() -> None:
                nonlocal master, client
                for store in stores:
                    for call in (lambda: store.set("k", "child"), lambda: store.get("k"), store.close):
                        with self.assertRaisesRegex(RuntimeError, f"forked child {os.getpid()}"):
                            call()
                    repr(store)
                with self.assertRaisesRegex(RuntimeError, "forked child"):
                    server.close()
                # Its own connection works, including for calls that wait.
                with TCPStore("127.0.0.1", server.port) as own:
                    own.set("from the child", "x")
                    with self.assertRaises(TimeoutError):
                        own.barrier("alone too", 2, 0.05)
                # The parent's stores are dropped, not ended.
                stores.clear()
                del master, client
                gc.collect()

            self.assertEqual(in_child(child), 0)
            for store in stores:
                store.set("k", "parent")
                self.assertEqual(store.get("k"), b"parent")
            self.assertEqual(client.get("from the child"), b"x")
            self.assertEqual(server.connection_count, 1)


if __name__ == "__main__":
    unittest.main()
