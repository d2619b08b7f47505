"""For PyTorch jobs: process groups whose survivors continue (``join``), and a store of this package for PyTorch's process groups:
``init_process_group(store=c10d_rs.torch.Store(store), ...)``.

The store supports features that PyTorch's own client lacks, above all the shared secret. This module imports torch.
"""

from c10d_rs._errors import BelowMinimum, Evicted, MembershipChanged, MembershipError, Unrecoverable
from c10d_rs._membership import Generation, Membership, join
from c10d_rs._rendezvous_reconfigure import rendezvous_reconfigure
from c10d_rs._torch_store import Store

__all__ = [
    "BelowMinimum",
    "Evicted",
    "Generation",
    "Membership",
    "MembershipChanged",
    "MembershipError",
    "Store",
    "Unrecoverable",
    "join",
    "rendezvous_reconfigure",
]
