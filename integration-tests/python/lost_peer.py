"""A worker whose peers notice its end at once: each rank has a connection to rank 0, and fails when one closes.

Writes `attempt.PID` into the folder of C10D_TEST_FOLDER when all ranks are connected. A rank that is alone exits when the file
`stop` exists.
"""

import json
import os
import select
import socket
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["C10D_TEST_FOLDER"])
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT_SECONDS = 120


def write(name, value):
    temporary = FOLDER / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps(value))
    temporary.rename(FOLDER / name)


def connect():
    """The connection to rank 0, which may belong to an earlier round: it names the size of its world."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        try:
            port = json.loads((FOLDER / "port").read_text())
            peer = socket.create_connection(("127.0.0.1", port), timeout=5)
            peer.sendall(b"%04d" % RANK)
            if peer.recv(4) == b"%04d" % WORLD_SIZE:
                peer.settimeout(None)
                return peer
        except (OSError, ValueError):
            pass
        time.sleep(0.02)
    sys.exit("rank 0 does not answer")


def peers():
    if RANK > 0:
        return [connect()]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_SECONDS)
        write("port", server.getsockname()[1])
        accepted = {}
        while len(accepted) < WORLD_SIZE - 1:
            peer, _ = server.accept()
            rank = peer.recv(4)
            peer.sendall(b"%04d" % WORLD_SIZE)
            accepted[rank] = peer
        return list(accepted.values())


def main():
    connected = peers()
    write(
        f"attempt.{os.getpid()}",
        {
            "pid": os.getpid(),
            "rank": RANK,
            "world_size": WORLD_SIZE,
            "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
            "at": time.time(),
        },
    )
    while not (FOLDER / "stop").exists():
        is_closed = select.select(connected, [], [], 0.05)[0]
        if is_closed and not (FOLDER / "stop").exists():
            sys.exit("the connection to a peer has closed")


main()
