"""Hands the state of one rank to others: tensors by collectives, the rest pickled."""

import io
import pickle
import random
from typing import Any

import torch
from torch import distributed as dist

# Small tensors travel together, as a message has a cost of its own; a large one alone, as a copy has, too.
_CHUNK_BYTES = 1 << 20

_RANDOM = "c10d_rs.random"


def sync(state: dict[str, Any], rank: int, source: int, takers: list[int], *, has_random: bool) -> None:
    """Give the state of the source to the takers. All ranks call it. Nothing is loaded before all has arrived.

    A single taker gets the tensors by an all-to-all in which the others have nothing to pass: gloo's receive from one rank has no
    wait that another thread can end.
    """
    if not takers:
        return
    is_source = rank == source
    tensors: list[torch.Tensor] = []
    if is_source:
        values = {name: _value(entry) for name, entry in state.items()}
        if has_random:
            values[_RANDOM] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        pickled, tensors = _pack(values)
        _pass_bytes(pickled, source)
    else:
        values = _unpack(_pass_bytes(None, source), tensors)
    taker = takers[0] if len(takers) == 1 else None
    for chunk in _chunks(tensors):
        _pass_tensors(chunk, rank, source, taker)
    if rank in takers:
        _load(state, values)


def _pass_bytes(data: bytes | None, source: int) -> bytes:
    size = torch.tensor([len(data or b"")], dtype=torch.int64)
    dist.broadcast(size, group_src=source)
    if data is None:
        content = torch.empty(int(size.item()), dtype=torch.uint8)
    else:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    dist.broadcast(content, group_src=source)
    return data if data is not None else content.numpy().tobytes()


def _pass_tensors(tensors: list[torch.Tensor], rank: int, source: int, taker: int | None) -> None:
    """Pass tensors of which the others have empty ones, to one taker or to all."""
    nothing, none = torch.empty(0, dtype=torch.uint8), [0] * dist.get_world_size()
    if taker is not None and rank not in (source, taker):
        dist.all_to_all_single(nothing, nothing, none, none)
        return
    parts = [_as_bytes(tensor) for tensor in tensors]
    if len(parts) == 1:
        data = parts[0]
    elif rank == source:
        data = torch.cat(parts)
    else:
        data = torch.empty(sum(map(len, parts)), dtype=torch.uint8)
    if taker is None:
        dist.broadcast(data, group_src=source)
    elif rank == source:
        dist.all_to_all_single(nothing, data, none, _only(taker, len(data)))
    else:
        dist.all_to_all_single(data, nothing, _only(source, len(data)), none)
    if len(parts) > 1 and rank != source:
        for part, received in zip(parts, data.split([len(part) for part in parts]), strict=True):
            part.copy_(received)


def _only(rank: int, size: int) -> list[int]:
    """Return a size for one rank, and none for the others."""
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
        if not value.numel():
            return None
        self.tensors.append(value)
        return tuple(value.shape), value.dtype


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, pid: Any) -> torch.Tensor:
        shape, dtype = pid
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]


def _pack(values: dict[str, Any]) -> tuple[bytes, list[torch.Tensor]]:
    file = io.BytesIO()
    tensors: list[torch.Tensor] = []
    _Pickler(file, tensors).dump(values)
    return file.getvalue(), tensors


def _unpack(data: bytes, tensors: list[torch.Tensor]) -> dict[str, Any]:
    values: dict[str, Any] = _Unpickler(io.BytesIO(data), tensors).load()
    return values


def _chunks(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the same parts on all ranks, as they depend on the sizes only."""
    chunks: list[list[torch.Tensor]] = []
    small: list[torch.Tensor] = []
    room = 0
    for tensor in tensors:
        size = int(tensor.numel() * tensor.element_size())
        if size >= _CHUNK_BYTES:
            chunks.append([tensor])
            continue
        if size > room:
            small = []
            chunks.append(small)
            room = _CHUNK_BYTES
        small.append(tensor)
        room -= size
    return chunks


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
