"""The contract that every store keeps, as PyTorch's own tests check it (test/distributed/test_store.py)."""

import copy
import math
import pickle
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from c10d_rs import (
    DistError,
    DistNetworkError,
    DistStoreError,
    QueueEmptyError,
    Store,
    StoreTimeoutError,
    StoreUnsupportedError,
    StoreValueError,
)

SHORT = timedelta(milliseconds=50)


class StoreContract(unittest.TestCase):
    """The tests of every kind of store. A subclass opens it."""

    has_queues = True
    # PyTorch's server closes the connection on an addition to a value that is not a number.
    checks_numbers = True

    def supports(self, operation: str) -> bool:
        """Return whether the server has the operation; older servers of PyTorch lack some."""
        return True

    def open(self) -> Store:
        """Open a handle of the store under test."""
        raise NotImplementedError

    def setUp(self) -> None:
        self.store = self.open()

    def test_set_get_check(self) -> None:
        store = self.store
        store.set("text", "héllo")
        store.set("bytes", b"\x00\xff")
        store.set("array", bytearray(b"xyz"))
        store.set("empty", "")
        store.set("not a number", str(math.nan))
        self.assertEqual(store.get("text"), "héllo".encode())
        self.assertEqual(store.get("bytes"), b"\x00\xff")
        self.assertEqual(store.get("array"), b"xyz")
        self.assertEqual(store.get("empty"), b"")
        self.assertTrue(math.isnan(float(store.get("not a number"))))
        store.set("text", "replaced")
        self.assertEqual(store.get("text"), b"replaced")
        self.assertTrue(store.check(["text", "bytes"]))
        self.assertFalse(store.check(["text", "missing"]))
        self.assertTrue(store.check([]))
        self.assertIsNone(store.try_get("missing"))
        self.assertEqual(store.try_get("empty"), b"")

    def test_add(self) -> None:
        store = self.store
        self.assertEqual(store.add("n", 5), 5)
        self.assertEqual(store.add("n", -7), -2)
        self.assertEqual(store.get("n"), b"-2")
        store.set("n", "40")
        self.assertEqual(store.add(key="n", value=2), 42)
        with self.assertRaises(OverflowError):
            store.add("n", 2**63)
        if self.checks_numbers:
            store.set("word", "seven")
            with self.assertRaises(StoreValueError) as caught:
                store.add("word", 1)
            self.assertIsInstance(caught.exception, ValueError)
            self.assertEqual(store.get("word"), b"seven")

    def test_compare_set(self) -> None:
        store = self.store
        self.assertEqual(store.compare_set("c", "unexpected", "x"), b"unexpected")
        self.assertFalse(store.check(["c"]))
        self.assertEqual(store.compare_set("c", "", "first"), b"first")
        self.assertEqual(store.compare_set("c", "wrong", "second"), b"first")
        self.assertEqual(store.compare_set("c", b"first", b"second"), b"second")
        self.assertEqual(store.get("c"), b"second")

    def test_keys(self) -> None:
        store = self.store
        before = store.num_keys()
        store.set("a", "1")
        store.set("b", "2")
        self.assertEqual(store.num_keys(), before + 2)
        if self.supports("list_keys"):
            self.assertLessEqual({"a", "b"}, set(store.list_keys()))
        self.assertTrue(store.delete_key("a"))
        self.assertFalse(store.delete_key("a"))
        self.assertEqual(store.num_keys(), before + 1)
        if self.supports("list_keys"):
            self.assertNotIn("a", store.list_keys())
        self.assertFalse(store.check(["a"]))

    def test_keys_of_bytes(self) -> None:
        store = self.store
        # They are typed as text, like in PyTorch, which also takes bytes.
        keys: list[Any] = [b"not text \xff\x00", b"\xf4\x8f\xbf\xbf", "text é"]
        for number, key in enumerate(keys):
            store.set(key, str(number))
        store.wait(keys)
        self.assertEqual(store.multi_get(keys), [b"0", b"1", b"2"])
        self.assertEqual(store.get("text é".encode()), b"2")  # type: ignore[arg-type]
        if self.supports("list_keys"):
            listed = [store.get(key) for key in store.list_keys()]
            self.assertLessEqual({b"0", b"1", b"2"}, set(listed))
        self.assertTrue(store.delete_key(keys[0]))
        self.assertFalse(store.check(keys[:1]))

    def test_wait(self) -> None:
        store, writer = self.store, self.open()
        started = time.monotonic()
        with self.assertRaises(StoreTimeoutError) as caught:
            store.wait(["missing"], SHORT)
        self.assertGreaterEqual(time.monotonic() - started, SHORT.total_seconds())
        self.assertIsInstance(caught.exception, DistStoreError)
        self.assertIsInstance(caught.exception, TimeoutError)
        self.assertIn("missing", str(caught.exception))
        with self.assertRaises(StoreTimeoutError):
            store.wait(["missing"], 0)

        thread = threading.Timer(0.05, writer.multi_set, (["one", "two"], ["1", "2"]))
        thread.start()
        store.wait(["one", "two"], timedelta(seconds=60))
        self.assertEqual(store.get("two"), b"2")
        thread.join()

    def test_timeout(self) -> None:
        store = self.store
        self.assertEqual(store.timeout, timedelta(seconds=300))
        store.set_timeout(SHORT)
        self.assertEqual(store.timeout, SHORT)
        for call in (store.get, lambda key: store.multi_get([key]), lambda key: store.wait([key])):
            with self.assertRaises(DistStoreError):
                call("missing")
        store.set_timeout(1.5)
        self.assertEqual(store.timeout, timedelta(seconds=1.5))
        for bad in (-1, math.nan):
            with self.assertRaises(ValueError):
                store.set_timeout(bad)

    def test_append_and_multi(self) -> None:
        store = self.store
        self.assertTrue(store.has_extended_api())
        store.append("a", "x")
        store.append("a", b"yz")
        self.assertEqual(store.get("a"), b"xyz")
        store.multi_set(["k1", "k2"], ["v1", b"v2"])
        self.assertEqual(store.multi_get(["k2", "k1"]), [b"v2", b"v1"])
        self.assertEqual(store.multi_get([]), [])
        with self.assertRaises(DistStoreError):
            store.multi_set(["k1", "k2"], ["v1"])

    def test_queues(self) -> None:
        store, other = self.store, self.open()
        if not self.has_queues:
            with self.assertRaises(StoreUnsupportedError) as caught:
                store.queue_push("q", "1")
            self.assertIsInstance(caught.exception, NotImplementedError)
            return
        self.assertEqual(store.queue_len("q"), 0)
        with self.assertRaises(QueueEmptyError):
            store.queue_pop("q", block=False)
        store.queue_push("q", "1")
        store.queue_push("q", b"2")
        self.assertEqual(store.queue_len("q"), 2)
        self.assertEqual(store.queue_pop("q"), b"1")
        self.assertEqual(store.queue_pop("q", False), b"2")
        store.set_timeout(SHORT)
        with self.assertRaises(StoreTimeoutError):
            store.queue_pop("q")

        store.set_timeout(60)
        with ThreadPoolExecutor(1) as pool:  # there and back, each side waiting for the other
            def answer() -> None:
                for _ in range(10):
                    other.queue_push("back", other.queue_pop("there"))

            answering = pool.submit(answer)
            for number in range(10):
                store.queue_push("there", str(number))
                self.assertEqual(store.queue_pop("back"), str(number).encode())
            answering.result(60)

    def test_barrier(self) -> None:
        store, other = self.store, self.open()
        if not self.supports("barrier"):
            with self.assertRaises(DistNetworkError):
                store.barrier("both", 2)
            return
        with ThreadPoolExecutor(1) as pool:
            arrival = pool.submit(other.barrier, "both", 2)
            store.barrier("both", 2)
            arrival.result(60)
        with self.assertRaises(StoreTimeoutError) as caught:
            store.barrier(key="alone", world_size=2, timeout=SHORT)
        self.assertIn("alone", str(caught.exception))
        # Arrivals are counted at the key or, by stores without a command for it, below the key.
        store.set("taken", "seven")
        store.set("taken/num_members", "seven")
        with self.assertRaises(StoreValueError) as refused:
            store.barrier("taken", 2)
        self.assertIn("not a number", str(refused.exception))
        store.barrier("free", 1)

    def test_clone(self) -> None:
        store = self.store
        clone = store.clone()
        self.assertIs(type(clone), type(store))
        store.set("k", "v")
        self.assertEqual(clone.get("k"), b"v")

    def test_wrong_arguments(self) -> None:
        store = self.store
        for call in (
            lambda: store.set("k", 3),  # type: ignore[arg-type]
            lambda: store.set(3, "v"),  # type: ignore[arg-type]
            lambda: store.wait("k", SHORT),  # type: ignore[arg-type]
            lambda: store.check("k"),  # type: ignore[arg-type]
            lambda: store.wait(["k"], "soon"),  # type: ignore[arg-type]
            lambda: store.set_timeout(None),  # type: ignore[arg-type]
        ):
            with self.assertRaises(TypeError):
                call()

    def test_close(self) -> None:
        with self.store as store:
            self.assertIs(store, self.store)
            store.set("k", "v")
        for call in (lambda: store.get("k"), lambda: store.set("k", "v"), store.clone, store.__enter__):
            with self.assertRaises(DistError):
                call()
        store.close()
        self.assertIn("closed", repr(store))

    def test_no_pickle(self) -> None:
        for refused in (pickle.dumps, copy.copy, copy.deepcopy):
            with self.assertRaisesRegex(TypeError, "cannot pickle"):
                refused(self.store)
