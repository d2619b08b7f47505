"""How torch's back ends other than gloo free a rank that is stuck in a collective."""

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d as _c10d

_GLOO = getattr(_c10d, "ProcessGroupGloo", ())


def device_type() -> str:
    """Return torch's device type for the only back end of the default group."""
    return _only_backend()[0]


def own_abort() -> Callable[[], None] | None:
    """Return the function of the default group's back end that aborts its operations, but ``None`` for gloo.

    Gloo inherits a function that does nothing. Whether another back end also does cannot be detected from Python, and does no
    harm.
    """
    backend = _only_backend()[1]
    abort: Callable[[], None] | None = None if isinstance(backend, _GLOO) else backend.abort
    return abort


def _only_backend() -> tuple[str, Any]:
    group: Any = dist.group.WORLD
    for device in (torch.device("cpu"), *group._device_types):
        try:
            return device.type, group._get_backend(device)
        except RuntimeError:
            continue
    # A back end in Python may be the group itself.
    return "cpu", group
