"""The rendezvous of ``c10d run`` for torchrun: ``PET_RDZV_BACKEND=c10d-rs``, or ``torchrun --rdzv-backend c10d-rs``.

torchrun finds it by the entry point group ``torchrun.handlers``. Its nodes join one job with nodes of ``--rdzv-backend c10d`` and
of ``c10d run``: all of them keep the same state in the same store. With --master-addr they join a job with nodes of the backend
``static``. This is the only module that imports torch.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed as dist
from torch.distributed.elastic.rendezvous import api

from c10d_rs import _errors
from c10d_rs._meeting import choose, running_command
from c10d_rs._native import Rendezvous, TCPStore

BACKEND = "c10d-rs"

# Below PyTorch's name, so that its handler writes the line as the other lines of torchrun.
log = logging.getLogger("torch.distributed.elastic.c10d_rs")
log.setLevel(os.environ.get("LOGLEVEL", "INFO"))

# The timeout of one call of the rendezvous' store, in seconds, like in PyTorch.
READ_TIMEOUT_SECONDS = 60


def handler_creator() -> Callable[[api.RendezvousParameters], api.RendezvousHandler]:
    """Return the function that creates handlers, for torchrun's registry."""
    return Handler


class Handler(api.RendezvousHandler):
    """A node of a rendezvous, which elastic-rendezvous runs on separate threads."""

    def __init__(self, parameters: api.RendezvousParameters) -> None:
        """Open the store of the rendezvous; serve it if the endpoint names this machine."""
        self._store: dist.Store | None = None
        settings = {key: str(value) for key, value in parameters.config.items() if value is not None}
        if os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") == "1":
            settings.setdefault("share_store", "false")
        self._read_timeout = timedelta(seconds=int(settings.get("read_timeout", READ_TIMEOUT_SECONDS)))
        endpoint = (parameters.endpoint or "").strip()
        meeting = choose(endpoint, parameters.run_id, parameters.max_nodes, settings, running_command())
        is_file = meeting.settings.get("store_type", "tcp").strip().lower() == "file"
        self._file = meeting.endpoint if is_file else None
        self._run_id: str = meeting.run_id
        self._is_static = meeting.backend == "static"
        self._secret_file = meeting.settings.get("secret_file")
        # Behind the store, unless that is a file.
        self._client: TCPStore | None = None
        self._has_relay = False
        self._announced: tuple[str, int] | None = None
        with _torch_errors():
            self._node = Rendezvous(
                meeting.backend,
                meeting.endpoint,
                meeting.run_id,
                parameters.min_nodes,
                parameters.max_nodes,
                parameters.local_addr,
                meeting.settings,
            )

    def get_backend(self) -> str:
        """Return the name of the backend."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether an agent serves the workers' store."""
        with _torch_errors():
            return self._node.uses_agent_store()

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Join the next round. Ctrl-C and torchrun's signals end it, and this node leaves the rendezvous."""
        if self._has_relay:
            # Each round has a new relay, maybe at the same address.
            self._leave_store()
        with _torch_errors():
            number, rank, world_size, for_agent, for_workers, address = self._node.next_rendezvous()
        # As the nodes of PyTorch's backends do.
        prefix = self._run_id if self._is_static else f"torch.rendezvous.{self._run_id}.{number}"
        self._has_relay = for_workers != address
        # A relay has the secret, and asks for none.
        secret_file = None if self._has_relay and for_agent == for_workers else self._secret_file
        store = dist.PrefixStore(prefix, self._torch_store(for_agent, secret_file))
        self._name_store(address if self._has_relay else None)
        self._announce_pages(*address)
        return api.RendezvousInfo(store, rank, world_size, api.RendezvousStoreInfo(*for_workers))

    def is_closed(self) -> bool:
        """Whether there are no more rounds."""
        with _torch_errors():
            return self._node.is_closed()

    def set_closed(self) -> None:
        """End the rendezvous for all nodes."""
        with _torch_errors():
            self._node.set_closed()

    def num_nodes_waiting(self) -> int:
        """Return the number of nodes that wait for the next round."""
        with _torch_errors():
            return self._node.num_nodes_waiting()

    def get_run_id(self) -> str:
        """Return the run id of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """End the rendezvous for all nodes, and this node. Return whether the first succeeded."""
        self._leave_store()
        if self._has_relay:
            self._name_store(None)
        with _torch_errors():
            return self._node.shutdown()

    def _torch_store(self, address: tuple[str, int], secret_file: str | None) -> dist.Store:
        """Return a client of the store at this address, which torchrun's agent shares its ranks through."""
        if self._store is None:
            if self._file is not None:
                self._store = dist.FileStore(self._file)
            else:
                # Not needed by a torchrun that meets by another backend.
                from c10d_rs.torch import Store

                # PyTorch's client has no secret, and the agent would hold it to the end.
                host, port = address
                self._client = TCPStore(host, port, timeout=self._read_timeout, secret_file=secret_file)
                self._store = Store(self._client)
        return self._store

    def _leave_store(self) -> None:
        """Close the client. A server waits some seconds for its clients to leave, but this one needs it no more."""
        self._store = None
        if self._client is not None:
            self._client.close()

    @staticmethod
    def _name_store(address: tuple[str, int] | None) -> None:
        """Give the workers what ``c10d run --relay`` gives them: where the store is, and a setting for PyTorch's checkpoints.

        Without a relay, remove the address of the store of another launcher around this one.
        """
        if address is None:
            os.environ.pop("C10D_MASTER_ADDR", None)
            os.environ.pop("C10D_MASTER_PORT", None)
            return
        os.environ["C10D_MASTER_ADDR"], os.environ["C10D_MASTER_PORT"] = address[0], str(address[1])
        os.environ.setdefault("DCP_USE_PREFIX_STORE", "1")

    def _announce_pages(self, host: str, port: int) -> None:
        """Log where the pages of the workers' store are, once, if this process serves it."""
        if self._announced == (host, port) or not self._node.has_pages(port):
            return
        self._announced = (host, port)
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        secret = f" --secret-file {self._secret_file}" if self._secret_file is not None else ""
        log.info("status page: http://%s/; if the job hangs: c10d why --connect %s%s", place, place, secret)


@contextmanager
def _torch_errors() -> Iterator[None]:
    """Raise PyTorch's exception of the same name."""
    try:
        yield
    except _errors.RendezvousError as error:
        kind: type[api.RendezvousError] = getattr(api, type(error).__name__)
        raise kind(str(error)) from error
