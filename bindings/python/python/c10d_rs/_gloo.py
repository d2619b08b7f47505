"""What gloo lacks: waits that end when a generation is broken, and DDP objects that cannot be used in the wrong one.

The native thread ends the receiving side of a broken mesh's connections, on which gloo's operations fail. Gloo forgets those
that it has begun to send or to receive (``Pair::signalException`` visits pending ones only): they wait for the group's
timeout. So waits are made in slices, and barriers of another operation.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import AllreduceOptions as _AllreduceOptions
from torch._C._distributed_c10d import ProcessGroup as _ProcessGroup
from torch._C._distributed_c10d import Work as _Work
from torch.nn.parallel import DistributedDataParallel as _Ddp

from c10d_rs._errors import MembershipChanged, MembershipError, Unrecoverable
from c10d_rs._native import Membership as _Native

if TYPE_CHECKING:
    from c10d_rs._membership import Generation

# How late a wait notices that its operation has been lost.
_SLICE = timedelta(milliseconds=50)

# OpType::SEND, RECV and RECVANYSOURCE: a wait for one that times out closes its connections.
_POINT_TO_POINT = (12, 13, 14)

# Each lost operation occupies one of gloo's threads until the group's timeout.
_LOST_MAX = 1


class Waits:
    """Makes waits for torch's operations end with the generation, until it is closed."""

    def __init__(self, native: _Native, after: Callable[[], None] = lambda: None, *, is_gloo: bool = True) -> None:
        """Begin. ``after`` is called after each wait for an operation. Another back end's waits are left alone."""
        self._lost: list[Any] = []
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
                    # It may have ended in between: then torch says how. Some operations have no waits with an end.
                    if not work.is_completed() and "not implemented" not in str(error):
                        result = None
                    else:
                        result = original(work)
                if result is not None:
                    after()
                    return result
                if native.is_abandoned:
                    self._lost.append(work)
                    raise MembershipChanged("the members change, and gloo has lost this operation")

        _Work.wait = wait
        self._original_barrier = original_barrier = _ProcessGroup.barrier

        def barrier(group: Any, *arguments: Any, **named: Any) -> Any:
            """Begin what ``torch.distributed.barrier`` asks for. Gloo's own waits for lost operations too."""
            opts = named.get("opts")
            if opts is None or opts.device is None or opts.device.type != "cpu":
                return original_barrier(group, *arguments, **named)
            options = _AllreduceOptions()
            options.asyncOp, options.timeout = opts.asyncOp, opts.timeout
            return group.allreduce([torch.zeros(1)], options)

        if is_gloo:
            _ProcessGroup.barrier = barrier

    def check(self) -> None:
        """Raise Unrecoverable if gloo has no thread left."""
        self._lost = [work for work in self._lost if not work.is_completed()]
        if len(self._lost) > _LOST_MAX:
            raise Unrecoverable("gloo has lost several operations, and has no thread left: restart this process")

    def close(self) -> None:
        """End."""
        _Work.wait = self._original
        _ProcessGroup.barrier = self._original_barrier


class DdpGuard:
    """Refuses each ``DistributedDataParallel`` in other generations than that in which it was made, until it is closed.

    One whose backward failed has the divisor of that iteration in the next one: gradients that are wrong by the factor of the
    sizes, once, without an error. A newcomer's has other buckets than an old one, which ends processes.
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


def ddp(generation: "Generation", module: Any, options: dict[str, Any]) -> Any:
    """Return a ``DistributedDataParallel`` whose waits end with this generation."""
    wrapped = _Ddp(module, **options)
    pending: list[tuple[Any, Any, Any]] = []

    def average(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Add up a bucket while the next one is made, and wait for all with the last: torch's own wait has no end."""
        if not generation.is_current:
            raise MembershipError("this backward is of an earlier generation")
        tensor = bucket.buffer().div_(generation.size)
        future: Any = torch.futures.Future()
        pending.append((dist.all_reduce(tensor, async_op=True), future, tensor))
        if bucket.is_last():
            operations, pending[:] = pending[:], []
            for work, _, _ in operations:
                work.wait()
            for _, done, result in operations:
                done.set_result(result)
        return future

    wrapped.register_comm_hook(None, average)
    return wrapped
