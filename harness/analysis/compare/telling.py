"""What tells the rows of a comparison apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.compare.items import Item

_ALWAYS_TOLD = ("engine", "backend", "batch_size", "global_batch_size")
_FIRST_TOLD = ("workload.name", "workload.framework", "scaling", "engine", "backend")
_FOLLOWS_ENGINE = ("launcher", "horovod.controller", "measure.instruments")


@dataclass(frozen=True)
class Told:
    """The keys that tell pairs apart, and those that are not to be named again."""

    keys: tuple[str, ...]
    varied: tuple[str, ...]  # told once, for all pairs
    hidden: frozenset[str]

    def of(self, one: Item, other: Item) -> dict[str, str]:
        """Return what tells a pair from the others."""
        found = {}
        for key in self.keys:
            values = [item.facts[key] for item in (one, other) if key in item.facts]
            if values:
                found[key] = " / ".join(dict.fromkeys(values))
        return found


def told_by(pairs: Sequence[tuple[Item, Item]], varied: Sequence[str]) -> Told:
    """Return the keys of which pairs have several values; engine, backend, batch in any case."""
    items = [item for pair in pairs for item in pair]
    hidden = frozenset((*varied, "placement", "placement_policy"))
    found = [
        key
        for key in {key for item in items for key in item.facts} - hidden
        if key in _ALWAYS_TOLD or _tells(key, pairs)
    ]
    ranks = {key: index for index, key in enumerate(_FIRST_TOLD)}
    keys = sorted(found, key=lambda key: (ranks.get(key, len(ranks)), key))
    return Told(tuple(keys), tuple(varied), hidden)


def _tells(key: str, pairs: Sequence[tuple[Item, Item]]) -> bool:
    """Say whether pairs have several values; of what follows from the engine, those of one."""
    values: dict[tuple[str | None, ...], set[str]] = {}
    for pair in pairs:
        for side, item in enumerate(pair):
            engine = (item.facts["engine"], item.facts.get("backend"))
            group = (str(side), *engine) if key in _FOLLOWS_ENGINE else (str(side),)
            if key in item.facts:
                values.setdefault(group, set()).add(item.facts[key])
    return any(len(found) > 1 for found in values.values())
