"""The exceptions of the stores. The first four have the names and bases of those in ``torch.distributed``."""

import sys
from typing import Any


class DistError(RuntimeError):
    """An error of a store. The base of all exceptions of this package."""

    __module__ = "c10d_rs"


class DistStoreError(DistError):
    """A call of a store failed. The store stays usable, unless it was closed."""

    __module__ = "c10d_rs"


class DistNetworkError(DistError):
    """The server cannot be reached, or was lost. A store that lost its connection stays unusable."""

    __module__ = "c10d_rs"


class QueueEmptyError(DistStoreError):
    """The queue has no value."""

    __module__ = "c10d_rs"


class StoreTimeoutError(DistStoreError, TimeoutError):
    """A key, a value or a worker did not appear in time."""

    __module__ = "c10d_rs"


class StoreValueError(DistStoreError, ValueError):
    """An argument is invalid or too long, or the value is not a number. Nothing changed."""

    __module__ = "c10d_rs"


class StoreUnsupportedError(DistStoreError, NotImplementedError):
    """The store does not have this operation."""

    __module__ = "c10d_rs"


class StoreFullError(DistStoreError):
    """The server has reached its memory limit and has refused a write. Nothing changed, and the store stays usable."""

    __module__ = "c10d_rs"


class StoreJournalError(DistStoreError, OSError):
    """The directory of a server is in use, damaged, of a newer version, or cannot be read or written."""

    __module__ = "c10d_rs"


class GroupError(DistError):
    """A group could not form, or a call of it failed."""

    __module__ = "c10d_rs"


class MissingRanksError(GroupError, TimeoutError):
    """Some ranks did not arrive in time. The same call can be repeated."""

    __module__ = "c10d_rs"

    ranks: list[int]
    """The missing ranks, ascending."""


class MembershipError(DistError):
    """The base of the exceptions of ``c10d_rs.torch.join``."""

    __module__ = "c10d_rs.torch"


class MembershipChanged(MembershipError):
    """Members were lost or are joining, so the generation ends. ``with generation:`` handles this exception."""

    __module__ = "c10d_rs.torch"


class Evicted(MembershipError):
    """The other members continue without this process."""

    __module__ = "c10d_rs.torch"


class BelowMinimum(MembershipError):
    """Too few members were left for too long: the group has ended."""

    __module__ = "c10d_rs.torch"


class Unrecoverable(MembershipError):
    """The group has ended, or this process cannot take part: only a restart helps."""

    __module__ = "c10d_rs.torch"


class RendezvousError(DistError):
    """A rendezvous failed. The subclasses have the names of PyTorch's."""


class RendezvousClosedError(RendezvousError):
    """There are no more rounds."""


class RendezvousTimeoutError(RendezvousError):
    """Too few nodes joined in time."""


class RendezvousConnectionError(RendezvousError):
    """The store of the rendezvous cannot be reached."""


class RendezvousStateError(RendezvousError):
    """The store holds no valid state."""


class RendezvousGracefulExitError(RendezvousError):
    """The job ended while this node was a spare."""


# For each exception of the stores, the exceptions of torch.distributed that it can also be. The first existing one is used.
_TORCH = {
    "DistError": ("DistError",),
    "DistNetworkError": ("DistNetworkError", "DistError"),
    "DistStoreError": ("DistStoreError", "DistError"),
    "QueueEmptyError": ("QueueEmptyError", "DistStoreError", "DistError"),
    "StoreTimeoutError": ("DistStoreError", "DistError"),
    "StoreValueError": ("DistStoreError", "DistError"),
    "StoreUnsupportedError": ("DistStoreError", "DistError"),
    "StoreFullError": ("DistStoreError", "DistError"),
    "StoreJournalError": ("DistStoreError", "DistError"),
    "GroupError": ("DistError",),
    "MissingRanksError": ("DistError",),
}

_combined: dict[str, type[Exception]] = {}


def class_of(name: str) -> type[Exception]:
    """Return the class to raise. If torch is imported, ``except torch.distributed.DistStoreError`` also catches it.

    Only a program that has imported torch.distributed can name its classes, so torch is never imported here.
    """
    combined = _combined.get(name)
    if combined is not None:
        return combined
    ours: type[Exception] = globals()[name]
    torch = sys.modules.get("torch.distributed")
    for candidate in _TORCH.get(name, ()):
        theirs = getattr(torch, candidate, None)
        if isinstance(theirs, type):
            fields = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__reduce__": _reduce}
            return _combined.setdefault(name, type(name, (ours, theirs), fields))
    return ours


def _reduce(error: Exception) -> Any:
    """Pickle the name: the receiving process may have no torch."""
    return _remade, (type(error).__name__, error.args, error.__dict__)


def _remade(name: str, arguments: tuple[Any, ...], fields: dict[str, Any]) -> Exception:
    error = class_of(name)(*arguments)
    error.__dict__.update(fields)
    return error
