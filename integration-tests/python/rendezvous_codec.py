"""Decodes, changes and encodes rendezvous states with PyTorch.

Usage: rendezvous_codec.py

Prints PyTorch's version as JSON. Then reads one JSON object per line from standard input, and replies to each with one
on standard output:

    {"pickle": "80..", "how": "sync", "action": "add_to_participants", "node": ["host", 1, 0]}
    {"before": {...}, "again": "80..", "after": {...}, "pickle": "80.."}

HOW selects how PyTorch decodes and encodes the state:
    sync    through a backend, as its rendezvous does; requires times with a time zone
    pickle  with Python's pickle alone

ACTION names the PyTorch method that the node calls then; null for none. "again" is the state encoded without a change.
Times are in microseconds since 1970. An exception ends the process, with its message on standard error.
"""

import json
import pickle
import sys
from datetime import datetime, timedelta, timezone

import torch
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as rendezvous

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

# So large that a joining node never completes a round or starts the last call, and a leaving node always cancels the
# last call.
NODES = 1_000_000


class Backend(rendezvous.RendezvousBackend):
    """A backend that holds one state in memory and accepts every write."""

    def __init__(self, state):
        self.state = state

    @property
    def name(self):
        return "memory"

    def get_state(self):
        return self.state, None

    def set_state(self, state, token=None):
        self.state = state
        return state, None, True


def describe_node(node):
    assert type(node) is rendezvous._NodeDesc, type(node)
    assert [type(part) for part in vars(node).values()] == [str, int, int], vars(node)
    return [node.addr, node.pid, node.local_id]


def describe_time(time):
    if time is None:
        return None
    assert type(time) is datetime, type(time)
    if time.tzinfo is None:
        time = time.replace(tzinfo=timezone.utc)
    assert time.tzinfo is timezone.utc, time.tzinfo
    return (time - EPOCH) // timedelta(microseconds=1)


def describe(state):
    assert type(state) is rendezvous._RendezvousState, type(state)
    assert list(vars(state)) == list(vars(rendezvous._RendezvousState())), vars(state)
    assert type(state.round) is int and type(state.complete) is bool and type(state.closed) is bool
    assert type(state.wait_list) is set and type(state.redundancy_list) is set
    times = [state.deadline, *state.last_heartbeats.values()]
    return {
        "round": state.round,
        "complete": state.complete,
        "deadline": describe_time(state.deadline),
        "closed": state.closed,
        "participants": [[describe_node(n), rank] for n, rank in state.participants.items()],
        "wait_list": [describe_node(n) for n in sorted(state.wait_list)],
        "redundancy_list": [describe_node(n) for n in sorted(state.redundancy_list)],
        "last_heartbeats": [
            [describe_node(n), describe_time(t)] for n, t in state.last_heartbeats.items()
        ],
        "naive": any(time is not None and time.tzinfo is None for time in times),
    }


def act(state, action, node, holder, settings):
    executor = rendezvous._DistributedRendezvousOpExecutor(node, holder, settings)
    executor._state = state
    getattr(executor, "_" + action)()


def answer(request):
    settings = rendezvous.RendezvousSettings(
        run_id="run",
        min_nodes=NODES,
        max_nodes=NODES,
        timeout=rendezvous.RendezvousTimeout(),
        # No node is considered dead.
        keep_alive_interval=timedelta(days=365 * 100),
        keep_alive_max_attempt=1,
    )
    backend = Backend(bytes.fromhex(request["pickle"]))
    holder = rendezvous._BackendRendezvousStateHolder(backend, settings, cache_duration=0)
    if request["how"] == "sync":
        holder.sync()
        state = holder.state
    else:
        state = pickle.loads(backend.state)
    reply = {"before": describe(state), "again": pickle.dumps(state).hex()}
    if request["action"] is not None:
        act(state, request["action"], rendezvous._NodeDesc(*request["node"]), holder, settings)
    reply["after"] = describe(state)
    if request["how"] == "sync":
        holder.mark_dirty()
        assert holder.sync()
    else:
        backend.state = pickle.dumps(state)
    reply["pickle"] = backend.state.hex()
    return reply


def main():
    print(json.dumps({"version": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


main()
