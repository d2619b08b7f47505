#!/usr/bin/env python3
"""Measures how soon the nodes of PyTorch's rendezvous have met, as `c10d-bench rendezvous` does for ours.

    python c10d-bench/scripts/rendezvous.py --nodes 8,128

Needs a Python that has torch. Each node is a handler in a thread of its own with a connection of its own; all begin together, and
the time is that of the last one. The store is PyTorch's. Prints a row of a Markdown table for each number of nodes.
"""

import argparse
import datetime
import os
import threading
import time

# A line for each connection, without a name for 127.0.0.1.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

TIMEOUT = datetime.timedelta(minutes=10)


def meet(nodes: int) -> float:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    begin, end = threading.Barrier(nodes + 1), threading.Barrier(nodes + 1)
    failed = []

    def node() -> None:
        store = TCPStore("127.0.0.1", server.port, is_master=False, timeout=TIMEOUT)
        backend = C10dRendezvousBackend(store, "job")
        handler = DynamicRendezvousHandler.from_backend("job", store, backend, nodes, nodes, local_addr="127.0.0.1")
        begin.wait()
        try:
            handler.next_rendezvous()
        except Exception as error:
            failed.append(error)
        end.wait()
        handler.shutdown()

    threads = [threading.Thread(target=node, daemon=True) for _ in range(nodes)]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.monotonic()
    end.wait()
    took = time.monotonic() - began
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="8,128", help="numbers of nodes, separated by commas (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured; the table has all (%(default)s)")
    arguments = parser.parse_args()
    print("| nodes | time, s |\n|---|---|")
    for nodes in map(int, arguments.nodes.split(",")):
        times = sorted(meet(nodes) for _ in range(arguments.rounds))
        print(f"| {nodes} | {', '.join(f'{took:.2f}' for took in times)} |", flush=True)


if __name__ == "__main__":
    main()
