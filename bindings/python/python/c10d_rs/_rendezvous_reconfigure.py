"""The function that PyTorch's documentation of ``_reconfigure`` calls: for programs that make and change the group themselves."""

import os
from datetime import timedelta
from typing import Any

from torch import distributed as dist

from c10d_rs._abort import device_type, own_abort
from c10d_rs._errors import MembershipChanged, MembershipError, class_of
from c10d_rs._gloo import DdpGuard, Waits
from c10d_rs._native import Membership as _Native
from c10d_rs._place import SILENCE_MAX, Place, check_torch
from c10d_rs._subgroups import Subgroups, describe_generation

_TIMEOUT = timedelta(minutes=10)

# Of torch's default group of env://.
_GROUP_KEYS = "{}//reconfigure/"
_KEYS = f"default_pg/0//{_GROUP_KEYS}"


def rendezvous_reconfigure(
    handle: str, *, min_size: int, timeout: timedelta = _TIMEOUT, step: int = 0
) -> tuple[int, list[str]]:
    """Return a uuid and the handles of all members for ``torch.distributed._reconfigure``, which all of them call now.

    Call it with ``_get_reconfigure_handle()``, after ``init_process_group(enable_reconfigure=True)`` and after each exception of
    a collective. The first time it waits for ``WORLD_SIZE`` members, or the timeout for ``min_size``. Wait for the work that
    ``_reconfigure`` returns: this waits until all members have called it, and raises MembershipChanged if one has not. In that
    case, call this function again. Torch's rank must be a number that no other process of the job has or had.

    Raises MembershipError if the group is whole, because the exception was the program's own, and the errors of ``join``.
    """
    global _group
    if _group is None:
        _group = _Group(handle, min_size, timeout)
    return _group.next_list(handle, timeout, step)


class _Group:
    def __init__(self, handle: str, min_size: int, timeout: timedelta) -> None:
        check_torch()
        place = Place(None, None)
        size = place.size_first(None)
        options = {"size_min": min_size, "size_first": max(size, min_size), "form_timeout": timeout.total_seconds()}
        # BACK END:RANK:UUID:CONSTRUCTOR'S RANK:ADDRESS
        member = int(handle.split(":")[3])
        device = device_type()
        keys = _KEYS.format(device)
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            keys = f"/worker/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{keys}"
        self.native: _Native = place.open(keys, member, 1, options, SILENCE_MAX)
        abort = own_abort()
        if abort is not None:
            self.native.free_by(abort)
        self.waits = Waits(self.native, self.confirm, is_gloo=abort is None)
        self.guard = DdpGuard()
        self.subgroups = Subgroups(self.native, _GROUP_KEYS.format(device))
        self.uuid: int | None = None
        self.has_joined = False
        self.is_out = False

    def next_list(self, handle: str, timeout: timedelta, step: int) -> tuple[int, list[str]]:
        native = self.native
        if not self.has_joined:
            self.has_joined = True
            native.join(handle, step)
        elif self.uuid is not None:
            self.uuid = None
            native.called(False)
        elif self.is_out:
            self.is_out = False
            native.left(handle, step)
        elif not native.is_broken_after_error():
            raise MembershipError("the group is whole: the exception was the program's own")
        while True:
            news = self.next(timeout)
            if news[0] == "leave":
                self.waits.check()
                native.left(handle, step)
            elif news[0] == "call":
                native.call_begins()
                self.uuid = news[1]
                describe_generation(news[1])
                return news[1], news[2]

    def next(self, timeout: timedelta | None) -> Any:
        news = self.native.next(timeout)
        if news[0] == "over":
            self.close()
            raise class_of(news[1] or "Evicted")(news[2] or "this process has left the group")
        return news

    def confirm(self) -> None:
        """After a wait for torch's call, wait until the other members have done their calls."""
        if self.uuid is None or dist._get_reconfigure_handle().split(":")[2] != str(self.uuid):
            return
        self.uuid = None
        self.native.called(True)
        # The other members' calls have a timeout: the service waits for them no longer than ack_timeout.
        while (news := self.next(None))[0] != "enter":
            if news[0] == "leave":
                self.is_out = True
                raise MembershipChanged("a member was lost before all had the list: call rendezvous_reconfigure again")
        self.subgroups.begin(news[1], len(news[4]))

    def close(self) -> None:
        global _group
        _group = None
        self.waits.close()
        self.guard.close()
        self.subgroups.close()
        self.native.close()


_group: _Group | None = None
