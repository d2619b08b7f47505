"""Opens PyTorch stores and runs operations on them, as requested on standard input.

Reads one JSON object per line from standard input, and replies with one per line on standard output:

    {"id": 1, "thread": "a", "op": "open", "store": "a", "kind": "tcp", "host": "127.0.0.1", "port": 29500}
    {"id": 1, "value": {"port": 29500}, "elapsed": 0.002}

    {"id": 2, "thread": "a", "op": "get", "store": "a", "key": "k"}
    {"id": 2, "error": "DistStoreError", "bases": ["DistError", "RuntimeError"], "message": "...", "elapsed": 0.3}

Each name in "thread" has its own thread, which runs its operations in order, so several operations can block at the
same time. Values are hexadecimal. The process exits when standard input ends.
"""

import gc
import json
import os
import queue
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

stores = {}
threads = {}
output_lock = threading.Lock()


def milliseconds(value):
    return timedelta(milliseconds=value)


def open_store(r):
    kind = r["kind"]
    if kind == "tcp":
        options = {}
        if r.get("timeout_ms") is not None:
            options["timeout"] = milliseconds(r["timeout_ms"])
        for name in ("world_size", "is_master", "wait_for_workers", "multi_tenant", "use_libuv"):
            if r.get(name) is not None:
                options[name] = r[name]
        store = dist.TCPStore(r["host"], r["port"], **options)
        stores[r["store"]] = store
        return {"port": store.port, "uv": store.libuvBackend}
    if kind == "file":
        store = dist.FileStore(r["path"], r.get("world_size", -1))
    elif kind == "hash":
        store = dist.HashStore()
    elif kind == "prefix":
        store = dist.PrefixStore(r["prefix"], stores[r["base"]])
    elif kind == "clone":
        store = stores[r["base"]].clone()
    else:
        raise ValueError(f"unknown kind of store: {kind}")
    if r.get("timeout_ms") is not None:
        store.set_timeout(milliseconds(r["timeout_ms"]))
    stores[r["store"]] = store
    return {}


def close_store(r):
    del stores[r["store"]]
    gc.collect()


def queue_pop(store, r):
    # Older bindings do not accept the argument, so the default omits it.
    return store.queue_pop(r["key"]) if r["block"] else store.queue_pop(r["key"], False)


def barrier(store, r):
    if r.get("timeout_ms") is None:
        return store.barrier(r["key"], r["world_size"])
    return store.barrier(r["key"], r["world_size"], milliseconds(r["timeout_ms"]))


def wait(store, r):
    if r.get("timeout_ms") is None:
        return store.wait(r["keys"])
    return store.wait(r["keys"], milliseconds(r["timeout_ms"]))


def add_many(store, r):
    """Runs many additions in one request, and returns the last sum."""
    total = None
    for _ in range(r["times"]):
        total = store.add(r["key"], r["delta"])
    return total


OPERATIONS = {
    "set": lambda s, r: s.set(r["key"], bytes.fromhex(r["value"])),
    "get": lambda s, r: s.get(r["key"]),
    "add": lambda s, r: s.add(r["key"], r["delta"]),
    "add_many": add_many,
    "compare_set": lambda s, r: s.compare_set(
        r["key"], bytes.fromhex(r["expected"]), bytes.fromhex(r["desired"])
    ),
    "check": lambda s, r: s.check(r["keys"]),
    "wait": wait,
    "delete_key": lambda s, r: s.delete_key(r["key"]),
    "num_keys": lambda s, r: s.num_keys(),
    "append": lambda s, r: s.append(r["key"], bytes.fromhex(r["value"])),
    "multi_get": lambda s, r: s.multi_get(r["keys"]),
    "multi_set": lambda s, r: s.multi_set(r["keys"], [bytes.fromhex(v) for v in r["values"]]),
    "queue_push": lambda s, r: s.queue_push(r["key"], bytes.fromhex(r["value"])),
    "queue_pop": queue_pop,
    "queue_len": lambda s, r: s.queue_len(r["key"]),
    "list_keys": lambda s, r: s.list_keys(),
    "barrier": barrier,
    "timeout": lambda s, r: round(s.timeout.total_seconds() * 1000),
    "set_timeout": lambda s, r: s.set_timeout(milliseconds(r["timeout_ms"])),
    "has_extended_api": lambda s, r: s.has_extended_api(),
}


def run(r):
    op = r["op"]
    if op == "open":
        return open_store(r)
    if op == "close":
        return close_store(r)
    return OPERATIONS[op](stores[r["store"]], r)


def to_json(value):
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def answer(reply):
    line = json.dumps(reply)
    with output_lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def work(requests):
    while True:
        r = requests.get()
        started = time.monotonic()
        try:
            reply = {"value": to_json(run(r))}
        except Exception as error:
            reply = {
                "error": type(error).__name__,
                "bases": [c.__name__ for c in type(error).__mro__[1:]],
                "message": str(error),
            }
        reply["id"] = r["id"]
        reply["elapsed"] = time.monotonic() - started
        del r
        answer(reply)


def main():
    answer({"id": 0, "value": torch.__version__, "elapsed": 0.0})
    for line in sys.stdin:
        r = json.loads(line)
        name = r["thread"]
        if name not in threads:
            threads[name] = queue.SimpleQueue()
            threading.Thread(target=work, args=(threads[name],), name=name, daemon=True).start()
        threads[name].put(r)
    # Exits even if threads are still blocked.
    os._exit(0)


main()
