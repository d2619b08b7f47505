"""A store of this package for PyTorch's process groups: ``c10d_rs.torch.Store``."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from c10d_rs._native import Store as _Store


class Store(dist.Store):
    """A store of PyTorch that passes every call on to one of this package.

    It and its clones stay, with their connections, until the wrapped store is closed, or else until the process exits.
    """

    def __init__(self, store: _Store, *, _keeper: _Store | None = None) -> None:
        """Wrap an open store, which must stay open as long as PyTorch uses this one."""
        super().__init__()
        self._store = store
        super().set_timeout(store.timeout)
        # In whole milliseconds, as the C++ part has it.
        self._timeout = super().timeout
        # PyTorch's process groups and PrefixStores keep the C++ part of this object only, and without the Python part it has no
        # methods. Whether they still have it cannot be found out, so the wrapped store keeps this object until it is closed.
        self._keeper = _keeper or store
        self._keeper._keep(self)

    def clone(self) -> "Store":
        """Wrap another connection to the same store. It stays until the store that this one wraps is closed."""
        return Store(self._store.clone(), _keeper=self._keeper)

    def _waiting(self) -> _Store:
        """Return the store for a call that waits, with the timeout that a PrefixStore of PyTorch has set in the C++ part."""
        timeout = super().timeout
        if timeout != self._timeout:
            self.set_timeout(timeout)
        return self._store

    def set(self, key: str, value: Any) -> None:
        """See ``torch.distributed.Store``, also for the other methods."""
        self._store.set(key, _bytes(value))

    def get(self, key: str) -> bytes:
        return self._waiting().get(key)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def compare_set(self, key: str, expected_value: Any, desired_value: Any) -> bytes:
        return self._store.compare_set(key, _bytes(expected_value), _bytes(desired_value))

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def num_keys(self) -> int:
        return self._store.num_keys()

    # PyTorch's C++ code looks for these two methods under their C++ names.
    deleteKey = delete_key
    getNumKeys = num_keys

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._waiting().wait(keys, timeout)

    def append(self, key: str, value: Any) -> None:
        self._store.append(key, _bytes(value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._waiting().multi_get(keys)

    def multi_set(self, keys: list[str], values: Sequence[Any]) -> None:
        self._store.multi_set(keys, [_bytes(value) for value in values])

    def queue_push(self, key: str, value: Any) -> None:
        self._store.queue_push(key, _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._waiting().queue_pop(key, block)

    def queue_len(self, key: str) -> int:
        return self._store.queue_len(key)

    def list_keys(self) -> list[str]:
        return self._store.list_keys()

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self._waiting().barrier(key, world_size, timeout)

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)
        super().set_timeout(timeout)
        self._timeout = super().timeout

    @property
    def timeout(self) -> timedelta:
        """The timeout of calls without an explicit timeout."""
        return self._waiting().timeout


def _bytes(value: Any) -> bytes | bytearray | str:
    """Return a value as PyTorch's C++ code passes it: as text, bytes or a list of numbers."""
    return value if isinstance(value, str) else bytes(value)
