"""Speedup, efficiency, epoch time and exposed sync of every point, as curves over the device count.

Base and point are paired inside a block (one allocation, one repeat)::

    S = throughput / throughput(base)        geometric mean over blocks
    E = S · base devices / N

Where no block has both, as where the base was measured in jobs of its own, S is the ratio of the
two geometric means (``welch``), and the point and its curve are marked ``apart``. The fitted slope
(``line``) is another number than E (a curve may be straight and yet far below the ideal) and stands
beside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from harness.analysis.labels import label_curves
from harness.analysis.line import fitted_line
from harness.analysis.match import (
    DEFAULT_BASE,
    BaseName,
    curve_key,
    is_base_of,
    is_timeline,
    own_launcher,
    shared_key,
    timeline_key,
)
from harness.analysis.points import Launch, Point, make_point
from harness.analysis.rows import (
    Row,
    block_of,
    rates_by_block,
    read_rows,
    without_garbage_collection,
)
from harness.analysis.unlike import refuse_unlike, what_differs
from harness.errors import AnalysisError
from harness.stats import LEVEL, BlockKey, Interval

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["Curve", "Failure", "Launch", "Point", "curves", "failures"]

#: Where the base of a point is of which no block has one.
Apart = Literal["other jobs", "other blocks"]
#: What a point and the launch for its timeline have in common; see ``_place``.
Place = tuple[str, str | None, str, str]


@dataclass(frozen=True)
class Curve:
    """The points of one config over the device count, in order of N, then nodes."""

    label: str  # what tells it from the other curves
    workload: str
    framework: str
    engine: str
    backend: str | None
    scaling: str  # weak or strong; never both
    batch: int  # declared: of a rank (weak) or of all ranks (strong)
    device: str
    config: str  # JSON of what its points share
    base: BaseName | None  # None: nothing to divide by
    note: str | None  # why there is no base
    unlike: str | None  # what differs between its launches' machines, where they were mixed
    points: tuple[Point, ...]
    slope: Interval | None  # of S against N; None below three device counts
    intercept: Interval | None = None  # of the same line
    #: In what the base of points that are ``apart`` was measured; None: all have it beside them.
    apart: Apart | None = None
    #: samples/s of the base by block: of all blocks where a point is apart, else of the curve's.
    base_rates: Mapping[BlockKey, float] = field(default_factory=dict, repr=False)

    @property
    def batch_text(self) -> str:
        """Return the declared batch in words, e.g. ``batch 75`` or ``global batch 600``."""
        return f"{'batch' if self.scaling == 'weak' else 'global batch'} {self.batch}"


@dataclass(frozen=True)
class Failure:
    """A launch that gave no measurement, and whether a later attempt did."""

    run_id: str
    attempt: int | None
    status: str
    cause: str
    what: str  # engine, backend, N and batch; empty for a file that cannot be read
    repaired: bool
    kind: str = "bench"  # of launch, as in a record


@without_garbage_collection()
def curves(
    table: pd.DataFrame | pa.Table,
    *,
    base: str | None = None,
    level: float = LEVEL,
    mixed: bool = False,
) -> tuple[Curve, ...]:
    """Return the curves of a table made by ``collect`` or ``frame``, in a stable order.

    The table may be in pandas, or in Arrow as it lies on disk (a second less for the command line).

    ``base`` names what speedup divides by (``horovod@1``); None takes what the records were
    measured with, or ``none@1`` where none is marked. Failed launches are in no curve: see
    ``failures``. Raises AnalysisError where the records have several bases and none was named, or
    where a curve's launches ran on unlike hardware or software and ``mixed`` is False.
    """
    good = read_rows(table, good=True)
    rows = [row for row in good if row["epoch_s"] is not None]
    timelines = _by_place(row for row in good if row["kind"] == "timeline")
    name = BaseName.parse(base) if base else _marked_base(rows)
    bases = _Bases(name, rows)
    groups: dict[tuple[str, Any, Any], list[Row]] = {}
    for row in rows:
        if row["kind"] == "bench":
            groups.setdefault((curve_key(row["config"]), row["backend"], row["device"]), []).append(
                row
            )
    labels = label_curves([(key[0], key[1], key[2]) for key in groups])
    made = []
    for (key, group), label in zip(groups.items(), labels, strict=True):
        made.append(_curve(key[0], label, group, bases, timelines, level, mixed))
    if base and made and not any(curve.base for curve in made):
        there = sorted({f"{row['engine']}@{row['world_size']}" for row in rows})
        raise AnalysisError(f"no launch is the base {base}; there are: {', '.join(there)}")
    return tuple(sorted(made, key=_order))


def failures(table: pd.DataFrame | pa.Table) -> tuple[Failure, ...]:
    """Return the launches that gave no measurement, in the order of their files."""
    rows = read_rows(table, good=False)
    done = {row["run_id"] for row in read_rows(table, good=True)} if rows else set()
    return tuple(
        Failure(
            run_id=row["run_id"],
            attempt=row["attempt"],
            status=row["status"],
            cause=row["cause"] or "no cause was recorded",
            what=_what(row),
            repaired=row["run_id"] in done,
            kind=row["kind"] or "bench",
        )
        for row in rows
    )


class _Bases:
    """The launches of the base, and which of them a curve is divided by."""

    def __init__(self, name: BaseName, rows: Sequence[Row]) -> None:
        self.name = name
        self._by_config: dict[str, list[Row]] = {}
        for row in rows:
            if (row["engine"], row["world_size"]) == (name.engine, name.devices):
                self._by_config.setdefault(row["config"], []).append(row)
        self._alike: dict[Hashable, list[str]] = {}
        for config in self._by_config:
            self._alike.setdefault(shared_key(config), []).append(config)

    def of(self, rows: Sequence[Row]) -> tuple[list[Row], str | None]:
        """Return all launches that are the base of a curve with ``rows``, or none and the reason.

        Configs that fit may differ in how their placement is written and in nothing else: a point
        without Horovod cannot tell which of two tunings of Horovod should be its base.
        """
        point = rows[0]["config"]
        fitting = [c for c in self._alike.get(shared_key(point), ()) if is_base_of(c, point)]
        if not fitting:
            return [], f"no launch is its base {self.name}"
        # A plain step that was asked for under srun is a point, and not the base of the others.
        fitting = [c for c in fitting if own_launcher(c)] or fitting
        if len({curve_key(config) for config in fitting}) > 1:
            return [], f"{len(fitting)} configs of {self.name} could be its base"
        return [row for c in fitting for row in self._by_config[c]], None


def _curve(
    key: str,
    label: str,
    rows: list[Row],
    all_bases: _Bases,
    timelines: Mapping[Place, list[Row]],
    level: float,
    mixed: bool,
) -> Curve:
    groups: dict[tuple[int, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["world_size"], row["nodes"], row["placement"]), []).append(row)
    bases, note = all_bases.of(rows)
    apart = _apart(groups.values(), bases)
    if apart is None:
        blocks = {block_of(row) for row in rows}
        bases = [base for base in bases if block_of(base) in blocks]
    looked_into = [one for row in rows for one in timelines.get(_place(row), [])]
    # A base is also a launch of its own curve, and counts once.
    launches = {id(row): row for row in (*rows, *bases, *looked_into)}
    differing = what_differs(launches.values())
    if not mixed:
        refuse_unlike(f"the curve {label}", differing)
    base_rates = rates_by_block(bases)
    points = tuple(
        make_point(
            sorted(groups[place], key=block_of),
            timelines.get(_place(groups[place][0]), []),
            base_rates,
            all_bases.name.devices,
            level,
        )
        for place in sorted(groups)
    )
    first = rows[0]
    slope, intercept = fitted_line(points, base_rates, level) or (None, None)
    return Curve(
        label=label,
        workload=first["workload"],
        framework=first["framework"],
        engine=first["engine"],
        backend=first["backend"],
        scaling=first["scaling"],
        batch=first["batch_size"] if first["scaling"] == "weak" else first["global_batch_size"],
        device=first["device"],
        config=key,
        base=all_bases.name if bases else None,
        note=note,
        unlike=differing,
        points=points,
        slope=slope,
        intercept=intercept,
        apart=apart,
        base_rates=MappingProxyType(base_rates),
    )


def _apart(groups: Iterable[Sequence[Row]], bases: Sequence[Row]) -> Apart | None:
    """Say where the bases of points that share no block with one are; None where all share one."""
    with_base = {block_of(base) for base in bases}
    apart = [group for group in groups if with_base.isdisjoint(map(block_of, group))]
    alone = [block_of(row) for group in apart for row in group]
    if not bases or not alone:
        return None
    theirs = {allocation for allocation, _ in with_base}
    own = {allocation for allocation, _ in alone}
    of_slurm = all(allocation.startswith("slurm:") for allocation in own | theirs)
    return "other jobs" if of_slurm and own.isdisjoint(theirs) else "other blocks"


def _place(row: Row) -> Place:
    return (timeline_key(row["config"]), row["backend"], row["device"], row["placement"])


def _by_place(rows: Iterable[Row]) -> dict[Place, list[Row]]:
    """Sort the launches for a timeline by the point that each looks into."""
    found: dict[Place, list[Row]] = {}
    for row in rows:
        found.setdefault(_place(row), []).append(row)
    return found


def _marked_base(rows: Iterable[Row]) -> BaseName:
    marked = {BaseName(row["engine"], row["world_size"]) for row in rows if row["is_base"]}
    if len(marked) > 1:
        names = sorted(map(str, marked))
        raise AnalysisError(
            f"the records have several bases, {', '.join(names)}; choose one, "
            f"e.g. --base {names[0]} (in Python: base='{names[0]}')"
        )
    return marked.pop() if marked else DEFAULT_BASE


def _what(row: Row) -> str:
    if row["engine"] is None:
        return ""
    words = [row["engine"], row["backend"] or "", f"N={row['world_size']}"]
    batch = row["batch_size"]
    words.append(f"batch {batch}" if batch else f"global batch {row['global_batch_size']}")
    words.append("timeline" if is_timeline(row["config"]) else "")
    words.append("training" if row["kind"] == "train" else "")
    return " ".join(word for word in words if word)


def _order(curve: Curve) -> tuple[Any, ...]:
    return (
        curve.workload,
        curve.framework,
        curve.scaling != "weak",
        curve.engine != "none",
        curve.engine,
        curve.backend or "",
        curve.batch,
        curve.config,
    )
