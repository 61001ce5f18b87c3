"""``--what-if``: a measured step replayed with one thing changed. No measurement, and marked so.

Each launch's step is parted (``replaying``), one part is changed, and the parts are summed again;
nothing is run. Throughput, S and E follow launch by launch, so their intervals are those of the
launches: what was assumed is in none of them, and is written beside. Speedup keeps the base as it
was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from harness.analysis.apart import apart_text
from harness.analysis.models.alpha_beta import AllReduceModel, Timed, fit_across, fit_inside
from harness.analysis.models.api import Place
from harness.analysis.models.changes import Change, parse_change
from harness.analysis.models.launch_bound import Graph, graph_of
from harness.analysis.models.measured import (
    NEED_PHASES,
    Facts,
    facts_of,
    marked_apart,
    step_parts,
    timeline_parts,
)
from harness.analysis.models.replaying import (
    NAMES,
    Refusal,
    Split,
    State,
    assumptions_of,
    changed,
    state_of,
)
from harness.analysis.models.whatif_render import render_what_if
from harness.analysis.models.whatif_types import TOGETHER, Part, Rates, Replay
from harness.analysis.results import Results
from harness.analysis.scaling import Curve, Launch, Point
from harness.analysis.welch import log_ratio_interval
from harness.errors import AnalysisError
from harness.stats import BlockKey, Interval, geometric_interval, log_mean_interval, mean_interval

__all__ = ["Replay", "render_what_if", "what_if"]

_OF_SYNC = ("cycle_time_ms", "bandwidth", "latency", "no-stragglers", "no-sync")


@dataclass(frozen=True)
class _Scene:
    """One point, ready to be replayed."""

    curve: Curve
    point: Point
    launches: tuple[tuple[Launch, State], ...]
    split: Split
    graph: Graph


def what_if(results: Results, changes: Sequence[str]) -> tuple[Replay, ...]:
    """Replay every measured point with each of ``changes`` alone, and with all together that
    are not refused.

    Points of one device alone are left out where only synchronisation changes. A change that a
    point's records cannot support is refused there, with a sentence. Raises ConfigError on a change
    that there is not, AnalysisError where nothing can be replayed.
    """
    asked = tuple(dict.fromkeys(map(parse_change, changes)))
    found: list[Replay] = []
    for curve in results.require_curves("--what-if"):
        found += _curve(results, curve, asked)
    if any(one.refused is None for one in found):
        return tuple(found)
    reasons = dict.fromkeys(f"{one.change}: {one.refused}" for one in found)
    raise AnalysisError(
        "nothing can be replayed: "
        + ("; ".join(reasons) or "no point of two devices or more, so nothing is synchronised")
    )


def _curve(results: Results, curve: Curve, asked: Sequence[Change]) -> list[Replay]:
    facts = facts_of(results, curve)
    links = _links(curve, facts)
    found: list[Replay] = []
    for point in curve.points:
        wanted = [one for one in asked if point.world_size > 1 or one.name not in _OF_SYNC]
        if not wanted:
            continue
        scene = _scene(curve, point, facts, links, results.curves)
        alone = [_replay(scene, (one,)) for one in wanted]
        able = [one for one, made in zip(wanted, alone, strict=True) if made.refused is None]
        found += [*alone, *([_replay(scene, able)] if len(able) > 1 else [])]
    return found


def _scene(
    curve: Curve,
    point: Point,
    facts: Facts,
    links: AllReduceModel,
    curves: Sequence[Curve],
) -> _Scene:
    isolated_s = _isolated_s(point, facts)
    place = Place.of(point)
    split = Split(facts, isolated_s, timeline_parts(point), _latency_share(links, place))
    pairs = [(launch, step_parts(launch)) for launch in point.launches]
    states = tuple((launch, state_of(parts, split)) for launch, parts in pairs if parts is not None)
    return _Scene(curve, point, states, split, graph_of(curve, point, curves))


def _isolated_s(point: Point, facts: Facts) -> float | None:
    """Return the isolated all-reduce without the cycle of Horovod that it waited for."""
    if point.allreduce_p50_s is None:
        return None
    cycle_s = facts.tuning.cycle_time_ms / 1e3 if facts.tuning else 0.0
    return max(point.allreduce_p50_s.estimate - cycle_s, 0.0)


def _links(curve: Curve, facts: Facts) -> AllReduceModel:
    timed = [
        Timed(Place.of(point), np.asarray([seconds]))
        for point in curve.points
        if (seconds := _isolated_s(point, facts)) is not None
    ]
    hierarchical = bool(facts.tuning and facts.tuning.hierarchical_allreduce)
    inside = fit_inside(timed, facts.count_bytes)
    across = fit_across(timed, inside, facts.count_bytes, hierarchical)
    return AllReduceModel(facts.count_bytes, inside, across, hierarchical)


def _latency_share(links: AllReduceModel, place: Place) -> float | None:
    """Return latency's part of an all-reduce; None where the links cannot be told."""
    try:
        parts = links.parts(place)
    except AnalysisError:
        return None
    whole_s = float(parts.seconds[0])
    return float(parts.latency_s[0]) / whole_s if whole_s > 0 else None


def _replay(scene: _Scene, changes: Sequence[Change]) -> Replay:
    point, curve = scene.point, scene.curve
    texts = [change.text for change in changes]
    label = texts[0] if len(texts) == 1 else f"{TOGETHER}: {', '.join(texts)}"
    before = _rates(scene, [(one, one.step_s) for one in point.launches])
    refused: str | None = None
    after: list[State] = []
    if not scene.launches:
        refused = f"it {NEED_PHASES}"
    try:
        after = [_all(state, changes, scene) for _, state in scene.launches]
    except Refusal as refusal:
        refused = refusal.reason
    made = Replay(
        curve=curve.label, scaling=curve.scaling, world_size=point.world_size,
        placement=point.placement, change=label, measured=before, replayed=None, gain=None,
        parts=(), assumptions=(), refused=refused, apart=apart_text(curve),
    )  # fmt: skip
    if refused is not None:
        return made
    return _filled(made, scene, changes, after)


def _all(state: State, changes: Sequence[Change], scene: _Scene) -> State:
    for change in changes:
        state = changed(state, change, scene.split, scene.graph)
    return state


def _filled(
    made: Replay, scene: _Scene, changes: Sequence[Change], after: Sequence[State]
) -> Replay:
    """Return the replay with its numbers, from each launch's state after the changes."""
    launches = [launch for launch, _ in scene.launches]
    gains = {
        launch.block: math.log(launch.step_s / state.step_s)
        for launch, state in zip(launches, after, strict=True)
    }
    parts = tuple(
        Part(
            name,
            fmean(state.parts[name] for _, state in scene.launches),
            fmean(state.parts[name] for state in after),
        )
        for name in NAMES
    )
    assumptions = dict.fromkeys(
        line for change in changes for line in assumptions_of(change, scene.split, scene.graph)
    )
    steps = [(launch, state.step_s) for launch, state in zip(launches, after, strict=True)]
    return replace(
        made,
        replayed=_rates(scene, steps),
        gain=_marked(scene, log_mean_interval(gains)),
        parts=tuple(part for part in parts if part.before_s or part.after_s),
        assumptions=(*assumptions, *marked_apart(scene.point)),
    )


def _rates(scene: _Scene, steps: Sequence[tuple[Launch, float]]) -> Rates:
    """Return a step and what follows from it, of launches that take ``step_s`` each."""
    point, base = scene.point, scene.curve.base
    samples = point.rank_batch * point.world_size
    rates = {one.block: samples / step_s for one, step_s in steps}
    found = _speedup(scene, steps, rates)
    speedup = _marked(scene, found) if found else None
    return Rates(
        step_s=_marked(scene, mean_interval({one.block: step_s for one, step_s in steps})),
        throughput_samples_per_s=_marked(scene, geometric_interval(rates)),
        speedup=speedup,
        efficiency=speedup.scaled(base.devices / point.world_size) if speedup and base else None,
    )


def _speedup(
    scene: _Scene, steps: Sequence[tuple[Launch, float]], rates: Mapping[BlockKey, float]
) -> Interval | None:
    """Return S of launches that take ``step_s`` each; None without a base."""
    if scene.point.apart and rates:
        return log_ratio_interval(rates, scene.curve.base_rates)
    logs = {
        one.block: math.log(one.speedup * one.step_s / step_s)
        for one, step_s in steps
        if one.speedup is not None
    }
    return log_mean_interval(logs) if logs else None


def _marked(scene: _Scene, interval: Interval) -> Interval:
    return interval.sequential() if scene.point.sequential else interval
