"""PyTorch's c10d stores without PyTorch.

The classes have the names, arguments and exceptions of ``torch.distributed``, and speak the same protocols: they share
a store with PyTorch's processes.
"""

from c10d_rs._errors import (
    DistError,
    DistNetworkError,
    DistStoreError,
    GroupError,
    MissingRanksError,
    QueueEmptyError,
    StoreFullError,
    StoreJournalError,
    StoreTimeoutError,
    StoreUnsupportedError,
    StoreValueError,
)
from c10d_rs._native import (
    FileStore,
    Group,
    HashStore,
    PrefixStore,
    Store,
    StoreServer,
    TCPStore,
    __version__,
    init_from_env,
)

__all__ = [
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "Group",
    "GroupError",
    "HashStore",
    "MissingRanksError",
    "PrefixStore",
    "QueueEmptyError",
    "Store",
    "StoreFullError",
    "StoreJournalError",
    "StoreServer",
    "StoreTimeoutError",
    "StoreUnsupportedError",
    "StoreValueError",
    "TCPStore",
    "__version__",
    "init_from_env",
]
