"""Stores below PyTorch's stores, and exceptions that are also PyTorch's."""

import subprocess
import sys
import unittest

from nodes import needs_torch_here
from servers import new_folder

EXCEPTIONS = """
import pickle
import c10d_rs

def wait():
    c10d_rs.HashStore().wait(["missing"], 0)

try:
    wait()
except c10d_rs.DistStoreError as error:
    early = error
import torch.distributed as dist
assert not isinstance(early, dist.DistStoreError)
try:
    wait()
except dist.DistStoreError as error:
    assert isinstance(error, c10d_rs.StoreTimeoutError) and isinstance(error, TimeoutError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)
for ours, theirs in (
    ("QueueEmptyError", getattr(dist, "QueueEmptyError", dist.DistStoreError)),
    ("StoreValueError", dist.DistStoreError),
    ("DistNetworkError", dist.DistNetworkError),
    ("MissingRanksError", dist.DistError),
):
    combined = c10d_rs._errors.class_of(ours)
    assert issubclass(combined, theirs) and issubclass(combined, getattr(c10d_rs, ours)), ours
"""

# Every operation of PyTorch's stores, on both a store of this package and PyTorch's, bare and below one and two PrefixStores.
OPERATIONS = """
import datetime, gc, sys
import torch.distributed as dist
import c10d_rs, c10d_rs.torch

MS = datetime.timedelta(milliseconds=1)
CALLS = {
    "set": [("key", "text"), ("key", b"\\xff"), ("empty", "")],
    "get": [("key",), ("empty",)],
    "add": [("n", 5), ("n", -7)],
    "check": [(["key", "n"],), (["key", "missing"],), ([],)],
    "compare_set": [("c", "unexpected", "x"), ("c", "", "first"), ("c", "first", b"\\xfe"), ("c", "wrong", "y")],
    "wait": [(["key", "n"],), (["key"], 1000 * MS), (["missing"], MS)],
    "append": [("a", "x"), ("a", b"\\xff")],
    "multi_set": [(["k1", "k2"], ["v1", "v2"])],
    "multi_get": [(["k2", "a", "c"],)],
    "num_keys": [()],
    "delete_key": [("key",), ("key",)],
    "has_extended_api": [()],
    "barrier": [("b", 1), ("b2", 2, MS)],
    "queue_push": [("q", "1"), ("q", b"\\xff")],
    "queue_len": [("q",), ("none",)],
    "queue_pop": [("q",), ("q", True), ("q", False)],
    "list_keys": [()],
    "set_timeout": [(20 * MS,)],
    "timeout": [()],
}
# PyTorch's C++ code does not pass these on to a store that is written in Python.
NOT_PASSED_ON = {"queue_push", "queue_len", "queue_pop", "list_keys"}

def outcome(store, name, arguments):
    try:
        attribute = getattr(store, name)
        value = attribute(*arguments) if callable(attribute) else attribute
    except Exception as error:
        for kind in (getattr(dist, "QueueEmptyError", None), dist.DistStoreError, NotImplementedError):
            if kind and isinstance(error, kind):
                return kind.__name__
        raise
    return sorted(value) if name == "list_keys" else value

def outcomes(store):
    results = []
    for name, calls in CALLS.items():
        if hasattr(dist.Store, name):
            results += [(name, arguments, outcome(store, name, arguments)) for arguments in calls]
    # The new timeout holds for the calls that wait, and for a clone.
    results += [(name, "late", outcome(store, name, arguments)) for name, arguments in (
        ("get", ("missing",)), ("wait", (["missing"],)), ("multi_get", (["missing"],)))]
    if hasattr(dist.Store, "clone"):
        clone = store.clone()
        gc.collect()
        clone.set("of a clone", "1")
        results.append(("clone", (), (store.get("of a clone"), clone.timeout)))
    return results

assert {name for name in dir(dist.Store) if not name.startswith("_")} <= {*CALLS, "clone"}
for depth in range(3):
    server = c10d_rs.StoreServer()
    ours = c10d_rs.torch.Store(c10d_rs.TCPStore("127.0.0.1", server.port))
    theirs = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for level in range(depth):
        ours, theirs = (dist.PrefixStore(f"p{level}", store) for store in (ours, theirs))
        gc.collect()
    for mine, other in zip(outcomes(ours), outcomes(theirs), strict=True):
        if depth and mine[0] in NOT_PASSED_ON:
            assert mine[2] == "NotImplementedError", mine
        else:
            assert mine == other, (depth, mine, other)
"""

# PyTorch's own tests recognize errors by these words.
WORDS = """
import datetime, os, re, socket
import torch.distributed as dist
import c10d_rs
from c10d_rs import FileStore, HashStore, PrefixStore, TCPStore

def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert re.search(words, str(error)), (words, str(error))
    else:
        raise AssertionError(f"no {kind.__name__}: {words}")

SHORT = datetime.timedelta(milliseconds=100)
tcp = TCPStore("127.0.0.1", 0, is_master=True)
stores = [tcp, PrefixStore("p", tcp), HashStore(), FileStore("store", 1)]
for store in stores:
    raises(RuntimeError, "[t -i]imeout", lambda: store.wait(["bad_key"], SHORT))
    raises(RuntimeError, "timeout after 100ms", lambda: store.barrier("b", 2, SHORT))
    store.set_timeout(SHORT)
    raises(dist.DistStoreError, "timeout", lambda: store.get("bad_key"))
    raises(dist.DistStoreError, "timeout", lambda: store.multi_get(["bad_key"]))
for store in stores[:3]:
    raises(dist.DistStoreError, "timeout", lambda: store.queue_pop("none"))
    raises(getattr(dist, "QueueEmptyError", dist.DistStoreError), "empty", lambda: store.queue_pop("none", block=False))
raises(dist.DistStoreError, "wait timeout after 100ms, keys: /the key", lambda: tcp.get("the key"))
raises(dist.DistStoreError, "wait timeout after 100ms, keys: /a", lambda: tcp.wait(["a"]))
raises(dist.DistStoreError, "timeout after 100ms, keys: k", lambda: stores[2].get("k"))
raises(dist.DistStoreError, "keys: /p/k", lambda: stores[1].get("k"))
raises(
    dist.DistNetworkError,
    f"^The server socket has failed to listen on any local network address.*{tcp.port}.*Address already in use",
    lambda: TCPStore("127.0.0.1", tcp.port, is_master=True),
)
raises(
    dist.DistStoreError,
    r"Timed out after \\d+ seconds waiting for clients. \\d+/\\d+ clients joined.",
    lambda: TCPStore("localhost", 0, 2, True, SHORT),
)
raises(ValueError, "TCPStore world size cannot be 0", lambda: TCPStore("localhost", 0, world_size=0))
raises(ValueError, "store argument cannot be None", lambda: PrefixStore("p", None))
raises(
    dist.DistNetworkError,
    "client socket has timed out after.*does-not-exist.invalid",
    lambda: TCPStore("does-not-exist.invalid", 23456, timeout=SHORT),
)
"""


@needs_torch_here
class WithTorch(unittest.TestCase):
    def test_exceptions(self) -> None:
        subprocess.run([sys.executable, "-c", EXCEPTIONS], check=True, timeout=300)

    def test_every_operation_below_prefixes(self) -> None:
        subprocess.run([sys.executable, "-c", OPERATIONS], check=True, timeout=300)

    def test_words_of_errors(self) -> None:
        subprocess.run([sys.executable, "-c", WORDS], check=True, timeout=300, cwd=new_folder(self))


if __name__ == "__main__":
    unittest.main()
