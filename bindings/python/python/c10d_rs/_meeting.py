"""Find where the nodes of a torchrun command meet, if PET_RDZV_BACKEND has chosen this rendezvous.

Without the variable, torchrun uses the backend ``static``, or for one node a free port. A command that works without the variable
must not fail or wait with it: docs/reference/torchrun-variable.md lists them.
"""

import argparse
import os
import sys
import uuid
from dataclasses import dataclass

# torchrun's own defaults of --master-addr and --master-port.
MASTER_ADDR = "127.0.0.1"
MASTER_PORT = 29500

# torchrun's run id, unless --rdzv-id is given.
NO_ID = "none"

# The option that names a store in etcd. Commas separate the options, so other marks separate the members of etcd.
ETCD = "etcd"
ETCD_SCHEME = "etcd://"
ETCD_SEPARATOR = ";"


@dataclass(frozen=True)
class Command:
    """The options of a torchrun command that PyTorch does not pass on to a rendezvous; None if not given."""

    rdzv_backend: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    node_rank: int | None = None


@dataclass(frozen=True)
class Meeting:
    """A rendezvous of elastic-rendezvous: the backend ``c10d``, or ``static``, whose nodes keep their ranks."""

    backend: str
    endpoint: str
    run_id: str
    settings: dict[str, str]


def choose(endpoint: str, run_id: str, max_nodes: int, settings: dict[str, str], command: Command) -> Meeting:
    """Return where the nodes meet, with these settings, those of --rdzv-conf.

    Raises ValueError for several nodes that no option leads to each other.
    """
    if ETCD in settings:
        members = settings[ETCD].removeprefix(ETCD_SCHEME).replace(ETCD_SEPARATOR, ",")
        others = {key: value for key, value in settings.items() if key != ETCD}
        return Meeting("c10d", ETCD_SCHEME + members, run_id, others)
    if endpoint:
        return Meeting("c10d", endpoint, run_id, {**_host_of_static(command, max_nodes), **settings})
    # Without an endpoint there is no path of a file, and no choice of the node that serves it.
    settings = {key: value for key, value in settings.items() if key not in ("store_type", "is_host")}
    if max_nodes == 1 and command.master_port is None:
        # A free port: two jobs on one machine must not meet.
        alone = run_id if run_id not in ("", NO_ID) else str(uuid.uuid4())
        return Meeting("c10d", "localhost:0", alone, settings)
    if command == Command(rdzv_backend=command.rdzv_backend):
        raise ValueError(
            f"cannot start {max_nodes} nodes: no option says where they meet. Add --rdzv-endpoint=HOST:29400 to the "
            "command of each node, where HOST is the name or address of one of them, or set PET_RDZV_ENDPOINT."
        )
    host = command.master_addr or MASTER_ADDR
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    port = MASTER_PORT if command.master_port is None else command.master_port
    return Meeting("static", f"{host}:{port}", run_id, {**settings, "rank": str(command.node_rank or 0)})


def _host_of_static(command: Command, max_nodes: int) -> dict[str, str]:
    """Return the setting that makes the same node serve the store as without the variable.

    The endpoint may be a name that leads to it only from outside, for example the name of a Kubernetes Service.
    """
    # A single node has rank 0 by default.
    rank = 0 if command.node_rank is None and max_nodes == 1 else command.node_rank
    if command.rdzv_backend is not None or rank is None:
        return {}
    return {"is_host": str(int(rank == 0))}


def running_command() -> Command:
    """Return the options of the torchrun command that this process runs; none, if it runs another program.

    The options are read from torchrun's parser in the stack, because a program may call torchrun with its own arguments.
    """
    frame = sys._getframe().f_back
    while frame is not None:
        found = frame.f_locals.get("args")
        if isinstance(found, argparse.Namespace) and {"rdzv_backend", "node_rank"} <= vars(found).keys():
            return given(found, sys.argv[1:], dict(os.environ))
        frame = frame.f_back
    return Command()


def given(found: argparse.Namespace, words: list[str], environment: dict[str, str]) -> Command:
    """Return the options that do not have their values by default.

    torchrun fills in its defaults before it requests a rendezvous, so an option with its default value is searched for in the
    arguments before the script, and in the environment.
    """
    of_script = len(getattr(found, "training_script_args", None) or [])
    own = words[: max(0, len(words) - of_script)]
    names = {word.split("=")[0].lstrip("-").replace("-", "_") for word in own if word.startswith("--")}

    def is_given(name: str, usual: object) -> bool:
        is_other = getattr(found, name, usual) not in (usual, None)
        return is_other or name in names or f"PET_{name.upper()}" in environment

    return Command(
        rdzv_backend=found.rdzv_backend if "rdzv_backend" in names else None,
        master_addr=found.master_addr if is_given("master_addr", MASTER_ADDR) else None,
        master_port=found.master_port if is_given("master_port", MASTER_PORT) else None,
        node_rank=found.node_rank if is_given("node_rank", 0) else None,
    )
