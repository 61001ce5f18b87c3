"""Tables of points: speedup and efficiency, where a step's time goes, what instruments found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from harness.analysis.apart import apart_notes
from harness.analysis.facets import Facet, facets, is_base_point
from harness.analysis.flags import curve_flags, percent
from harness.analysis.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Details,
    Paragraph,
    Table,
    Terms,
    counted,
    number_cell,
    text_cell,
)
from harness.analysis.results import Results
from harness.analysis.scaling import Curve, Point
from harness.analysis.texts import (
    BOUNDLESS,
    NONE,
    WIDE,
    digits_text,
    rate_text,
    ratio_text,
    seconds_text,
    slope_text,
    time_text,
)
from harness.stats import Interval

_PLACEMENT_TERM = (
    "Placement",
    "devices of each node: 8+2 is eight on one node and two on a second",
)
_TERMS = (
    ("Step", "time of one training step in the window, which no instrument interrupts"),
    ("Exposed sync", "what a rank waits for the all-reduce of its gradients after its own backward "
     "pass; what runs hidden behind that pass is not in it"),
)  # fmt: skip
_CURVE, _PLACEMENT = Column("Curve", numeric=False), Column("Placement", numeric=False)
_NUMBERS = ("Samples/s", "S", "E", "Step", "Exposed sync")
_SYNC = ("Exposed sync", "Transfer", "Wait", "Isolated")
_SYNC_TERMS = (
    ("Transfer, wait", "exposed sync in two parts: what holds up every rank alike, and what a rank "
     "waits longer than the one that waits least, so for late ranks"),
    ("Isolated", "the same bytes reduced with nothing else running"),
)  # fmt: skip
_PHASES = ("data", "forward", "backward", "exposed_sync", "update")
_PHASE_TERMS = (
    ("Data", "until the batch is on the device"),
    ("Forward, backward", "until the loss, then until the rank's last own gradient is there"),
    ("Update", "the optimiser's step"),
    ("Sum − step", "the phases' sum against the window's step; phases are measured in steps of "
     "their own, and marking costs something, so it is not hidden"),
)  # fmt: skip


def speedup_blocks(results: Results) -> Iterator[Block]:
    """Yield the terms, a table a facet, and below each what a reader should mind."""
    groups = facets(results.curves)
    if not groups:
        return
    places = any(p.nodes > 1 for curve in results.curves for p in curve.points)
    yield Terms((*((_PLACEMENT_TERM,) if places else ()), *_TERMS))
    for facet in groups:
        yield from _facet(facet, places)


def _facet(facet: Facet, places: bool) -> Iterator[Block]:
    head = (_CURVE, Column("N"), *((_PLACEMENT,) if places else ()), *map(Column, _NUMBERS))
    rows = tuple(_row(curve, point, places) for curve in facet.curves for point in curve.points)
    title = f"{facet.title}, {facet.batch_text}; {facet.base_text}; {facet.interval_text}"
    yield Table(title, head, rows)
    if any(WIDE in cell.text for row in rows for cell in row):
        yield Paragraph(f"{WIDE}: ends more than {BOUNDLESS:.0f} times apart; too few blocks.")
    remarks = tuple(_remarks(facet))
    if remarks:
        yield Bullets(remarks)
    flags = [
        f"{curve.label}: {text}"
        for curve in facet.curves
        for text in curve_flags(curve)
        if not (curve.unlike and curve.unlike in text)  # said above
    ]
    if flags:
        count = counted(len(flags), "remark")
        yield Details(
            f"{count} on what these points may be trusted with: costs of instruments, drift and "
            "outliers in the windows",
            (Bullets(tuple(flags)),),
        )


def _row(curve: Curve, point: Point, places: bool) -> tuple[Cell, ...]:
    base = is_base_point(curve, point)
    rate = point.throughput_samples_per_s
    return (
        text_cell(curve.label),
        number_cell(str(point.world_size), point.world_size),
        *((text_cell(point.placement),) if places else ()),
        number_cell(rate_text(rate), rate.estimate),
        _ratio(point.speedup, base),
        _ratio(point.efficiency, base),
        _time(point.step_s),
        _time(point.exposed_sync_s),
    )


def _ratio(found: Interval | None, base: bool) -> Cell:
    if base:
        return number_cell("1 (base)", 1.0)
    return number_cell(ratio_text(found), found.estimate if found else None)


def _time(found: Interval | None) -> Cell:
    return number_cell(time_text(found), found.estimate if found else None)


def _remarks(facet: Facet) -> Iterator[str]:
    slopes = [f"{curve.label} {slope_text(curve.slope)}" for curve in facet.curves if curve.slope]
    if slopes:
        yield f"Fitted slope of S against N, another number than E: {'; '.join(slopes)}"
    for note in apart_notes(facet.curves):
        yield f"{note[0].upper()}{note[1:]}" if note.startswith("the base") else note
    for curve in facet.curves:
        if curve.note:
            yield f"{curve.label}: no speedup, {curve.note}"
        unpaired = sum(point.unpaired for point in curve.points) if curve.base else 0
        if unpaired:
            verb = "launch has" if unpaired == 1 else "launches have"
            yield f"{curve.label}: {unpaired} {verb} no base in the block and no part in S"
        if curve.unlike:
            yield f"{curve.label}: unlike launches mixed: {curve.unlike}"


def sync_blocks(results: Results) -> Iterator[Block]:
    """Yield the parts of exposed sync for each facet that has any."""
    tables = []
    for facet in facets(results.curves):
        rows = tuple(
            _sync_row(curve, point)
            for curve in facet.curves
            for point in curve.points
            if point.exposed_sync_s or point.allreduce_p50_s
        )
        if rows:
            head = (_CURVE, Column("N"), *map(Column, _SYNC))
            tables.append(Table(f"Synchronisation a step, {facet.title}", head, rows))
    if tables:
        yield Terms(_SYNC_TERMS)
        yield from tables


def _sync_row(curve: Curve, point: Point) -> tuple[Cell, ...]:
    times = (point.exposed_sync_s, point.transfer_s, point.wait_s, point.allreduce_p50_s)
    return (
        text_cell(curve.label),
        number_cell(str(point.world_size), point.world_size),
        *map(_time, times),
    )


def phase_blocks(results: Results) -> Iterator[Block]:
    """Yield the table of a step's phases for each facet that has any."""
    tables = []
    for facet in facets(results.curves):
        rows = tuple(
            _phase_row(curve, point)
            for curve in facet.curves
            for point in curve.points
            if any(getattr(point, f"{name}_s") for name in _PHASES)
        )
        if rows:
            names = ("Data", "Forward", "Backward", "Exposed sync", "Share", "Update", "Sum − step")
            head = (_CURVE, Column("N"), *map(Column, names))
            tables.append(Table(f"Phases of a step, {facet.title}", head, rows))
    if tables:
        yield Terms((*_PHASE_TERMS, ("Share", "exposed sync as a part of the phases' sum")))
        yield from tables
    else:
        yield Paragraph(
            "No phases were measured: the sweep's measure.instruments does not have them."
        )


def _phase_row(curve: Curve, point: Point) -> tuple[Cell, ...]:
    sync, total = point.exposed_sync_s, point.phase_sum_s
    share = sync.estimate / total.estimate if sync and total and total.estimate else None
    rest = point.phases_minus_step
    return (
        text_cell(curve.label),
        number_cell(str(point.world_size), point.world_size),
        *(_time(getattr(point, f"{name}_s")) for name in _PHASES[:4]),
        number_cell(NONE if share is None else f"{100 * share:.1f} %", share),
        _time(point.update_s),
        number_cell(NONE if rest is None else percent(rest), rest),
    )


#: What further instruments found: head, value of a point, its text, and one line of meaning.
_MORE: tuple[tuple[str, Callable[[Point], float | None], Callable[[float], str], str], ...] = (
    ("Interference", lambda p: _value(p.interference_s), seconds_text,
     "what communication costs a step besides waiting for it (step with − step without the "
     "all-reduce − exposed sync); negative where the wait hides something else"),
    ("Skew", lambda p: _value(p.skew_s), seconds_text,
     "last arrival − first arrival of a step's gradients, on one clock"),
    ("Batch alone", lambda p: _value(p.feed_warm_s), seconds_text,
     "bringing a batch to the device with nothing else running"),
    ("Batch alone, cold", lambda p: _value(p.feed_cold_s), seconds_text,
     "the same after the kernel dropped the files"),
    ("Negotiation", lambda p: _of(p.timeline, "timeline_negotiation_s"), seconds_text,
     "from the first rank's request for a tensor until all have asked, by Horovod's timeline"),
    ("Queue", lambda p: _of(p.timeline, "timeline_queue_s"), seconds_text,
     "agreed, and not yet copied or sent, by the timeline"),
    ("All-reduce", lambda p: _of(p.timeline, "timeline_allreduce_s"), seconds_text,
     "as rank 0 sees it in the timeline"),
    ("All-reduces", lambda p: _of(p.timeline, "timeline_allreduces"), digits_text,
     "operations a step; fused tensors are one"),
    ("Cores busy", lambda p: _of(p.telemetry, "rank_cpu_cores"), digits_text,
     "CPU time of a rank's process a second, mean over ranks"),
    ("GPU busy", lambda p: _of(p.telemetry, "gpu_utilisation"), lambda x: f"{100 * x:.0f} %",
     "share of time in which any kernel ran, not how full the device was"),
    ("SM activity", lambda p: _of(p.telemetry, "gpu_sm_activity"), lambda x: f"{100 * x:.1f} %",
     "share of the GPU's multiprocessors that were busy"),
    ("GPU power", lambda p: _of(p.telemetry, "gpu_power_w"), lambda x: f"{x:,.0f} W",
     "of all devices together"),
    ("Energy", lambda p: _of(p.telemetry, "energy_per_sample_j"), lambda x: f"{x:.3g} J",
     "of all devices, a sample"),
)  # fmt: skip


def more_blocks(results: Results) -> Iterator[Block]:
    """Yield what further instruments found, only those columns that hold something."""
    points = [(curve, point) for curve in results.curves for point in curve.points]
    there = [one for one in _MORE if any(one[1](point) is not None for _, point in points)]
    if not there:
        return
    yield Terms(tuple((name, meaning) for name, _, _, meaning in there))
    head = (_CURVE, Column("N"), *(Column(one[0]) for one in there))
    rows = tuple(
        (
            text_cell(curve.label),
            number_cell(str(point.world_size), point.world_size),
            *(_measured(of(point), show) for _, of, show, _ in there),
        )
        for curve, point in points
        if any(of(point) is not None for _, of, _, _ in there)
    )
    yield Table("Further instruments: means over launches", head, rows)


def _measured(value: float | None, show: Callable[[float], str]) -> Cell:
    return number_cell(NONE if value is None else show(value), value)


def _value(found: Interval | None) -> float | None:
    return found.estimate if found else None


def _of(found: Mapping[str, float] | None, key: str) -> float | None:
    return found.get(key) if found else None
