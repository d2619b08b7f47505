"""Where the group of a job is: its store, its name, and who this process is in it."""

import os
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from c10d_rs._errors import Unrecoverable
from c10d_rs._native import Membership as _Native
from c10d_rs._native import Store as _Store
from c10d_rs._native import TCPStore as _TCPStore
from c10d_rs._torch_store import Store

# The longest silence of a process, which may be stopped, or whose host may be lost. A swapping system runs a process again within
# seconds.
SILENCE_MAX = timedelta(seconds=10)

# For a job whose store keeps no groups.
_ALTERNATIVE = "start the job with `c10d run`, or serve the store with `c10d store serve`"

# Where a launcher of a job with nodes of torchrun has named the group of all workers.
_NAME = "c10d/membership_group"

# Of torch's calls of its store.
_STORE_TIMEOUT = timedelta(minutes=5)


def check_torch() -> None:
    """Raise Unrecoverable unless torch can change a process group."""
    if not hasattr(dist, "_reconfigure"):
        raise Unrecoverable("survivors need PyTorch 2.14 or later: this one cannot change a process group")


class Place:
    """Where the group is: its store and its name."""

    def __init__(self, name: str | None, store: _Store | None) -> None:
        """Look at the environment, and connect."""
        environment = os.environ
        self.store = store
        self.host = environment.get("MASTER_ADDR", "")
        self.port = environment.get("MASTER_PORT", "")
        self.secret = environment.get("C10D_SECRET_FILE")
        if store is None and not (self.host and self.port):
            raise Unrecoverable("set MASTER_ADDR and MASTER_PORT, or give join a store")
        round_ = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        # The connection of the membership, which torch does not use.
        self.own = store.clone() if store else _TCPStore(self.host, int(self.port), secret_file=self.secret)
        given = name or environment.get("C10D_MEMBERSHIP_GROUP")
        self.is_mixed = not given and "TORCHELASTIC_RUN_ID" in environment and self.own.check([_NAME])
        """Whether nodes of torchrun take part, whose launchers give no name, and restart all workers when one ends."""
        self.name = given or (self.own.get(_NAME).decode() if self.is_mixed else f"survivors-{round_}")

    def key(self, name: str) -> str:
        """Return a key of this group."""
        return f"c10d_rs/{self.name}/{name}"

    def size_first(self, wanted: int | None) -> int:
        """Return how many members form the first generation: the number that the first of them has written."""
        size = wanted or int(os.environ.get("WORLD_SIZE", "1"))
        return int(self.own.compare_set(self.key("size"), "", str(size)))

    def identity(self, size_first: int) -> tuple[int, int, int]:
        """Return the id, its incarnation, and the number of the start, which no other process of the group ever has."""
        environment = os.environ
        if "C10D_MEMBER_ID" in environment:
            names = ("C10D_MEMBER_ID", "C10D_MEMBER_INCARNATION", "C10D_MEMBER_SERIAL")
            member, incarnation, start = (int(environment[name]) for name in names)
            return member, incarnation, start
        rank = int(environment.get("RANK", "-1"))
        if 0 <= rank < size_first and self.own.add(self.key(f"rank/{rank}"), 1) == 1:
            member = rank
        else:
            member = size_first + self.own.add(self.key("ids"), 1) - 1
        return member, 1, member

    def open(
        self, key_prefix: str, member: int, incarnation: int, options: dict[str, float], silence_max: timedelta
    ) -> _Native:
        """Open the group. Torch's keys of a generation begin with the prefix."""
        try:
            return _Native(
                self.own,
                self.name,
                key_prefix,
                member,
                incarnation,
                options,
                silence_max,
            )
        except NotImplementedError as error:
            own = self.own
            cause = f"{own!r} keeps no groups"
            if isinstance(own, _TCPStore):
                cause = f"the store at {own.host}:{own.port} is PyTorch's, which keeps no groups"
            raise Unrecoverable(f"cannot join a group: {cause}; {_ALTERNATIVE}") from error

    def torch_store(self) -> Any:
        """Return the store for torch, which has a separate connection."""
        if self.store is not None or self.secret:
            store: Any = Store(self.own.clone(), _keeper=self.own)
        else:
            store = dist.TCPStore(self.host, int(self.port), None, False, _STORE_TIMEOUT, wait_for_workers=False)
        return dist.PrefixStore(self.key("torch"), store)
