"""Records what torch.distributed.rendezvous makes of URLs: one line of JSON for each case.

    python rendezvous_urls.py > rendezvous-urls.jsonl     # with PyTorch 2.15.0

The stores are replaced by recorders, so nothing is opened; all else is PyTorch's code.
"""

import json
import os
import sys
from datetime import timedelta

import torch.distributed as dist

# The package has a function of the module's name.
module = sys.modules["torch.distributed.rendezvous"]


class Tcp:
    def __init__(self, host_name, port, world_size=None, is_master=False, timeout=None,
                 wait_for_workers=True, multi_tenant=False, use_libuv=True):
        self.opened = {
            "store": "tcp", "host": host_name, "port": port, "world_size": world_size,
            "is_master": is_master, "multi_tenant": multi_tenant,
            "timeout_s": timeout.total_seconds(),
        }


class File:
    def __init__(self, path, world_size=-1):
        self.opened = {"store": "file", "path": path, "world_size": world_size}


module.TCPStore = Tcp
module.FileStore = File

ENV = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
AGENT = {**ENV, "TORCHELASTIC_USE_AGENT_STORE": "True"}


def without(*names):
    return {name: value for name, value in ENV.items() if name not in names}


# name, url, arguments of rendezvous(), environment
CASES = [
    # tcp://
    ("tcp", "tcp://node0:29500?rank=1&world_size=4", {}, {}),
    ("tcp, rank 0 hosts", "tcp://node0:29500?rank=0&world_size=4", {}, {}),
    ("tcp, path is ignored", "tcp://node0:29500/some/path?rank=1&world_size=4", {}, {}),
    ("tcp, fragment is ignored", "tcp://node0:29500?rank=1&world_size=4#part", {}, {}),
    ("tcp, fragment before the query", "tcp://node0:29500#part?rank=1&world_size=4", {}, {}),
    ("tcp, upper case", "TCP://Node0.Example:29500?rank=1&world_size=4", {}, {}),
    ("tcp, IPv4", "tcp://10.0.0.1:29500?rank=1&world_size=4", {}, {}),
    ("tcp, IPv6", "tcp://[::1]:29500?rank=1&world_size=4", {}, {}),
    ("tcp, IPv6 with a zone", "tcp://[FE80::1%Eth0]:29500?rank=1&world_size=4", {}, {}),
    ("tcp, IPv6 without brackets", "tcp://::1:29500?rank=1&world_size=4", {}, {}),
    ("tcp, IPv6 without port", "tcp://[::1]?rank=1&world_size=4", {}, {}),
    ("tcp, bracket not closed", "tcp://[::1:29500?rank=1&world_size=4", {}, {}),
    ("tcp, user", "tcp://user:secret@node0:29500?rank=1&world_size=4", {}, {}),
    ("tcp, no port", "tcp://node0?rank=1&world_size=4", {}, {}),
    ("tcp, empty port", "tcp://node0:?rank=1&world_size=4", {}, {}),
    ("tcp, port 0", "tcp://node0:0?rank=1&world_size=4", {}, {}),
    ("tcp, port with zeros", "tcp://node0:029500?rank=1&world_size=4", {}, {}),
    ("tcp, port too large", "tcp://node0:65536?rank=1&world_size=4", {}, {}),
    ("tcp, port is text", "tcp://node0:http?rank=1&world_size=4", {}, {}),
    ("tcp, negative port", "tcp://node0:-1?rank=1&world_size=4", {}, {}),
    ("tcp, no host", "tcp://:29500?rank=1&world_size=4", {}, {}),
    ("tcp, nothing", "tcp://", {}, {}),
    ("tcp, no rank", "tcp://node0:29500?world_size=4", {}, {}),
    ("tcp, no world size", "tcp://node0:29500?rank=1", {}, {}),
    ("tcp, neither", "tcp://node0:29500", {}, {}),
    ("tcp, empty rank", "tcp://node0:29500?rank=&world_size=4", {}, {}),
    ("tcp, rank is text", "tcp://node0:29500?rank=one&world_size=4", {}, {}),
    ("tcp, rank is a fraction", "tcp://node0:29500?rank=1.0&world_size=4", {}, {}),
    ("tcp, rank has a sign", "tcp://node0:29500?rank=+1&world_size=4", {}, {}),
    ("tcp, rank with blanks", "tcp://node0:29500?rank= 1 &world_size=4", {}, {}),
    ("tcp, rank with underscores", "tcp://node0:29500?rank=1_0&world_size=40", {}, {}),
    ("tcp, rank with zeros", "tcp://node0:29500?rank=007&world_size=40", {}, {}),
    ("tcp, percent in a number", "tcp://node0:29500?rank=%31&world_size=4", {}, {}),
    ("tcp, percent in the host", "tcp://node%30:29500?rank=1&world_size=4", {}, {}),
    ("tcp, percent in a name", "tcp://node0:29500?%72ank=1&world_size=4", {}, {}),
    ("tcp, rank is -1", "tcp://node0:29500?rank=-1&world_size=4", {}, {}),
    ("tcp, rank is the world size", "tcp://node0:29500?rank=4&world_size=4", {}, {}),
    ("tcp, world size is text", "tcp://node0:29500?rank=1&world_size=four", {}, {}),
    ("tcp, world size is -1", "tcp://node0:29500?rank=1&world_size=-1", {}, {}),
    ("tcp, world size is 0", "tcp://node0:29500?rank=1&world_size=0", {}, {}),
    ("tcp, repeated", "tcp://node0:29500?rank=1&rank=2&world_size=4", {}, {}),
    ("tcp, empty pairs", "tcp://node0:29500?&rank=1&&world_size=4&", {}, {}),
    ("tcp, name without value", "tcp://node0:29500?rank=1&world_size=4&flag", {}, {}),
    ("tcp, two equals signs", "tcp://node0:29500?rank=1=2&world_size=4", {}, {}),
    ("tcp, unknown parameter", "tcp://node0:29500?rank=1&world_size=4&colour=red", {}, {}),
    ("tcp, names have a case", "tcp://node0:29500?RANK=1&world_size=4", {}, {}),
    ("tcp, use_libuv=0", "tcp://node0:29500?rank=0&world_size=4&use_libuv=0", {}, {}),
    ("tcp, use_libuv=no", "tcp://node0:29500?rank=0&world_size=4&use_libuv=no", {}, {}),
    ("tcp, environment is ignored", "tcp://node0:29500", {}, ENV),
    ("tcp, blanks before", "  tcp://node0:29500?rank=1&world_size=4", {}, {}),
    ("tcp, newline within", "tcp://node0:29\n500?rank=1&world_size=4", {}, {}),
    ("tcp, arguments", "tcp://node0:29500", {"rank": 0, "world_size": 2}, {}),
    ("tcp, rank as argument", "tcp://node0:29500", {"rank": 1}, {}),
    ("tcp, world size as argument", "tcp://node0:29500", {"world_size": 4}, {}),
    ("tcp, rank twice", "tcp://node0:29500?rank=1", {"rank": 1, "world_size": 4}, {}),
    ("tcp, rank in one, size in the other", "tcp://node0:29500?world_size=4", {"rank": 1}, {}),
    ("tcp, arguments and another parameter", "tcp://node0:29500?use_libuv=0",
     {"rank": 1, "world_size": 4}, {}),
    ("tcp, timeout", "tcp://node0:29500?rank=1&world_size=4", {"timeout_s": 7}, {}),
    ("tcp, agent's store", "tcp://node0:29500?rank=0&world_size=4", {}, AGENT),
    ("tcp, agent's store is elsewhere", "tcp://node0:29501?rank=0&world_size=4", {}, AGENT),
    ("tcp, agent's store, name in upper case", "tcp://NODE0:29500?rank=0&world_size=4", {}, AGENT),
    # env://
    ("env", "env://", {}, ENV),
    ("env, rank 0 hosts", "env://", {}, {**ENV, "RANK": "0"}),
    ("env, no RANK", "env://", {}, without("RANK")),
    ("env, no WORLD_SIZE", "env://", {}, without("WORLD_SIZE")),
    ("env, no MASTER_ADDR", "env://", {}, without("MASTER_ADDR")),
    ("env, no MASTER_PORT", "env://", {}, without("MASTER_PORT")),
    ("env, nothing", "env://", {}, {}),
    ("env, empty RANK", "env://", {}, {**ENV, "RANK": ""}),
    ("env, empty MASTER_ADDR", "env://", {}, {**ENV, "MASTER_ADDR": ""}),
    ("env, RANK is text", "env://", {}, {**ENV, "RANK": "one"}),
    ("env, RANK with blanks", "env://", {}, {**ENV, "RANK": " 1\n"}),
    ("env, MASTER_PORT is text", "env://", {}, {**ENV, "MASTER_PORT": "http"}),
    ("env, MASTER_PORT too large", "env://", {}, {**ENV, "MASTER_PORT": "65536"}),
    ("env, MASTER_PORT negative", "env://", {}, {**ENV, "MASTER_PORT": "-1"}),
    ("env, MASTER_PORT with zeros", "env://", {}, {**ENV, "MASTER_PORT": "029500"}),
    ("env, MASTER_ADDR is IPv6", "env://", {}, {**ENV, "MASTER_ADDR": "::1"}),
    ("env, MASTER_ADDR has a case", "env://", {}, {**ENV, "MASTER_ADDR": "Node0"}),
    ("env, rank in the query", "env://?rank=3", {}, without("RANK")),
    ("env, size in the query", "env://?world_size=8", {}, ENV),
    ("env, both in the query", "env://?rank=3&world_size=8", {}, ENV),
    ("env, host and port are ignored", "env://elsewhere:1?rank=3", {}, ENV),
    ("env, arguments", "env://", {"rank": 2, "world_size": 3}, ENV),
    ("env, rank as argument", "env://", {"rank": 2}, ENV),
    ("env, twice", "env://?rank=3", {"rank": 2}, ENV),
    ("env, agent's store", "env://", {}, {**AGENT, "RANK": "0"}),
    ("env, agent's store, other word", "env://", {},
     {**AGENT, "RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "true"}),
    ("env, agent's store, port with zeros", "env://", {},
     {**AGENT, "RANK": "0", "MASTER_PORT": "029500"}),
    ("env, USE_LIBUV=0", "env://", {}, {**ENV, "USE_LIBUV": "0"}),
    ("env, no slashes", "env:", {}, ENV),
    ("env, timeout", "env://", {"timeout_s": 7}, ENV),
    # file://
    ("file", "file:///tmp/store?rank=1&world_size=4", {}, {}),
    ("file, arguments", "file:///tmp/store", {"rank": 1, "world_size": 4}, {}),
    ("file, rank twice", "file:///tmp/store?rank=1", {"rank": 1}, {}),
    ("file, no rank", "file:///tmp/store?world_size=4", {}, {}),
    ("file, no world size", "file:///tmp/store?rank=1", {}, {}),
    ("file, no path", "file://?rank=1&world_size=4", {}, {}),
    ("file, host and no path", "file://store?rank=1&world_size=4", {}, {}),
    ("file, host is ignored", "file://tmp/store?rank=1&world_size=4", {}, {}),
    ("file, one slash", "file:/tmp/store?rank=1&world_size=4", {}, {}),
    ("file, relative", "file:store?rank=1&world_size=4", {}, {}),
    ("file, relative, arguments", "file:store", {"rank": 1, "world_size": 4}, {}),
    ("file, percent", "file:///tmp/a%20b?rank=1&world_size=4", {}, {}),
    ("file, blank", "file:///tmp/a b?rank=1&world_size=4", {}, {}),
    ("file, case and unicode", "file:///tmp/Größe?rank=1&world_size=4", {}, {}),
    ("file, semicolon", "file:///tmp/a;b?rank=1&world_size=4", {}, {}),
    ("file, fragment", "file:///tmp/a#b?rank=1&world_size=4", {}, {}),
    ("file, dots stay", "file:///tmp/../store?rank=1&world_size=4", {}, {}),
    ("file, world size is -1", "file:///tmp/store?rank=0&world_size=-1", {}, {}),
    ("file, world size is 0", "file:///tmp/store?rank=0&world_size=0", {}, {}),
    ("file, second question mark", "file:///tmp/store?rank=1&world_size=4?x", {}, {}),
    # others
    ("unknown scheme", "http://node0:29500?rank=1&world_size=4", {}, {}),
    ("no scheme", "node0:29500?rank=1&world_size=4", {}, {}),
    ("address", "10.0.0.1:29500", {}, {}),
    ("path", "/tmp/store?rank=1&world_size=4", {}, {}),
    ("empty", "", {}, {}),
]

NAMES = list(AGENT) + ["USE_LIBUV"]

for name, url, arguments, environment in CASES:
    for variable in NAMES:
        os.environ.pop(variable, None)
    os.environ.update(environment)
    keywords = {key: value for key, value in arguments.items() if key != "timeout_s"}
    if "timeout_s" in arguments:
        keywords["timeout"] = timedelta(seconds=arguments["timeout_s"])
    row = {"name": name, "url": url, "arguments": arguments, "environment": environment}
    try:
        store, rank, world_size = next(dist.rendezvous(url, **keywords))
        row["opens"] = {**store.opened, "rank": rank}
        assert store.opened["world_size"] == world_size
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(row, ensure_ascii=False))
