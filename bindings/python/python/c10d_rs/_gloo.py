"""Additions to gloo: waits that end when a generation is broken, and DDP objects that cannot be used in the wrong generation.

The native thread shuts down the receiving side of a broken mesh's connections, so that gloo's operations fail. Gloo drops
operations that it has begun to send or to receive (``Pair::signalException`` visits only pending operations): they wait for the
group's timeout. Therefore waits are split into slices, and barriers use a different operation.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import AllreduceOptions as _AllreduceOptions
from torch._C._distributed_c10d import ProcessGroup as _ProcessGroup
from torch._C._distributed_c10d import Work as _Work
from torch.nn.parallel import DistributedDataParallel as _Ddp

from c10d_rs._errors import MembershipChanged, MembershipError, Unrecoverable
from c10d_rs._native import Membership as _Native

# How late a wait notices that its operation has been lost.
_SLICE = timedelta(milliseconds=50)

# OpType::SEND, RECV and RECVANYSOURCE: a wait for such an operation closes its connections if it times out.
_POINT_TO_POINT = (12, 13, 14)

# Each lost operation occupies one of gloo's threads until the group's timeout, and gloo has two: if both are lost, all later
# operations wait without an error.
_THREADS = 16

# The operations of this package that are on their way at once. All of them can be lost by one change.
IN_FLIGHT_MAX = 2


@contextmanager
def more_threads() -> Iterator[None]:
    """Have torch make groups over gloo that have more threads, as far as this release can."""
    if hasattr(dist.Backend, "_ensure_backend_registered"):
        dist.Backend._ensure_backend_registered("gloo")
    plugins = getattr(dist.Backend, "_plugins", {})
    plugin = plugins.get("GLOO")
    if plugin is None:
        yield
        return

    def create(*arguments: Any) -> Any:
        group = plugin.creator_fn(*arguments)
        options: Any = getattr(group, "options", None)
        if len(arguments) != 2 or not all(hasattr(options, name) for name in ("_threads", "enable_reconfigure")):
            return group
        made_for = arguments[0]
        options._threads = _THREADS
        # The first group has not met any other rank yet. The second group has the same device.
        return dist.ProcessGroupGloo(made_for.store, made_for.group_rank, made_for.group_size, options)

    plugins["GLOO"] = plugin._replace(creator_fn=create)
    try:
        yield
    finally:
        plugins["GLOO"] = plugin


def _thread_count() -> int:
    """Return how many operations of the default group gloo does at once."""
    assert dist.group.WORLD is not None
    options = getattr(dist.group.WORLD._get_backend(torch.device("cpu")), "options", None)
    return getattr(options, "_threads", 2)


class Waits:
    """Makes waits for torch's operations stop with the generation, until this object is closed."""

    def __init__(self, native: _Native, after: Callable[[], None] = lambda: None, *, is_gloo: bool = True) -> None:
        """Begin. ``after`` is called after each wait for an operation. Another back end's waits are left alone."""
        self._begun: list[Any] = []
        # One thread is left even after the next change.
        self._lost_max = max(1, _thread_count() - IN_FLIGHT_MAX - 1) if is_gloo else 0
        self._original = original = _Work.wait

        def wait(work: Any, timeout: timedelta | None = None) -> Any:
            """Wait as torch does; for a collective without a timeout in slices."""
            if timeout or work._get_op_type() in _POINT_TO_POINT:
                return original(work, timeout) if timeout else original(work)
            if not is_gloo:
                # One of NCCL that times out would end its communicator.
                result = original(work)
                after()
                return result
            while True:
                try:
                    result = original(work, _SLICE)
                except RuntimeError as error:
                    # It may have ended in between: torch then returns the result. Some operations have no waits with a timeout.
                    if not work.is_completed() and "not implemented" not in str(error):
                        result = None
                    else:
                        result = original(work)
                if result is not None:
                    after()
                    return result
                if native.is_abandoned:
                    self.begun(work)
                    raise MembershipChanged("the members change, and gloo has lost this operation")

        _Work.wait = wait
        self._original_barrier = original_barrier = _ProcessGroup.barrier

        def barrier(group: Any, *arguments: Any, **named: Any) -> Any:
            """Begin the barrier that ``torch.distributed.barrier`` requests. Gloo's own barrier would also wait for lost
            operations.
            """
            opts = named.get("opts")
            if opts is None or opts.device is None or opts.device.type != "cpu":
                return original_barrier(group, *arguments, **named)
            options = _AllreduceOptions()
            options.asyncOp, options.timeout = opts.asyncOp, opts.timeout
            return group.allreduce([torch.zeros(1)], options)

        if is_gloo:
            _ProcessGroup.barrier = barrier

    def begun(self, work: Any) -> None:
        """Count an operation, until it has ended, that may be lost without a wait for it."""
        self._begun = [earlier for earlier in self._begun if earlier is not work and not earlier.is_completed()]
        self._begun.append(work)

    def check(self) -> None:
        """Raise Unrecoverable if gloo may soon have no thread left. Call it after a change."""
        self._begun = [work for work in self._begun if not work.is_completed()]
        if len(self._begun) > self._lost_max:
            raise Unrecoverable(f"gloo has lost {len(self._begun)} operations, and has hardly a thread left: restart this process")

    def close(self) -> None:
        """End."""
        _Work.wait = self._original
        _ProcessGroup.barrier = self._original_barrier


class DdpGuard:
    """Refuses each ``DistributedDataParallel`` outside of its own generation, until this object is closed.

    An object whose backward failed keeps the divisor of that iteration for the next iteration: its gradients are wrong once, by
    the factor of the sizes, without an error. A newcomer's object has different buckets than an older object, which makes
    processes exit.
    """

    def __init__(self) -> None:
        """Begin with the objects that are made from now on."""
        self._original = original = _Ddp.__init__

        def init(wrapped: Any, *arguments: Any, **options: Any) -> None:
            original(wrapped, *arguments, **options)
            wrapped.register_forward_pre_hook(_OfGeneration(_communicator()))

        _Ddp.__init__ = init

    def close(self) -> None:
        """End with the objects that were made until now."""
        _Ddp.__init__ = self._original


class _OfGeneration:
    """A hook that fails in another generation. A class, as a DDP object can be copied and pickled."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    # This is excluded from torch.compile's traces, which cannot request the handle. Besides, the answer is not a constant of a
    # compiled forward.
    @torch._disable_dynamo(recursive=True)  # type: ignore[untyped-decorator]
    def __call__(self, *_: Any) -> None:
        if _communicator() != self.uuid:
            raise MembershipError(
                "this DDP object is of an earlier generation, in which its gradients may have been left half done: "
                "make a new one in each generation, by generation.ddp or DistributedDataParallel"
            )


def _communicator() -> str:
    """Return what torch calls the communicator of the default group now."""
    uuid: str = dist._get_reconfigure_handle().split(":")[2]
    return uuid


def ddp(module: Any, options: dict[str, Any], *, size: int, waits: Waits, is_current: Callable[[], bool]) -> Any:
    """Return a ``DistributedDataParallel`` for a generation of this size. Its waits end when the generation is not current."""
    wrapped = _Ddp(module, **options)
    on_their_way: list[Any] = []
    results: list[tuple[Any, Any]] = []

    def average(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Add up a bucket while the next one is made, and wait for all with the last: torch's own wait has no end."""
        if not is_current():
            raise MembershipError("this backward is of an earlier generation")
        if len(on_their_way) == IN_FLIGHT_MAX:
            on_their_way.pop(0).wait()
        tensor = bucket.buffer().div_(size)
        future: Any = torch.futures.Future()
        work = dist.all_reduce(tensor, async_op=True)
        waits.begun(work)
        on_their_way.append(work)
        results.append((future, tensor))
        if bucket.is_last():
            while on_their_way:
                on_their_way.pop(0).wait()
            done, results[:] = results[:], []
            for future, tensor in done:
                future.set_result(tensor)
        return future

    wrapped.register_comm_hook(None, average)
    return wrapped
