"""B against A, point by point: the answer as data. See ``contrast`` for the tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from harness.analysis.compare.axis import Choice, choices
from harness.analysis.compare.items import Facts, Item, Items, differing, items_of
from harness.analysis.compare.matching import Matched, match_sweeps, match_values
from harness.analysis.compare.notes import notes_of
from harness.analysis.compare.pairs import make_pairs
from harness.analysis.compare.types import Comparison, Side, Unlike
from harness.analysis.results import Results
from harness.analysis.unlike import SETTINGS, differences, refuse_unlike, what_differs
from harness.errors import ConfigError
from harness.stats import LEVEL


def compare(a: Results, b: Results, *, level: float = LEVEL) -> Comparison:
    """Compare two sweeps at the points that both have; errors as of ``match_sweeps``.

    Their blocks were not run side by side, so none is paired. Unlike hardware and software is
    allowed, being what such a comparison is often about, and named.
    """
    if a.folder.resolve() == b.folder.resolve():
        raise ConfigError(f"A and B are the same sweep, {a.folder}; name two, or two values of one")
    ours, theirs = items_of(a), items_of(b)
    matched = match_sweeps(ours.points, theirs.points)
    names = (a.name, b.name) if a.name != b.name else (str(a.folder), str(b.folder))
    sides = (
        _side(names[0], ours, [one for one, _ in matched.pairs], ours.failed),
        _side(names[1], theirs, [other for _, other in matched.pairs], theirs.failed),
    )
    return _comparison(sides, None, matched, level)


def compare_values(
    results: Results, a: str, b: str, *, mixed: bool = False, level: float = LEVEL
) -> Comparison:
    """Compare two values of one key of one sweep, given as ``key=value``.

    Blocks are paired where both values were measured in them. Errors as of ``axis.choices`` and
    ``matching``, and AnalysisError where the two sides ran on unlike hardware or software and
    ``mixed`` is False.
    """
    items = items_of(results)
    first, second = choices(items, a, b)
    ours, theirs = ([one for one in items.points if c.has(one)] for c in (first, second))
    matched = match_values(ours, theirs, first.key)
    if not mixed:
        rows = [row for pair in matched.pairs for item in pair for row in item.rows]
        refuse_unlike(f"the comparison of {first} with {second}", what_differs(rows))
    sides = (
        _side(str(first), items, [one for one, _ in matched.pairs], _failed(items, first)),
        _side(str(second), items, [other for _, other in matched.pairs], _failed(items, second)),
    )
    return _comparison(sides, first.key, matched, level)


def _comparison(
    sides: tuple[Side, Side], axis: str | None, matched: Matched, level: float
) -> Comparison:
    pairs = sorted(matched.pairs, key=_order)
    varied = _varied(pairs, matched.varied)
    made = make_pairs(pairs, axis, matched.varied, level)
    lacking = tuple(varied) if any(pair.control for pair in made) else ()
    unlike = _unlike(*([row for pair in pairs for row in pair[side].rows] for side in (0, 1)))
    return Comparison(
        a=sides[0],
        b=sides[1],
        axis=axis,
        varied=varied,
        pairs=made,
        only_a=tuple(_named(item) for item in matched.only_a),
        only_b=tuple(_named(item) for item in matched.only_b),
        unlike=unlike,
        notes=tuple(notes_of(pairs, made, sides, lacking if axis is None else None)),
        level=level,
    )


def _varied(
    pairs: Sequence[tuple[Item, Item]], keys: Iterable[str]
) -> Mapping[str, tuple[str, str]]:
    """Return the values of what is compared, from the pairs that differ in it."""
    found: dict[str, tuple[str, str]] = {}
    for key in keys:
        for one, other in pairs:
            found |= differing(one.facts, other.facts, (key,))
    return MappingProxyType(found)


def _side(name: str, items: Items, used: Sequence[Item], failed: Sequence[Facts]) -> Side:
    rows = {row["run_id"]: row for item in used for row in item.rows}
    allocations = {launch.block[0] for item in used for launch in item.point.launches}
    started = sorted(row["started_at"] for row in rows.values())
    return Side(
        name=name,
        sweep=items.results.name,
        folder=items.results.folder,
        launches=len(rows),
        failed=len(failed),
        allocations=tuple(sorted(allocations)),
        first_started_at=started[0],
        last_started_at=started[-1],
    )


def _failed(items: Items, choice: Choice) -> list[Facts]:
    return [facts for facts in items.failed if facts.get(choice.key) == choice.value]


def _unlike(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> tuple[Unlike, ...]:
    """Return in what the machines and software of two sides differ, or one of them in itself."""
    keys = differences(row["provenance"] or "{}" for row in (*a, *b))
    return tuple(Unlike(key, _values(a, key), _values(b, key)) for key in keys)


def _values(rows: Iterable[Mapping[str, Any]], key: str) -> tuple[str, ...]:
    found = set()
    for text in {row["provenance"] or "{}" for row in rows}:
        shared = json.loads(text)
        variable = key.removeprefix("environment.")
        if key in shared:
            found.add(str(shared[key]))
        elif key != variable and SETTINGS in shared:
            found.add(str(shared[SETTINGS].get(variable, "unset")))
    return tuple(sorted(found))


def _named(item: Item) -> str:
    keys = ("engine", "backend", "batch_size", "global_batch_size")
    words = [f"{key}={item.facts[key]}" for key in keys if key in item.facts]
    return ", ".join([*words, f"N = {item.point.world_size} ({item.point.placement})"])


def _order(pair: tuple[Item, Item]) -> tuple[Any, ...]:
    one, other = pair
    curve = one.curve
    return (
        curve.workload, curve.framework, curve.scaling != "weak", curve.engine != "none",
        curve.engine, curve.backend or "", curve.batch, curve.config,
        other.curve.backend or "", other.curve.config,
        one.point.world_size, one.point.nodes, one.point.placement, other.point.placement,
    )  # fmt: skip
