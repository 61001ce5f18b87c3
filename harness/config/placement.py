"""Devices per node: ``2x4``, ``8+2``, or a count that policy resolves on the machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from harness.errors import ValidationError

CURE = "ask for fewer, or allow more with --slots"
MAX_DEVICES = 1_000_000  # a typing error should not become a list of a billion nodes

_GRID = re.compile(r"(\d{1,7})x(\d{1,7})", re.ASCII)
_SUM = re.compile(r"\d{1,7}(\+\d{1,7})+", re.ASCII)
_COUNT = re.compile(r"\d{1,7}", re.ASCII)


@dataclass(frozen=True)
class Placement:
    """Where the ranks go. ``devices`` counts them node by node; it is empty for a mere count."""

    count: int
    devices: tuple[int, ...] = ()

    @classmethod
    def parse(cls, value: object) -> Placement:
        """Read ``"2x4"`` (nodes × devices), ``"8+2"`` or a count; ValueError says what is wrong."""
        if isinstance(value, Placement):
            return value
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"{value!r} is not a placement: write 2x4, 8+2 or a device count")
        text = str(value).replace(" ", "")
        if grid := _GRID.fullmatch(text):
            nodes, each = int(grid[1]), int(grid[2])
            if not 0 < nodes * each <= MAX_DEVICES:
                raise ValueError(f"placement {text} has {nodes * each} devices")
            return cls(nodes * each, (each,) * nodes)
        if _SUM.fullmatch(text):
            devices = tuple(int(part) for part in text.split("+"))
            if min(devices) < 1 or sum(devices) > MAX_DEVICES:
                raise ValueError(f"placement {text}: each node needs at least one device")
            return cls(sum(devices), devices)
        if _COUNT.fullmatch(text) and 0 < int(text) <= MAX_DEVICES:
            return cls(int(text))
        raise ValueError(f"{value!r} is not a placement: write 2x4, 8+2 or a device count above 0")

    def __str__(self) -> str:
        if not self.devices:
            return str(self.count)
        if len(set(self.devices)) == 1:
            return f"{len(self.devices)}x{self.devices[0]}"
        return "+".join(map(str, self.devices))

    def resolve(self, slots: Sequence[int], policy: str, cure: str = CURE) -> tuple[int, ...]:
        """Return devices per node on nodes with ``slots`` devices each, in the machine's order.

        ``pack`` fills a node before the next is used; ``spread`` evens out over all nodes.
        Raises ValidationError where the machine is too small; ``cure`` says what to do then.
        """
        if self.devices:
            return self._fit(slots, cure)
        if self.count > sum(slots):
            raise ValidationError(
                f"placement {self}: {self.count} ranks, but the machine has {sum(slots)} slots "
                f"({_counts(slots)}); {cure}"
            )
        taken = _pack(self.count, slots) if policy == "pack" else _spread(self.count, slots)
        return tuple(n for n in taken if n)

    def _fit(self, slots: Sequence[int], cure: str) -> tuple[int, ...]:
        if len(self.devices) > len(slots):
            raise ValidationError(
                f"placement {self} needs {len(self.devices)} nodes, but there "
                f"{'is' if len(slots) == 1 else 'are'} {len(slots)}"
            )
        for node, (wanted, there) in enumerate(zip(self.devices, slots, strict=False)):
            if wanted > there:
                raise ValidationError(
                    f"placement {self}: {wanted} ranks on node {node}, which has {there} "
                    f"slot{'' if there == 1 else 's'}; {cure}"
                )
        return self.devices

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema()
        )


def _counts(slots: Sequence[int]) -> str:
    """Return slots a node, "8+8" or "64 nodes of 8"."""
    if len(slots) > 4 and len(set(slots)) == 1:
        return f"{len(slots)} nodes of {slots[0]}"
    return "+".join(map(str, slots))


def _pack(count: int, slots: Sequence[int]) -> list[int]:
    taken = []
    for there in slots:
        taken.append(min(count, there))
        count -= taken[-1]
    return taken


def _spread(count: int, slots: Sequence[int]) -> list[int]:
    # The emptiest node with room takes the next rank; ties go to the earlier node. That is a level
    # up to which all nodes are filled, as far as they have room, and one more on the first of them.
    low, high = 0, max(slots)  # of ranks a node; the highest level that ``count`` can fill
    while low < high:
        level = (low + high + 1) // 2
        if sum(min(level, there) for there in slots) <= count:
            low = level
        else:
            high = level - 1
    taken = [min(low, there) for there in slots]
    left = count - sum(taken)
    for node, there in enumerate(slots):
        if left and there > low:
            taken[node] += 1
            left -= 1
    return taken
