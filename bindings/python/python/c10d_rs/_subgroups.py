"""Torch's groups in one generation: the description of the default group, and the subgroups that ``new_group``,
``init_device_mesh`` and their users make.

Torch names a subgroup by a counter of the process, which differs between a newcomer and the other members, and its members
meet under that name in the store, where the keys of dead processes stay.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch import distributed as dist
from torch._C._distributed_c10d import ProcessGroup as _ProcessGroup
from torch.distributed import distributed_c10d as _c10d
from torch.distributed.device_mesh import DeviceMesh as _DeviceMesh

from c10d_rs._errors import MembershipChanged, MembershipError
from c10d_rs._native import Membership as _Native

# A generation makes fewer subgroups than this.
_NAMES = 1_000_000

# How late the calling thread notices that a subgroup cannot be made any more.
_SLICE_SECONDS = 0.05

_EARLIER = (
    "this group is of an earlier generation: make a new one in each generation, by new_group, "
    "and make what uses it again, for example by init_device_mesh and fully_shard"
)

# A number that torch does not use for a hook.
_HOOK = 0x63313064


def describe_generation(uuid: int) -> None:
    """Have torch's flight recorder note the generation of the collectives, because it numbers them from 1 in each generation.

    ``c10d flight`` reads the description: it compares the collectives of one generation only.
    """
    group: Any = _c10d._get_default_group()
    if hasattr(group, "_set_group_desc"):
        group._set_group_desc(f"generation {uuid}")


class Subgroups:
    """Names torch's subgroups by generation, and ends them with it, until it is closed."""

    def __init__(self, native: _Native, keys: str) -> None:
        """Begin. Keys of a generation begin with ``keys``, for the default group's store, and its uuid."""
        self._native = native
        self._keys = keys
        self._uuid: int | None = None
        world: Any = dist.group.WORLD
        self._world = world
        self._store = _c10d._world.pg_map[world][1]
        self._ended: list[Any] = []
        self._meshes: list[weakref.ref[Any]] = []
        self._ended_meshes: list[weakref.ref[Any]] = []
        self._original_make = original_make = _c10d._new_process_group_helper
        self._original_split = _ProcessGroup.split_group
        self._original_mesh = original_mesh = _DeviceMesh.__init__
        self._original_dimension = original_dimension = _DeviceMesh._init_one_process_group

        def make(size: int, rank: int | None, ranks: list[int], backend: str, store: Any, name: Any, **options: Any) -> Any:
            if self._uuid is None:
                raise MembershipError("torch's default group has no members yet: make other groups in `with generation:`")
            arguments = (size, rank, ranks, backend, store, name)
            if rank is None:
                return original_make(*arguments, **options)
            self._meet(dist.PrefixStore(f"{name}/met", store), rank, size, options.get("timeout"))
            return self._make(lambda: original_make(*arguments, **options))

        def split(*_: Any, **__: Any) -> Any:
            raise MembershipError("split_group makes groups that do not end with a generation: call new_group instead")

        def mesh(made: Any, *arguments: Any, **options: Any) -> None:
            original_mesh(made, *arguments, **options)
            # Meshes compare this value. Otherwise torch's caches would return the mesh of an earlier generation, with its groups.
            made._thread_id = self._uuid
            self._meshes.append(weakref.ref(made))

        def dimension(*arguments: Any) -> Any:
            # A dimension with all ranks would use the default group, which also works in later generations. Tensors that are
            # sharded for the ranks of this generation would have wrong values there.
            backend, _ = _c10d._world.pg_map[world]
            return original_dimension(*((backend, None) if it == (None, None) else it for it in arguments))

        _DeviceMesh.__init__ = mesh
        _DeviceMesh._init_one_process_group = dimension
        _c10d._new_process_group_helper = make
        _ProcessGroup.split_group = split

    def begin(self, uuid: int, size: int) -> None:
        """End the subgroups of the earlier generation, and name those that are made from now on after this one."""
        self._uuid = uuid
        groups = _c10d._world
        # The last reference to a group waits for an operation that gloo has lost. The program may drop its own reference now.
        last = self._ended
        for group in last:
            if group in groups.pg_map:
                dist.destroy_process_group(group)
        for mesh in self._ended_meshes:
            if (ended := mesh()) is not None and hasattr(ended, "_pg_registry"):
                # torch's caches keep meshes.
                ended._pg_registry.clear()
        self._ended_meshes, self._meshes = self._meshes, []
        if last:
            threading.Thread(target=last.clear, name="c10d-subgroups", daemon=True).start()
        self._ended = [group for group in groups.pg_map if group is not self._world]
        for group in self._ended:
            if hasattr(group, "register_pre_hook"):
                group.register_pre_hook(_HOOK, _refuse)
        groups.group_count = uuid % (1 << 32) * _NAMES
        backend, _ = groups.pg_map[self._world]
        groups.pg_map[self._world] = (backend, dist.PrefixStore(f"{self._keys}{uuid}/groups", self._store))
        groups.pg_group_ranks[self._world] = {rank: rank for rank in range(size)}

    def _meet(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        """Wait for the other members, so that torch's call takes milliseconds. The server stops the wait when the generation
        ends.
        """
        store.set(str(rank), "")
        store.wait([str(other) for other in range(size)], *([timeout] if timeout else []))

    def _make(self, make: Callable[[], Any]) -> Any:
        """Have torch make a group, on a thread, as its wait for the connection of a dead process has no end."""
        made: list[Any] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                made.append(make())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="c10d-new-group", daemon=True)
        self._native.subgroup_begins()
        try:
            thread.start()
            while thread.is_alive():
                thread.join(_SLICE_SECONDS)
                if thread.is_alive() and self._native.is_abandoned:
                    raise MembershipChanged("the members change before this group is made")
        finally:
            self._native.subgroup_ends()
        if failed:
            raise failed[0]
        return made[0]

    def close(self) -> None:
        """End. The subgroups of the last generation stay."""
        _c10d._new_process_group_helper = self._original_make
        _ProcessGroup.split_group = self._original_split
        _DeviceMesh.__init__ = self._original_mesh
        _DeviceMesh._init_one_process_group = self._original_dimension


def raise_if_of_earlier_generation(error: BaseException | None) -> None:
    """Raise MembershipError if torch has raised this one for a group that it has destroyed two generations later."""
    if isinstance(error, ValueError) and "is not initialized in the world group map" in str(error):
        raise MembershipError(_EARLIER) from error


def _refuse(_: Any) -> None:
    raise MembershipError(_EARLIER)
