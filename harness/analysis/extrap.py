"""A sweep's times as Extra-P reads them: JSON Lines, one line a measured value.

Extra-P (https://github.com/extra-p/extrap, docs/file-formats.md) finds the function of its
parameters that a time follows. A line is::

    {"params": {"p": 4}, "callpath": "step->forward", "metric": "time", "value": 0.0012}

Times are seconds of a step, one value a launch. Parameters are ``p``, the devices, and ``batch``,
the declared one (of a rank where scaling is weak, of all ranks where it is strong), each where it
has several values. Throughput is left out: it is samples / time, and not one of the functions that
Extra-P looks for.

Extra-P refuses a file in which a call path lacks a value at any combination of parameters. So the
file is a full grid: what does not fit into it is left out, and ``Export.left_out`` says what.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.match import flat
from harness.analysis.results import Results
from harness.analysis.scaling import Curve, Point
from harness.errors import AnalysisError

METRIC = "time"
#: Call path → what a launch has of it. The step is the window's, its phases are of marked steps.
CALLPATHS = {
    "step": "step_s",
    "step->data": "data_s",
    "step->forward": "forward_s",
    "step->backward": "backward_s",
    "step->exposed_sync": "exposed_sync_s",
    "step->exposed_sync->transfer": "transfer_s",
    "step->exposed_sync->wait": "wait_s",
    "step->update": "update_s",
    "isolated_allreduce": "allreduce_p50_s",
}
#: Extra-P asks for so many values of each parameter.
ENOUGH = 5
_SHOWN = 3

Coordinate = tuple[int, int]  # (devices, declared batch)


@dataclass(frozen=True)
class Value:
    """One measured value: a line of the file."""

    params: tuple[tuple[str, int], ...]  # in the order of the parameters, e.g. (("p", 4),)
    callpath: str
    value_s: float

    def json(self) -> str:
        """Return the line, without its end."""
        line = {
            "params": dict(self.params),
            "callpath": self.callpath,
            "metric": METRIC,
            "value": self.value_s,
        }
        return json.dumps(line, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Export:
    """The values of a file, and what a user must know about it, one sentence each."""

    values: tuple[Value, ...]
    left_out: tuple[str, ...]
    advice: tuple[str, ...]

    def text(self) -> str:
        """Return the file."""
        return "".join(f"{value.json()}\n" for value in self.values)


@dataclass(frozen=True)
class _Series:
    """Curves that differ in nothing but their batch; ``root`` begins its call paths."""

    root: str
    points: dict[Coordinate, Point]


def export(results: Results) -> Export:
    """Return a sweep's times for Extra-P.

    Raises AnalysisError where nothing was measured, or where no parameter has two values that all
    series have.
    """
    left_out: list[str] = []
    series = _series(results.require_curves("export"), left_out)
    grid = _grid(series, left_out)
    names = _names(grid)
    if not names:
        raise AnalysisError(
            f"export: {results.name} has one device count and one batch ({_series_text(series)}), "
            "and Extra-P needs a parameter with several values; measure more placements, at best "
            f"{ENOUGH} device counts"
        )
    grid, kept = _callpaths(series, grid, left_out)
    values = tuple(_values(series, grid, kept, names))
    return Export(values, tuple(left_out), tuple(_advice(grid, names)))


def _series(curves: Sequence[Curve], left_out: list[str]) -> list[_Series]:
    """Group curves by all but their batch; those of one device count beside longer ones go."""
    most = max(len({point.world_size for point in curve.points}) for curve in curves)
    kept = []
    for curve in curves:
        if most > 1 and len({point.world_size for point in curve.points}) == 1:
            left_out.append(f"{curve.label}: it has one device count")
        else:
            kept.append(curve)
    batches = _shared_batches(kept)
    groups: dict[str, list[Curve]] = {}
    for curve in kept:
        groups.setdefault(_group_key(curve, by_batch=not batches), []).append(curve)
    roots = _roots([group[0] for group in groups.values()], with_batch=not batches)
    return [
        _Series(root, _points(group, left_out))
        for root, group in zip(roots, groups.values(), strict=True)
    ]


def _shared_batches(curves: Sequence[Curve]) -> bool:
    """Say whether the batch can be a parameter: all series have the same ones, or there is one."""
    found: dict[str, set[int]] = {}
    for curve in curves:
        found.setdefault(_group_key(curve, by_batch=False), set()).add(curve.batch)
    return len({frozenset(batches) for batches in found.values()}) == 1 and (
        len({curve.scaling for curve in curves}) == 1
    )


def _facts(curve: Curve) -> dict[str, str]:
    facts = flat(curve.config) | {"device": curve.device}
    for key in ("placement", "placement_policy", "backend", "batch_size", "global_batch_size"):
        facts.pop(key, None)
    return facts | ({"backend": curve.backend} if curve.backend else {})


def _group_key(curve: Curve, *, by_batch: bool) -> str:
    facts = _facts(curve) | ({"batch": str(curve.batch)} if by_batch else {})
    return json.dumps(facts, sort_keys=True)


def _roots(curves: Sequence[Curve], *, with_batch: bool) -> list[str]:
    """Return what begins the call paths of each series: nothing where there is one alone.

    ``backend=mpi`` and the like: the keys in which series differ. No ``->`` is in it.
    """
    if len(curves) == 1:
        return [""]
    facts = [
        _facts(curve) | ({"batch": str(curve.batch)} if with_batch else {}) for curve in curves
    ]
    keys = sorted({key for one in facts for key in one})
    apart = [key for key in keys if len({one.get(key) for one in facts}) > 1]
    return [
        " ".join(f"{key}={one[key]}" for key in apart if key in one).replace("->", "-")
        for one in facts
    ]


def _points(curves: Sequence[Curve], left_out: list[str]) -> dict[Coordinate, Point]:
    """Return one point a coordinate: of several placements that of the fewest nodes."""
    found: dict[Coordinate, Point] = {}
    for curve in curves:
        for point in sorted(curve.points, key=lambda point: (point.nodes, point.placement)):
            place = (point.world_size, curve.batch)
            if place in found:
                left_out.append(
                    f"{curve.label}, placement {point.placement}: {found[place].placement} has "
                    "as many devices on no more nodes, and Extra-P knows the number alone"
                )
            else:
                found[place] = point
    return found


def _grid(series: Sequence[_Series], left_out: list[str]) -> list[Coordinate]:
    """Return the coordinates that all series have: every device count with every batch."""
    batches = sorted({batch for one in series for _, batch in one.points})
    by_batch = len({frozenset(batch for _, batch in one.points) for one in series}) == 1
    every = sorted({count for one in series for count, _ in one.points})

    def everywhere(count: int) -> bool:
        if by_batch:
            return all((count, batch) in one.points for one in series for batch in batches)
        return all(any(n == count for n, _ in one.points) for one in series)

    counts = [count for count in every if everywhere(count)]
    if not counts:
        raise AnalysisError(
            f"export: no device count was measured in all series ({_series_text(series)}), and "
            "Extra-P wants the same ones of each; export them from sweeps of their own"
        )
    left_out += [f"p = {n}: not measured in all series" for n in every if n not in counts]
    return [(count, batch) for count in counts for batch in (batches if by_batch else batches[:1])]


def _names(grid: Sequence[Coordinate]) -> dict[str, int]:
    """Return the parameters that have several values, and where a coordinate has each."""
    names = {"p": 0, "batch": 1}
    return {name: i for name, i in names.items() if len({place[i] for place in grid}) > 1}


def _callpaths(
    series: Sequence[_Series], grid: list[Coordinate], left_out: list[str]
) -> tuple[list[Coordinate], dict[str, list[str]]]:
    """Return the grid without N = 1, where there is no synchronisation, and each series' paths.

    One rank alone has no exposed sync, which is not an exposed sync of zero; and how it grows is
    what is asked. Where fewer than two device counts were left, N = 1 stays and its lack goes.
    """
    several = [place for place in grid if place[0] > 1]
    synced = any(_measured(one, place, "exposed_sync_s") for one in series for place in several)
    lacking = len(several) < len(grid) and not all(
        _measured(one, place, "exposed_sync_s") for one in series for place in grid
    )
    if synced and lacking and len({count for count, _ in several}) > 1:
        left_out.append("p = 1: one rank alone has no synchronisation")
        grid = several
    kept = {}
    for one in series:
        missing = {
            path: tuple(place for place in grid if not _measured(one, place, name))
            for path, name in CALLPATHS.items()
        }
        kept[one.root] = [path for path, places in missing.items() if not places]
        partly = {places for places in missing.values() if 0 < len(places) < len(grid)}
        for places in sorted(partly):
            paths = [_joined(one.root, path) for path in missing if missing[path] == places]
            left_out.append(f"{', '.join(paths)}: not measured at {_places(places)}")
    return grid, kept


def _at(one: _Series, place: Coordinate) -> Point:
    """Return a series' point; where the batch is no parameter, it has one batch of its own."""
    if place in one.points:
        return one.points[place]
    return next(point for (count, _), point in one.points.items() if count == place[0])


def _measured(one: _Series, place: Coordinate, name: str) -> bool:
    return any(getattr(launch, name) is not None for launch in _at(one, place).launches)


def _values(
    series: Sequence[_Series],
    grid: Sequence[Coordinate],
    kept: dict[str, list[str]],
    names: dict[str, int],
) -> Iterator[Value]:
    for one in series:
        for path in kept[one.root]:
            for place in grid:
                params = tuple((name, place[index]) for name, index in names.items())
                for launch in _at(one, place).launches:
                    value = getattr(launch, CALLPATHS[path])
                    if value is not None:
                        yield Value(params, _joined(one.root, path), float(value))


def _advice(grid: Sequence[Coordinate], names: dict[str, int]) -> Iterator[str]:
    for name, index in names.items():
        count = len({place[index] for place in grid})
        if count < ENOUGH:
            yield f"Extra-P asks for {ENOUGH} values of each parameter or more: {name} has {count}"


def _joined(root: str, path: str) -> str:
    return f"{root}->{path}" if root else path


def _places(places: Sequence[Coordinate]) -> str:
    shown = [f"p = {count}, batch {batch}" for count, batch in places[:_SHOWN]]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return f"{'; '.join(shown)}{more}"


def _series_text(series: Sequence[_Series]) -> str:
    counts = [
        f"{one.root or 'the only series'}: p = "
        + ", ".join(map(str, sorted({count for count, _ in one.points})))
        for one in series
    ]
    return "; ".join(counts[:_SHOWN]) + ("; …" if len(counts) > _SHOWN else "")
