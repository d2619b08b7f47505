#!/usr/bin/env python3
"""PyTorch's client for `c10d conform client -- python examples/conform_client.py`.

The README of c10d-conform has the operations. For a client of your own, replace `perform`.
"""
import os
import sys
from datetime import timedelta

from torch.distributed import DistStoreError, TCPStore


def perform(store, name, arguments):
    if name in ("wait", "barrier"):
        timeout = timedelta(milliseconds=int(arguments.pop(0)))
        try:
            if name == "wait":
                store.wait(arguments, timeout)
            else:
                store.barrier(arguments[0], int(arguments[1]), timeout)
        except DistStoreError as error:
            return "timeout" if "timeout" in str(error).lower() else f"error {error}"
        return None
    if name in ("check", "multi_get"):
        return getattr(store, name)(arguments)
    if name == "multi_set":
        return store.multi_set(arguments[::2], arguments[1::2])
    if name == "add":
        arguments[1] = int(arguments[1])
    name = {"delete": "delete_key"}.get(name, name)
    return getattr(store, name)(*arguments)


def text(result):
    if result is None:
        return "ok"
    if isinstance(result, bool):
        return str(result).lower()
    if isinstance(result, list):
        return " ".join(map(text, result))
    return (result.decode() if isinstance(result, bytes) else str(result)) or '""'


store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
print("ready", flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    try:
        answer = text(perform(store, name, ["" if it == '""' else it for it in arguments]))
    except (AttributeError, NotImplementedError):
        answer = "unsupported"
    except Exception as error:
        answer = "error " + str(error).splitlines()[0]
    print(answer, flush=True)
