"""A process group whose survivors continue when a member dies: the loop of ``c10d_rs.torch.join``.

The server makes the decisions (docs/spec/membership.md). This module calls torch, and runs on the thread of the program.
"""

import logging
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Optional

import torch
from torch import distributed as dist

from c10d_rs._errors import DistError, MembershipChanged, MembershipError, Unrecoverable, class_of
from c10d_rs._gloo import DdpGuard, Waits, ddp, more_threads
from c10d_rs._native import Membership as _Native
from c10d_rs._native import Store as _Store
from c10d_rs._place import SILENCE_MAX, Place, check_torch
from c10d_rs._quick_exit import end_quickly_after_exceptions
from c10d_rs._state import sync
from c10d_rs._subgroups import Subgroups, describe_generation, raise_if_of_earlier_generation

_log = logging.getLogger("c10d_rs")

# The longest step between two boundaries of a program without a checkpoint that takes longer; of torch's collectives.
_TIMEOUT = timedelta(minutes=30)

# torch's first group is called 0, and gloo serves the CPU.
_GROUP_KEYS = "cpu//reconfigure/"
_TORCH_KEYS = f"torch/0//{_GROUP_KEYS}"

# This bit is set in the number of steps that is sent to the other members, once this process has the state of the job. So a
# process without the state, whose ``sync`` has not succeeded yet, is behind all processes with the state, whatever its number.
_HAS_STATE = 1 << 62

# The timeout of torch's call, which takes milliseconds when all members are ready. A member that stops during the call costs the
# other members five times this time.
_CALL_TIMEOUT = timedelta(seconds=2)

# How long a finished member waits for the other members to finish.
_FINISH_TIMEOUT = timedelta(minutes=30)


def join(
    *,
    min_size: int | None = None,
    store: _Store | None = None,
    name: str | None = None,
    first_size: int | None = None,
    timeout: timedelta = _TIMEOUT,
    silence_max: timedelta = SILENCE_MAX,
    step: int = 0,
    **waits: timedelta,
) -> "Membership":
    """Join the group of this job, as the default process group of torch, over gloo. Iterate over the result.

    The store is at ``MASTER_ADDR`` and ``MASTER_PORT``, or is a ``TCPStore`` of this package. A launcher ``c10d run`` or ``c10d
    store serve`` serves it, because PyTorch's server keeps no groups. The group forms with ``first_size`` members, by default
    ``WORLD_SIZE``, and continues with at least ``min_size``. All members give the same numbers and waits. The server removes a
    process that sends nothing for ``silence_max``. ``step`` is the number of steps that this process has done already.

    The waits: ``form_timeout``, ``ready_timeout``, ``below_min_timeout``, ``replace_wait``, ``boundary_timeout``.
    Raises Unrecoverable if torch or the server cannot do it.
    """
    check_torch()
    if dist.is_initialized():
        raise Unrecoverable("join makes torch's default process group, but there is one: call join instead")
    place = Place(name, store)
    size_first = place.size_first(first_size)
    size_min = min_size or int(os.environ.get("C10D_MEMBERS_MIN", "1"))
    if place.is_mixed:
        # All workers restart when one dies. Until then, the other workers must not finish the job without it.
        size_min = size_first
    options = {name: wait.total_seconds() for name, wait in waits.items()}
    options |= {"size_min": size_min, "size_first": max(size_first, size_min)}
    member, incarnation, start = place.identity(size_first)
    native = place.open(place.key(_TORCH_KEYS), member, incarnation, options, silence_max)
    try:
        with more_threads():
            dist.init_process_group(
                "gloo",
                store=place.torch_store(),
                rank=start,
                world_size=start + 1,
                timeout=timeout,
                enable_reconfigure=True,
            )
    except BaseException:
        native.close()
        raise
    if _is_kept():
        end_quickly_after_exceptions()
    return Membership(native, member, step)


def _is_kept() -> bool:
    """Whether a launcher keeps the other workers when one ends."""
    return os.environ.get("C10D_KEEP_WORKERS") == "1"


class Membership:
    """This process as a member. Each turn of a loop over it is a generation: a list of members that all have agreed to.

    The loop ends when the work is finished, or after ``leave``.
    """

    def __init__(self, native: _Native, member: int, step: int) -> None:
        """Call ``join`` instead."""
        self._native = native
        self._waits = Waits(native)
        self._guard = DdpGuard()
        self._subgroups = Subgroups(native, _GROUP_KEYS)
        self._id = member
        self._step = step
        self._has_state = False
        self._members: list[int] = []
        self._generation: Generation | None = None
        self._has_joined = False
        self._is_leaving = False
        self._is_finishing = False
        self._is_over = False

    @property
    def id(self) -> int:
        """The number of this process, which stays."""
        return self._id

    @property
    def step(self) -> int:
        """How many steps this process has done."""
        return self._step

    def __iter__(self) -> Iterator["Generation"]:
        return self

    def __next__(self) -> "Generation":
        """Wait for the next generation. Raises Evicted, BelowMinimum or Unrecoverable if there is none for this process."""
        if self._generation is not None and not self._is_over and not self._native.must_leave:
            raise Unrecoverable("the generation is whole: do its work in `with generation:`")
        self._generation = None
        if not self._has_joined:
            # The process joins only now, because the other members wait for it from then on.
            self._has_joined = True
            self._native.join(dist._get_reconfigure_handle(), self._progress())
        elif not self._is_over:
            self._waits.check()
        while not self._is_over:
            self._generation = self._advance()
            if self._generation is not None:
                return self._generation
        raise StopIteration

    def leave(self) -> None:
        """Leave the group at the next boundary, where the loop ends. Call it in a generation, before ``boundary``."""
        self._is_leaving = True
        self._native.leave()

    def finish(self) -> None:
        """Wait until all members have done their last step: then the group has finished, and the loop ends.

        Raises MembershipChanged, which ``with generation:`` takes, if one of them is lost before.
        """
        if self._is_over or self._generation is None:
            return
        # The service waits for the other members. A collective would be paired with one of their steps.
        self._is_finishing = True
        try:
            is_over = self._native.finish(_FINISH_TIMEOUT)
        except TimeoutError:
            _log.warning("the other members have not finished after %s", _FINISH_TIMEOUT)
            self.close()
            return
        if not is_over:
            raise MembershipChanged("the members change before all of them have finished")
        self._advance()

    def close(self) -> None:
        """End the membership without waiting for the other members, which continue without this process."""
        self._is_over = True
        self._waits.close()
        self._guard.close()
        self._subgroups.close()
        self._native.close()

    def _progress(self) -> int:
        """Return the number that the members compare: the member with the highest number gives its state."""
        return self._step | _HAS_STATE if self._has_state else self._step

    def _advance(self, timeout: timedelta | None = None) -> Optional["Generation"]:
        """Do the next thing. Return a generation if it is that."""
        news = self._native.next(timeout)
        if news[0] == "leave":
            self._native.left(dist._get_reconfigure_handle(), self._progress())
        elif news[0] == "call":
            _, uuid, handles = news
            self._native.call_begins()
            self._native.called(_call(uuid, handles))
        elif news[0] == "enter":
            self._is_finishing = False
            _, uuid, rank, source, seats = news
            self._subgroups.begin(uuid, len(seats))
            return Generation(self, uuid, rank, source, seats)
        else:
            _, error, text = news
            self.close()
            if error is None and not self._members and _is_kept():
                # This makes the launcher of a node that entered at the end of the job exit like the launchers of the other nodes.
                _log.warning("the others have finished, and nothing is left to do: this process exits with 0")
                sys.exit(0)
            if error is None and not self._is_leaving and not self._is_finishing:
                error, text = "Evicted", "the others have finished without this process"
            if error is not None and not self._is_finishing:
                raise class_of(error)(text)
        return None


class Generation:
    """The members that take part now. Use it as ``with generation:`` around all code that uses the process group."""

    def __init__(
        self,
        membership: Membership,
        uuid: int,
        rank: int,
        source: int,
        seats: list[tuple[int, int, int | None]],
    ) -> None:
        """Iterate over a ``Membership`` instead."""
        self._membership = membership
        self.uuid = uuid
        """What torch calls the communicator: no other generation has it."""
        self.rank = rank
        self.size = len(seats)
        self.source = source
        """The rank whose state the others take: it has done the most steps."""
        self.members = [member for member, _, _ in seats]
        """The ids, by rank."""
        earlier, membership._members = membership._members, self.members
        self.joined = [member for member, _, previous in seats if previous is None]
        """The ids of those that were in no generation before."""
        self.left = [member for member in earlier if member not in set(self.members)]
        """The ids of those that were in this process' last generation and are in this one no more."""
        self.is_first = all(previous is None for _, _, previous in seats)
        progress = seats[source][1]
        self._has_state = progress & _HAS_STATE != 0
        self._newest = progress & ~_HAS_STATE
        self._takers = [
            rank
            for rank, (_, others, previous) in enumerate(seats)
            if rank != source and (previous is None or others != progress or not self._has_state)
        ]
        self._is_synced = False

    @property
    def is_current(self) -> bool:
        """Whether this is the generation of this process, whole or broken."""
        return self._membership._generation is self and not self._membership._is_over

    @property
    def has_change(self) -> bool:
        """Whether this process knows that members will join or leave at a boundary. Does not block, and sends no request.

        Other members may be notified earlier or later. If a collective in each step tells all members whether one of them has
        been notified, call ``boundary`` only after such steps: other steps then need no request to the store.
        """
        return self.is_current and self._membership._native.has_change

    def sync(self, state: dict[str, Any]) -> int:
        """Give the state of the source to members that are new or behind, and return the number of steps in it.

        All members call it, with the same names. An entry with ``load_state_dict`` is loaded; a tensor is overwritten; another
        value is replaced in the dictionary. A member that takes the state also takes torch's random numbers, unless no member had
        the state yet, for example in the first generation.
        """
        begun = self._membership._waits.begun
        sync(state, self.rank, self.source, self._takers, begun, has_random=self._has_state)
        self._is_synced = True
        self._membership._has_state = True
        self._membership._step = self._newest
        return self._newest

    def ddp(self, module: Any, **options: Any) -> Any:
        """Return a ``DistributedDataParallel`` for this generation. Call ``sync`` before.

        A DDP object runs only in the generation in which it was created. The waits of this object end when its generation is
        broken.
        """
        if not self._is_synced:
            raise MembershipError("call generation.sync first: DDP takes the weights of rank 0, which may be new")
        waits = self._membership._waits
        return ddp(module, options, size=self.size, waits=waits, is_current=lambda: self.is_current)

    def done(self, step: int) -> None:
        """Report that this many steps are done and in the state, without a request, if not each step has a boundary.

        Call it when the state has changed, before the next collective. A member that is behind takes the state of the most
        advanced member. Members use this number to find the newest state and the next step.
        """
        _check_step(step)
        if self.is_current:
            self._membership._step = step

    def boundary(self, step: int) -> None:
        """Report that this many steps are done. Raises MembershipChanged if the group changes here.

        All members call it after the same steps. It is one request to the store. Call ``done`` after steps without it;
        ``has_change`` shows which steps need it.
        """
        _check_step(step)
        self._membership._step = step
        if not self._membership._native.boundary(step):
            raise MembershipChanged("the members change at this step boundary")

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Handle the exceptions of a broken generation. Without an exception, the work is done, so this calls ``finish``."""
        membership = self._membership
        if error is None:
            try:
                membership.finish()
            except RuntimeError as failed:
                if not self._is_broken(failed):
                    membership.close()
                    raise
            return False
        if self._is_broken(error):
            return True
        membership.close()
        raise_if_of_earlier_generation(error)
        return False

    def _is_broken(self, error: BaseException) -> bool:
        """Whether an exception was caused by a change of the members. Only the program knows other causes."""
        membership = self._membership
        if membership._is_over or not _is_of_torch(error):
            return False
        if isinstance(error, MembershipError):
            is_broken = isinstance(error, MembershipChanged)
        else:
            is_broken = membership._native.is_broken_after_error()
        if is_broken:
            _log.info("generation %d of %d members ends: %s", self.uuid, self.size, error)
        return is_broken


def _check_step(step: int) -> None:
    """Raise ValueError for a number that has another meaning: with the mark of a state, or the end of the work."""
    if not 0 <= step < _HAS_STATE:
        raise ValueError(f"cannot count {step} steps: give a number from 0 to 2**62 - 1")


# RuntimeErrors that no other member causes.
_OF_THE_PROGRAM = (NotImplementedError, RecursionError, torch.cuda.OutOfMemoryError)


def _is_of_torch(error: BaseException) -> bool:
    """Whether a failed collective may be the reason: torch raises RuntimeError for it."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, RuntimeError) and not isinstance(cause, _OF_THE_PROGRAM):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def _call(uuid: int, handles: list[str]) -> bool:
    """Have torch build the mesh, and return whether it could."""
    describe_generation(uuid)
    try:
        dist._reconfigure(uuid, handles, timeout=_CALL_TIMEOUT).wait()
    except RuntimeError as error:
        _log.info("torch's call for generation %d failed: %s", uuid, error)
        return False
    return True
