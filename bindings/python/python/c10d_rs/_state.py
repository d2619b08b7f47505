"""Hands the state of one rank to others: tensors by collectives, the rest pickled."""

import io
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

# Small tensors are sent together, because each message has a cost. A large tensor is sent alone, because copying it also has a
# cost.
_CHUNK_BYTES = 1 << 20

# The size of the first message, which has the state of most programs except for the tensors.
_FIRST_BYTES = 16 << 10

_RANDOM = "c10d_rs.random"

# The shape and the type of each tensor.
_Layout = list[tuple[tuple[int, ...], torch.dtype]]


def sync(
    state: dict[str, Any], rank: int, source: int, takers: list[int], begun: Callable[[Any], None], *, has_random: bool
) -> None:
    """Give the state of the source to the takers. All ranks call it. The state is loaded only after all of it has arrived.

    ``begun`` is called for each operation that is not waited for at once.

    A single taker gets the tensors by an all-to-all to which the other ranks contribute nothing, because gloo's receive from one
    rank has no wait that another thread can interrupt.
    """
    if not takers:
        return
    if rank == source:
        values = {name: _value(entry) for name, entry in state.items()}
        if has_random:
            values[_RANDOM] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        pickled, tensors = _pack(values)
        layout = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        _pass_bytes(pickle.dumps((layout, pickled)), source)
    else:
        layout, pickled = pickle.loads(_pass_bytes(None, source))
        is_taker = rank in takers
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in layout] if is_taker else []
    _pass_tensors(layout, tensors, rank, source, takers, begun)
    if rank in takers:
        _load(state, _unpack(pickled, tensors))


def _pass_bytes(data: bytes | None, source: int) -> bytes:
    """Pass bytes to all. The first message has their number, and mostly all of them."""
    first = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
    number, start = first[:8].view(torch.int64), first[8:]
    content = torch.empty(0, dtype=torch.uint8)
    if data is not None:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        number.fill_(len(content))
        start[: len(content)] = content[: len(start)]
    dist.broadcast(first, group_src=source)
    if data is None:
        content = torch.empty(int(number.item()), dtype=torch.uint8)
        content[: len(start)] = start[: len(content)]
    if len(content) > len(start):
        dist.broadcast(content[len(start) :], group_src=source)
    return data if data is not None else content.numpy().tobytes()


def _pass_tensors(
    layout: _Layout, tensors: list[torch.Tensor], rank: int, source: int, takers: list[int], begun: Callable[[Any], None]
) -> None:
    """Pass tensors. The takers have empty tensors, and the other ranks have none.

    The next message is prepared while one is on its way. No more than ``IN_FLIGHT_MAX`` of ``_gloo`` are.
    """
    earlier: tuple[Any, torch.Tensor, list[torch.Tensor]] | None = None
    gets_data = len(takers) > 1 or rank in takers
    for indices, size in _chunks(layout):
        parts = [_as_bytes(tensors[index]) for index in indices] if tensors else []
        if len(parts) == 1:
            data = parts[0]
        elif rank == source:
            data = torch.cat(parts)
        else:
            data = torch.empty(size if gets_data else 0, dtype=torch.uint8)
        if rank in takers:
            # The system's pages come now, not while gloo's thread copies into them.
            data.zero_()
        if earlier is not None:
            _arrive(*earlier)
        work = _begin(data, rank, source, takers)
        begun(work)
        earlier = work, data, [] if rank == source else parts
    if earlier is not None:
        _arrive(*earlier)


def _begin(data: torch.Tensor, rank: int, source: int, takers: list[int]) -> Any:
    """Begin to pass a message to one taker or to all."""
    if len(takers) > 1:
        return dist.broadcast(data, group_src=source, async_op=True)
    nothing, none = torch.empty(0, dtype=torch.uint8), [0] * dist.get_world_size()
    if rank == source:
        return dist.all_to_all_single(nothing, data, none, _only(takers[0], len(data)), async_op=True)
    if rank in takers:
        return dist.all_to_all_single(data, nothing, _only(source, len(data)), none, async_op=True)
    return dist.all_to_all_single(nothing, nothing, none, none, async_op=True)


def _arrive(work: Any, data: torch.Tensor, parts: list[torch.Tensor]) -> None:
    """Wait for a message, and split it if it has several tensors."""
    work.wait()
    if len(parts) > 1:
        for part, received in zip(parts, data.split([len(part) for part in parts]), strict=True):
            part.copy_(received)


def _only(rank: int, size: int) -> list[int]:
    """Return a size for one rank, and 0 for the other ranks."""
    return [size if other == rank else 0 for other in range(dist.get_world_size())]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, without a copy if it is dense and in the memory of the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_id(self, value: Any) -> Any:
        """Leave out dense tensors: torch moves them."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        return self.tensors[pid]


def _pack(values: dict[str, Any]) -> tuple[bytes, list[torch.Tensor]]:
    file = io.BytesIO()
    tensors: list[torch.Tensor] = []
    _Pickler(file, tensors).dump(values)
    return file.getvalue(), tensors


def _unpack(data: bytes, tensors: list[torch.Tensor]) -> dict[str, Any]:
    values: dict[str, Any] = _Unpickler(io.BytesIO(data), tensors).load()
    return values


def _chunks(layout: _Layout) -> list[tuple[list[int], int]]:
    """Return which tensors travel together and their size, the same on all ranks."""
    chunks: list[tuple[list[int], int]] = []
    small: list[int] = []
    small_size = 0
    for index, (shape, dtype) in enumerate(layout):
        size = math.prod(shape) * dtype.itemsize
        if size >= _CHUNK_BYTES:
            chunks.append(([index], size))
        elif size:
            if small_size + size > _CHUNK_BYTES:
                chunks.append((small, small_size))
                small, small_size = [], 0
            small.append(index)
            small_size += size
    return [*chunks, (small, small_size)] if small else chunks


def _value(entry: Any) -> Any:
    return entry.state_dict() if hasattr(entry, "load_state_dict") else entry


def _load(state: dict[str, Any], values: dict[str, Any]) -> None:
    numbers = values.pop(_RANDOM, None)
    if values.keys() != state.keys():
        theirs, ours = sorted(values), sorted(state)
        raise ValueError(f"the source has the state of {theirs}, this process of {ours}: all members give the same names")
    for name, value in values.items():
        entry = state[name]
        if hasattr(entry, "load_state_dict"):
            entry.load_state_dict(value)
        elif isinstance(entry, torch.Tensor):
            with torch.no_grad():
                entry.copy_(value)
        else:
            state[name] = value
    if numbers is not None:
        torch.set_rng_state(numbers["torch"])
        random.setstate(numbers["python"])
