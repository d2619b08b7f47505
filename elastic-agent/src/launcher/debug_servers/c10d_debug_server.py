"""Starts PyTorch's worker debug server in each worker of `c10d run --debug-server`.

The launcher puts the directory of this file on PYTHONPATH. `import torch` calls start(), as an entry point of
the group torch.backends (PyTorch 2.5 and later). Whatever fails here must not fail the worker.
"""

import os

_is_started = False


def start():
    global _is_started
    path = os.environ.get("C10D_DEBUG_SOCKET")
    if not path or _is_started or _is_served(path):
        return
    try:
        import ctypes

        from torch._C._distributed_c10d import _WorkerServer

        server = _WorkerServer(path)
        # Never destroyed: a forked child that ends in order would shut down the listening socket that it
        # shares with this process, and PyTorch would abort this process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
        _is_started = True
    except Exception:
        # PyTorch without distributed, or another process of this worker was faster.
        pass


def _is_served(path):
    """Whether another process of this worker serves there. Removes what a process that ended has left."""
    try:
        if not os.path.exists(path):
            return False
        import socket

        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(path)
                return True
            except ConnectionRefusedError:
                os.unlink(path)
                return False
    except Exception:
        return True
