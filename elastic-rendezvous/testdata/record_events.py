"""Records the events of PyTorch's dynamic rendezvous handlers as `recorded_events.jsonl`.

Run it with a Python that has PyTorch 2.15, the output is the recording:

    python record_events.py > recorded_events.jsonl

One line per node of a history. `tests/it/recorded_events.rs` drives this crate's handlers through the
same histories.
"""

import json
import logging
import re
import threading
import time
from datetime import timedelta

from torch.distributed import HashStore
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d

EVENTS = []


class Recorder(logging.Handler):
    def emit(self, record):
        EVENTS.append(json.loads(record.getMessage()))


# Before the first event: the logger keeps the handler that it finds then.
handlers._log_handlers["dynamic_rendezvous"] = Recorder()
# Removed nodes are recorded at this level only.
dynamic.logger.setLevel(logging.DEBUG)
dynamic.logger.propagate = False
dynamic.logger.addHandler(logging.NullHandler())


class Backend(c10d.C10dRendezvousBackend):
    """Reports one write conflict, or fails, on request."""

    loses_a_write = False
    is_broken = False

    def get_state(self):
        if self.is_broken:
            raise RendezvousConnectionError("broken")
        return super().get_state()

    def set_state(self, state, token=None):
        if self.loses_a_write:
            self.loses_a_write = False
            return (*self.get_state(), False)
        return super().set_state(state, token)


class Node:
    def __init__(self, store, minimum, maximum, join=60.0, last_call=0.1, interval=60, attempts=3, handler=None):
        self.backend = Backend(store, "job")
        timeouts = dynamic.RendezvousTimeout(
            join=timedelta(seconds=join), last_call=timedelta(seconds=last_call)
        )
        self.handler = handler or dynamic.DynamicRendezvousHandler.from_backend(
            "job", store, self.backend, minimum, maximum, "127.0.0.1", timeouts, interval, attempts
        )
        self.id = self.handler._this_node.local_id
        self.thread = None

    def start(self):
        self.thread = threading.Thread(target=self.join)
        self.thread.start()
        return self

    def join(self):
        try:
            self.handler.next_rendezvous()
        except Exception:
            pass

    def wait_for(self, text):
        while not any(text in event["message"] for event in EVENTS if event["local_id"] == self.id):
            time.sleep(0.01)


def attempt(call):
    try:
        call()
    except Exception:
        pass


def write(history, **nodes):
    for name, node in nodes.items():
        if node.thread:
            node.thread.join()
        events = []
        for event in EVENTS:
            # Events of no node belong to the last one: the histories are made so.
            if event["local_id"] not in (node.id, None) or (event["local_id"] is None and name != list(nodes)[-1]):
                continue
            message = re.sub(r"'127\.0\.0\.1_\d+_\d+'", "'NODE'", event["message"])
            events.append({
                "name": event["name"],
                "node_state": event["node_state"],
                "message": re.sub(r"^Process \d+", "Process PID", message),
                "rank": event["rank"],
                "has_local_id": event["local_id"] is not None,
                "has_error_trace": event["error_trace"] != "",
                "master_endpoint": event["master_endpoint"],
            })
        print(json.dumps({"history": history, "node": name, "events": events}))
    for node in nodes.values():
        node.handler._stop_heartbeats()
    EVENTS.clear()


# Longer than a state is cached.
CACHED = 1.2

store = HashStore()
a = Node(store, 1, 1)
a.join()
a.handler.shutdown()
late = Node(store, 1, 1)
late.join()
write("alone, closed, late", a=a, late=late)

store = HashStore()
a = Node(store, 2, 2).start()
a.wait_for("successfully synced")
b = Node(store, 2, 2)
b.join()
a.thread.join()
time.sleep(CACHED)
a.handler.shutdown()
time.sleep(CACHED)
b.handler.shutdown()
write("two", a=a, b=b)

store = HashStore()
a = Node(store, 2, 2, join=0.3)
a.join()
write("join timeout", a=a)

store = HashStore()
a = Node(store, 1, 1)
a.join()
b = Node(store, 1, 1).start()
b.wait_for("successfully synced")
time.sleep(CACHED)
a.handler.set_closed()
write("spare, closed", a=a, b=b)

store = HashStore()
a = Node(store, 1, 1, interval=1)
a.join()
b = Node(store, 1, 1, interval=1).start()
b.wait_for("successfully synced")
a.handler._stop_heartbeats()
write("spare, lost", b=b)

store = HashStore()
a = Node(store, 1, 2)
a.join()
b = Node(store, 1, 2, join=0.3)
b.join()
write("waiting, timeout", a=a, b=b)

store = HashStore()
a = Node(store, 1, 1)
a.join()
a.join()
write("rejoin", a=a)

store = HashStore()
a = Node(store, 1, 1)
a.join()
a.backend.loses_a_write = True
a.join()
write("lost write", a=a)

store = HashStore()
a = Node(store, 1, 1, interval=1)
a.join()
a.wait_for("has sent a keep-alive")
a.handler._stop_heartbeats()
write("keep-alive", a=a)

store = HashStore()
a = Node(store, 1, 1, interval=2)
a.join()
a.backend.is_broken = True
a.wait_for("has failed to send a keep-alive")
a.handler._stop_heartbeats()
attempt(a.handler.is_closed)
attempt(a.handler.set_closed)
attempt(a.handler.next_rendezvous)
attempt(a.handler.shutdown)
write("store fails", a=a)

# Port 0 is the default port to PyTorch's parser; the store alone takes any.
parse = c10d.parse_rendezvous_endpoint
c10d.parse_rendezvous_endpoint = lambda endpoint, default_port: ("127.0.0.1", 0)
parameters = RendezvousParameters("c10d", "", "job", 1, 1, "127.0.0.1", is_host=True)
backend, store = c10d.create_backend(parameters)
c10d.parse_rendezvous_endpoint = parse
a = Node(store, 1, 1, handler=dynamic.create_handler(store, backend, parameters))
a.join()
write("host", a=a)
