"""The answer: what was measured, how well it scales, and what to mind, before any evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from harness.analysis.apart import apart_notes
from harness.analysis.facets import Facet, facets, is_base_point
from harness.analysis.flags import where
from harness.analysis.match import BaseName
from harness.analysis.report.document import (
    Block,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Terms,
    and_text,
    counted,
)
from harness.analysis.results import Results
from harness.analysis.scaling import Curve, Point
from harness.analysis.texts import NONE, digits_text, ratio_text, seconds_text
from harness.analysis.training import TrainedPoint
from harness.stats import Interval

_BASES = {
    BaseName("none", 1): "the plain training step on one device, without Horovod",
    BaseName("horovod", 1): "Horovod on one device",
    BaseName("ddp", 1): "PyTorch's DDP on one device",
}
_NOTES = 3  # on bases that are apart: as many are summed up
_SCALING = {
    "weak": "weak scaling: each rank keeps its batch, so N ranks take N times the samples a step",
    "strong": "strong scaling: all ranks together keep one batch, so N ranks share its samples",
}


def answer(results: Results) -> tuple[Block, ...]:
    """Return the first paragraph, the terms in it and the key figures."""
    texts = list(_sentences(results))
    figures = tuple(_figures(results))
    terms = tuple(_terms(results))
    found: list[Block] = [Paragraph(" ".join(texts))]
    if figures:
        found.append(KeyFigures(figures))
    return (*found, *((Terms(terms),) if terms else ()))


def scaled_points(curves: Sequence[Curve]) -> list[tuple[Curve, Point]]:
    """Return the points with an efficiency, the best first, their bases left out.

    Those of more devices than the base has, where there are any: at the base's own count there is
    nothing that scales.
    """
    every = [
        (curve, point)
        for curve in curves
        for point in curve.points
        if point.efficiency is not None and not is_base_point(curve, point)
    ]
    larger = [(c, p) for c, p in every if c.base is not None and p.world_size > c.base.devices]
    return sorted(larger or every, key=_efficiency, reverse=True)


def point_name(curve: Curve, point: Point, curves: Sequence[Curve]) -> str:
    """Name a point among ``curves``: ``mpi, batch 75, N=2``, with what its facet is if needed."""
    several = {(c.workload, c.framework, c.scaling, c.device) for c in curves}
    facet = f"{Facet((curve,)).title}, " if len(several) > 1 else ""
    return f"{facet}{curve.label}, {where(curve, point)}"


def base_text(base: BaseName) -> str:
    """Explain a base: ``none@1 (the plain training step on one device, without Horovod)``."""
    known = _BASES.get(base, f"{base.engine} on {counted(base.devices, 'device')}")
    return f"{base} ({known})"


def _sentences(results: Results) -> Iterator[str]:
    if not results.curves and not results.trainings:
        yield _nothing(results)
        return
    for facet in facets(results.curves)[:3]:
        yield _measured(facet)
    more = len(facets(results.curves)) - 3
    if more > 0:
        yield f"{counted(more, 'other combination')} of workload, scaling and device follow below."
    if results.curves:
        yield _scaling(results)
        yield from (f"{text[0].upper()}{text[1:]}." for text in _apart(results))
    if results.trainings:
        yield _trained(results.trainings)
    missing = len(results.missing)
    if missing:
        yield (
            f"{counted(missing, 'launch', 'launches')} gave no measurement and "
            f"{'is' if missing == 1 else 'are'} in nothing shown here; their causes stand at "
            "the end."
        )


def _nothing(results: Results) -> str:
    """Say that there is no answer, and the likeliest reason."""
    failed = results.failures
    count = len({one.run_id for one in failed})
    launches = "its only launch failed" if count == 1 else f"all {count:,} launches failed"
    causes: dict[str, int] = {}
    for one in failed:
        causes[one.cause] = causes.get(one.cause, 0) + 1
    cause, times = max(causes.items(), key=lambda item: item[1])
    often = "" if count == 1 else f", most often ({times:,} of {len(failed):,} attempts)"
    return (
        f"Nothing was measured: {launches}{often}: {' '.join(cause.split())}. "
        "There is no efficiency, no advice and no model without a measurement; mend the cause and "
        "run the sweep again: what failed is launched anew."
    )


def _measured(facet: Facet) -> str:
    # Of the plain step, the base, counts where nothing else was measured: it is named further on.
    curves = tuple(one for one in facet.curves if one.engine != "none") or facet.curves
    engines = sorted({curve.engine for curve in curves} - {"none"})
    backends = sorted({curve.backend for curve in curves if curve.backend})
    counts = sorted({point.world_size for curve in curves for point in curve.points})
    nodes = max(point.nodes for curve in curves for point in curve.points)
    batches = sorted({curve.batch for curve in curves})
    over = f" over {and_text(backends)}" if backends else ""
    what = f"{and_text(engines)}{over}" if engines else "the plain step without Horovod"
    ranks = _ranks_text(counts)
    plain = sorted({p.world_size for c in facet.curves if c not in curves for p in c.points})
    beside = f", and the plain step with {_ranks_text(plain)}" if plain else ""
    on = f" on up to {nodes} nodes" if nodes > 1 else ""
    whose = "a rank" if curves[0].scaling == "weak" else "of all ranks"
    sizes = [f"{batch:,}" for batch in batches]
    plural = "batch" if len(batches) == 1 else "batches"
    return (
        f"{facet.title}: {what} was measured with {ranks}{on}{beside}, "
        f"{plural} of {and_text(sizes)} {whose}."
    )


def _ranks_text(counts: Sequence[int]) -> str:
    """Return ``1 rank``, ``1 and 2 ranks``, ``1 to 8 ranks``; ``counts`` are sorted."""
    if len(counts) == 1:
        return counted(counts[0], "rank")
    return f"{counts[0]} {'and' if len(counts) == 2 else 'to'} {counts[-1]} ranks"


def _scaling(results: Results) -> str:
    points = scaled_points(results.curves)
    if not points:
        notes = [curve.note for curve in results.curves if curve.note]
        if notes:
            return (
                f"There is no speedup or efficiency: {notes[0]}. Measure the base, too (base: in "
                "the sweep's YAML), or name another with --base."
            )
        return "Only bases were measured, so there is nothing to compare with them."
    (best_curve, best), (worst_curve, worst) = points[0], points[-1]
    base = best_curve.base
    assert base is not None  # a point with an efficiency has one
    against = f"Against {base_text(base)}"
    named = point_name(best_curve, best, results.curves)
    if len(points) == 1:
        return f"{against} its efficiency is {_e(best)} ({named}); 1 is the ideal."
    least = min(point.world_size for _, point in points)
    more = f" on {least} devices or more" if least > base.devices else ""
    return (
        f"{against}, efficiency{more} lies between {_e(worst)} "
        f"({point_name(worst_curve, worst, results.curves)}) and {_e(best)} ({named}); "
        "1 is the ideal."
    )


def _apart(results: Results) -> Sequence[str]:
    """Return the notes on bases that are apart, or one for many: the tables have each."""
    notes = apart_notes(results.curves)
    if len(notes) < _NOTES:
        return notes
    apart = sum(curve.apart is not None for curve in results.curves)
    return (
        f"the base of points of {counted(apart, 'curve')} was measured in other jobs or blocks: "
        "what differs between these looks like scaling; the table says which",
    )


def _e(point: Point) -> str:
    return ratio_text(point.efficiency)


def _efficiency(pair: tuple[Curve, Point]) -> float:
    found = pair[1].efficiency
    assert found is not None  # scaled_points leaves the others out
    return found.estimate


def _trained(points: Sequence[TrainedPoint]) -> str:
    first = points[0]
    workloads = and_text(sorted({point.workload for point in points}))
    text = f"{counted(len(points), 'configuration')} of {workloads} trained to an end"
    aimed = [point for point in points if point.reached is not None]
    hits = [p for p in aimed if p.train_s_to_target is not None]
    if hits:
        quick = min(hits, key=lambda p: _estimate(p.train_s_to_target))
        time = seconds_text(_estimate(quick.train_s_to_target))
        return (
            f"{text}; {len(hits)} of {len(aimed)} reached the target, the quickest ({quick.label}, "
            f"N={quick.world_size}) after {time} of training."
        )
    if aimed:
        return f"{text}; none reached its target."
    of_metric = [point for point in points if point.metric == first.metric]
    choose = min if first.lower_is_better else max
    best = choose(of_metric, key=lambda p: p.value.estimate)
    return (
        f"{text}; the best {first.metric} at the end is {best.value.estimate:.4g} "
        f"({best.label}, N={best.world_size})."
    )


def _estimate(interval: Interval | None) -> float:
    assert interval is not None
    return interval.estimate


def _figures(results: Results) -> Iterator[KeyFigure]:
    points = scaled_points(results.curves)
    if points:
        yield _extreme("Best efficiency E", *points[0], results.curves)
        if len(points) > 1:
            yield _extreme("Worst efficiency E", *points[-1], results.curves)
    every = [(curve, point) for curve in results.curves for point in curve.points]
    if every and len({(curve.workload, curve.framework) for curve, _ in every}) == 1:
        curve, point = max(every, key=lambda pair: pair[1].throughput_samples_per_s.estimate)
        rate = point.throughput_samples_per_s
        yield KeyFigure(
            "Highest throughput, samples/s",
            f"{rate.estimate:,.0f}",
            _detail(rate, "{:,.0f}", point_name(curve, point, results.curves)),
        )
    launches = sum(len(point.launches) for _, point in every) + sum(
        len(point.launches) for point in results.trainings
    )
    blocks = {launch.block for _, point in every for launch in point.launches}
    blocks |= {launch.block for point in results.trainings for launch in point.launches}
    if launches:
        missing = len(results.missing)
        failed = f"; {missing:,} more failed" if missing else ""
        value = counted(launches, "launch", "launches")
        yield KeyFigure("Measured", value, f"in {counted(len(blocks), 'block')}{failed}")


def _extreme(label: str, curve: Curve, point: Point, curves: Sequence[Curve]) -> KeyFigure:
    found = point.efficiency
    assert found is not None
    named = point_name(curve, point, curves)
    return KeyFigure(label, digits_text(found.estimate), _detail(found, "{:#.3g}", named))


def _detail(interval: Interval, form: str, named: str) -> str:
    if interval.low is None or interval.high is None:
        return f"one block, no interval · {named}"
    return f"[{form.format(interval.low)}, {form.format(interval.high)}] · {named}"


def _terms(results: Results) -> Iterator[tuple[str, str]]:
    curves = results.curves
    if not curves and not results.trainings:
        yield "Launch", "one start of all processes of one configuration"
        return
    kinds = [curve.scaling for curve in curves] + [point.scaling for point in results.trainings]
    for kind in dict.fromkeys(kinds):
        name, _, meaning = _SCALING[kind].partition(": ")
        yield name.capitalize(), meaning
    yield "Rank", "one training process; N ranks have one device each (a GPU, or their CPU cores)"
    if scaled_points(curves):
        yield "Speedup S", f"throughput divided by the base's, {_paired(curves)}"
        yield "Efficiency E", "S divided by how many times the base's devices N is; 1 is the ideal"
    yield (
        "Launch, block",
        (
            "a launch is one start of all ranks; a block is one launch of the base and of every "
            "point in one allocation (a host, or a job of the cluster), in shuffled order"
        ),
    )
    yield "[low, high]", _interval_term(results)


def _paired(curves: Sequence[Curve]) -> str:
    apart = [point.apart for _, point in scaled_points(curves)]
    if not any(apart):
        return "in the same block"
    return "each a mean over blocks of its own" + ("" if all(apart) else ", or in the same block")


def _interval_term(results: Results) -> str:
    found = [p.throughput_samples_per_s for c in results.curves for p in c.points]
    found += [point.train_s for point in results.trainings]
    level = f"{fmean(one.level for one in found):.0%}".replace("%", " %") if found else NONE
    if not any(one.has_interval for one in found):
        return (
            "intervals over blocks; here there is one block, so how far values scatter is unknown"
        )
    return f"{level} confidence interval over blocks; how it is made stands under Provenance"
