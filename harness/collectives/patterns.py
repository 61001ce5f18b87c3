"""What the buffers hold before a collective, and what they must hold after it.

A buffer is cut into blocks of known values, small whole numbers that float32 adds exactly: a wrong
sum, a block of the wrong rank and blocks in the wrong order all show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BLOCKS = 4  # of the part that one rank gives or gets
_CYCLE = 13  # no multiple of BLOCKS, and sums stay below 2**24 up to 1600 ranks
POISON = -1.0  # in what a collective must overwrite; no result has it


@dataclass(frozen=True)
class Buffers:
    """The float32 tensors of one collective and size, shared by all libraries of a rank.

    ``receive`` is None where the collective works in place, both are None for a barrier.
    """

    collective: str
    bytes: int
    rank: int
    size: int
    send: Any = None
    receive: Any = None


@dataclass(frozen=True)
class _Layout:
    """Values of blocks in order; ``parts`` is how many ranks' shares a tensor holds."""

    parts: int
    values: tuple[float, ...]


def make_buffers(collective: str, count_bytes: int, rank: int, size: int, device: Any) -> Buffers:
    """Return buffers of ``count_bytes`` as definitions.py counts; the memory is touched by fill."""
    import torch

    count = count_bytes // 4
    send_count = count // size if collective == "all_gather" else count
    receive_count = {
        "all_gather": count,
        "reduce_scatter": count // size,
        "all_to_all": count,
        "send_recv": count,
    }.get(collective)

    def tensor(length: int | None) -> Any:
        return None if length is None else torch.empty(length, dtype=torch.float32, device=device)

    send = None if collective == "barrier" else tensor(send_count)
    return Buffers(collective, count_bytes, rank, size, send, tensor(receive_count))


def fill(buffers: Buffers) -> None:
    """Put this rank's values into what is sent, and poison into what is received.

    On a GPU it waits until that is done.
    """
    if buffers.send is None:
        return
    layout = _given(buffers.collective, buffers.rank, buffers.size)
    for block, value in zip(_blocks(buffers.send, layout.parts), layout.values, strict=True):
        block.fill_(value)
    if buffers.receive is not None:
        buffers.receive.fill_(POISON)
    if buffers.send.is_cuda:
        import torch

        torch.cuda.synchronize(buffers.send.device)


def fault(buffers: Buffers, result: Any) -> str | None:
    """Return what is wrong with a library's ``result``; None where every value is right."""
    if buffers.send is None:
        return None
    expected = buffers.send if buffers.receive is None else buffers.receive
    if result.numel() != expected.numel():
        return f"gave {result.numel()} values instead of {expected.numel()}"
    layout = _wanted(buffers.collective, buffers.rank, buffers.size)
    first, wrong_count = "", 0
    for block, value in zip(_blocks(result, layout.parts), layout.values, strict=True):
        if _all_are(block, value):
            continue
        wrong = block[block != value]
        first = first or f"gave {float(wrong[0]):g} instead of {value:g}"
        wrong_count += wrong.numel()
    return f"{first} in {wrong_count} of {result.numel()} places" if wrong_count else None


def _all_are(block: Any, value: float) -> bool:
    """Compare without a copy: one pass over what may be a gigabyte. NaN is its own least."""
    if not block.numel():
        return True
    low, high = block.aminmax()
    return bool(low == value) and bool(high == value)


def _given(collective: str, rank: int, size: int) -> _Layout:
    if collective == "all_reduce":
        return _Layout(1, tuple((rank + 1.0) * _mark(b) for b in range(BLOCKS)))
    if collective == "broadcast":
        return _Layout(1, _share(0) if rank == 0 else (POISON,) * BLOCKS)
    if collective == "reduce_scatter":
        return _Layout(size, tuple((rank + 1.0) * _mark(b) for b in range(BLOCKS * size)))
    if collective == "all_to_all":
        return _Layout(size, _shares(rank * size + to for to in range(size)))
    return _Layout(1, _share(rank))  # all_gather, send_recv


def _wanted(collective: str, rank: int, size: int) -> _Layout:
    total = size * (size + 1) / 2  # of rank + 1
    if collective == "all_reduce":
        return _Layout(1, tuple(total * _mark(b) for b in range(BLOCKS)))
    if collective == "broadcast":
        return _Layout(1, _share(0))
    if collective == "reduce_scatter":
        return _Layout(1, tuple(total * _mark(rank * BLOCKS + b) for b in range(BLOCKS)))
    if collective == "all_to_all":
        return _Layout(size, _shares(of * size + rank for of in range(size)))
    if collective == "all_gather":
        return _Layout(size, _shares(range(size)))
    return _Layout(1, _share((rank - 1) % size))  # send_recv


def _mark(block: int) -> int:
    return block % _CYCLE + 1


def _share(owner: int) -> tuple[float, ...]:
    return tuple(float(owner * BLOCKS + b + 1) for b in range(BLOCKS))


def _shares(owners: Any) -> tuple[float, ...]:
    return tuple(value for owner in owners for value in _share(owner))


def _blocks(tensor: Any, parts: int) -> Sequence[Any]:
    """Cut into ``parts`` equal parts, and each into ``BLOCKS``; some are empty in a tiny tensor."""
    flat = tensor.reshape(parts, -1)
    return [block for part in flat for block in part.tensor_split(BLOCKS)]
