"""Time against device-hours: what each candidate costs, the front, and what is advised."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from harness.analysis.advise.types import Advice, Answer, Candidate
from harness.analysis.plots.series import Plot, Row, columns, handle, intervals_text, support
from harness.analysis.plots.style import FAINT, INK, MARKERS, OKABE_ITO, new_figure
from harness.errors import AnalysisError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAD, _REACH, _NARROW = 1.25, 2.5, 6.0
_UNITS_S = ((5970.0, 3600.0, "h"), (99.5, 60.0, "min"), (0.0, 1.0, "s"))
_PANEL_IN = 1.9
#: About what a panel has room for, in points, and where a label may stand beside its point.
_PANEL_PT = (190.0, 105.0)
_SIDES = ((5.0, 4.5), (5.0, -5.0), (-5.0, -5.0), (-5.0, 4.5), (0.0, 7.0), (0.0, -7.0))
_CLEAR = 6.0
_FRONT: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": "-"}
_DEADLINE: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (4, 3))}
_RING: dict[str, Any] = {
    "linestyle": "none", "marker": "o", "markersize": 8.5, "markerfacecolor": "none",
    "markeredgecolor": INK, "markeredgewidth": 0.9,
}  # fmt: skip


def pareto(advice: Advice) -> Plot:
    """Draw every answer's candidates, a panel an answer; call it inside ``style()``.

    Device-hours are devices × time, so that a candidate's interval runs along the diagonal of its
    device count. Raises AnalysisError where no answer has a candidate.
    """
    answers = [one for one in advice.answers if one.candidates]
    if not answers:
        raise AnalysisError("no figure: no point has a known cost, as the advice says")
    kinds = list(dict.fromkeys(_kind(one, c) for one in answers for c in one.candidates))
    looks = {kind: _look(i) for i, kind in enumerate(kinds)}
    device = answers[0].candidates[0].device
    deadline_s = advice.goal.deadline_s
    seen = deadline_s is not None and any(_is_near(one, deadline_s) for one in answers)
    figure, axes = new_figure(
        len(answers),
        "Time against device-hours",
        [
            f"a device is {'a CPU slot' if device == 'cpu' else 'a GPU'}; N beside each point; "
            "filled: measured, open: computed, faint: outside the limits",
            intervals_text([c.time_s for one in answers for c in one.candidates]),
            "" if deadline_s is None or seen else f"deadline {deadline_s:g} s, beyond the axes",
        ],
        [
            *(handle(kind, **(looks[kind] | {"linestyle": "none"})) for kind in kinds),
            handle("front", **_FRONT),
            handle("advised", **(_RING | {"markersize": 6})),
            *([handle("deadline", **_DEADLINE)] if seen else []),
        ],
        panels_in=[_PANEL_IN] * len(answers),
    )
    for ax, one in zip(axes, answers, strict=True):
        _panel(ax, one, looks, deadline_s)
    axes[-1].set_xlabel("device-hours")
    rows = [row for one in answers for row in _rows(one)]
    return Plot(figure, tuple(rows))


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return those that no other beats in both time and device-hours, cheapest first."""
    found: list[Candidate] = []
    order = sorted(candidates, key=lambda c: (c.device_hours.estimate, c.time_s.estimate))
    for one in order:
        if not found or one.time_s.estimate < found[-1].time_s.estimate:
            found.append(one)
    return found


def _panel(
    ax: Axes, one: Answer, looks: dict[str, dict[str, Any]], deadline_s: float | None
) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    estimates = [c.time_s.estimate for c in one.candidates]
    _, unit_s, unit = next(u for u in _UNITS_S if min(estimates) >= u[0])
    best = front(one.candidates)
    for c in one.candidates:
        _point(ax, c, looks[_kind(one, c)], unit_s)
    if one.comparable:
        ax.step(
        [c.device_hours.estimate for c in best], [c.time_s.estimate / unit_s for c in best],
        where="post", zorder=2, **_FRONT,
    )  # fmt: skip
    if one.recommended is not None:
        at = one.recommended
        ax.plot([at.device_hours.estimate], [at.time_s.estimate / unit_s], zorder=6, **_RING)
    shown = estimates
    if deadline_s is not None and _is_near(one, deadline_s):
        ax.axhline(deadline_s / unit_s, zorder=1, **_DEADLINE)
        shown = [*estimates, deadline_s]
    ends = [end for c in one.candidates for end in (c.time_s.low, c.time_s.high) if end]
    hours = [c.device_hours.estimate for c in one.candidates]
    hour_ends = [
        end for c in one.candidates for end in (c.device_hours.low, c.device_hours.high) if end
    ]
    ax.set_ylim(*_limits([x / unit_s for x in shown], [x / unit_s for x in ends]))
    ax.set_xlim(*_limits(hours, hour_ends))
    _ticks(ax)
    _labels(ax, one.candidates, unit_s)
    ax.set_ylabel(f"time in {unit}")
    ax.set_title(_wrapped(f"{one.title}: {one.cost_of}"), loc="left", pad=3)


def _is_near(one: Answer, deadline_s: float) -> bool:
    """Say whether a deadline can be drawn: one far off would leave the points no room."""
    times = [c.time_s.estimate for c in one.candidates]
    return min(times) / _REACH <= deadline_s <= max(times) * _REACH


def _point(ax: Axes, c: Candidate, look: dict[str, Any], unit_s: float) -> None:
    alpha = 0.35 if c.misses else 1.0
    x, y = c.device_hours.estimate, c.time_s.estimate / unit_s
    if c.time_s.low and c.time_s.high and c.device_hours.low and c.device_hours.high:
        ax.plot(
            [c.device_hours.low, c.device_hours.high],
            [c.time_s.low / unit_s, c.time_s.high / unit_s],
            color=look["color"], linewidth=0.8, alpha=alpha, zorder=3,
        )  # fmt: skip
    fill = look["color"] if c.basis == "measured" else "white"
    ax.plot(
        [x], [y], linestyle="none", marker=look["marker"], color=look["color"],
        markerfacecolor=fill, markeredgewidth=0.7, alpha=alpha, zorder=4,
    )  # fmt: skip


def _limits(values: Sequence[float], ends: Sequence[float]) -> tuple[float, float]:
    """Follow the estimates; an interval may stretch an axis only so far."""
    low, high = min(values), max(values)
    low = min(low, max(low / _REACH, min(ends, default=low)))
    high = max(high, min(high * _REACH, max(ends, default=high)))
    return low / _PAD, high * _PAD


def _ticks(ax: Axes) -> None:
    for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        narrow = limits[1] / limits[0] < _NARROW
        axis.set_major_locator(MaxNLocator(4) if narrow else LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())


def _labels(ax: Axes, candidates: Sequence[Candidate], unit_s: float) -> None:
    """Write N beside each point, at the side that is farthest from points and other labels."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()

    def place(c: Candidate) -> tuple[float, float]:
        x = math.log(c.device_hours.estimate / left) / math.log(right / left)
        y = math.log(c.time_s.estimate / unit_s / bottom) / math.log(top / bottom)
        return x * _PANEL_PT[0], y * _PANEL_PT[1]

    taken = [place(c) for c in candidates]
    for c in candidates:
        x, y = place(c)
        free = {
            side: min(math.dist((x + side[0], y + side[1]), other) for other in taken)
            for side in _SIDES
        }
        side = max(_SIDES, key=lambda one: free[one] if free[one] < _CLEAR else _CLEAR)
        taken.append((x + side[0], y + side[1]))
        ax.annotate(
            f"{c.world_size}", (c.device_hours.estimate, c.time_s.estimate / unit_s),
            xytext=side, textcoords="offset points", fontsize=5, ha="center", va="center",
            color=FAINT if c.misses else INK, zorder=5, annotation_clip=True,
        )  # fmt: skip


def _kind(one: Answer, c: Candidate) -> str:
    """Return a candidate's label without its devices, and without a batch that all have."""
    kind = c.label.partition(", ")[2]
    batch = f"{'batch' if c.scaling == 'weak' else 'global batch'} {c.batch}"
    same = one.comparable and not one.chooses_batch
    return kind.removesuffix(f", {batch}") if same else kind


def _look(index: int) -> dict[str, Any]:
    return {
        "color": OKABE_ITO[index % len(OKABE_ITO)],
        "marker": MARKERS[(index + index // len(OKABE_ITO)) % len(MARKERS)],
    }


def _wrapped(text: str, width: int = 58) -> str:
    return "\n".join(textwrap.wrap(text, width))


def _rows(one: Answer) -> list[Row]:
    best = front(one.candidates)
    return [
        {
            "answer": one.title, "cost_of": one.cost_of, "candidate": c.label,
            "engine": c.engine, "backend": c.backend, "device": c.device, "scaling": c.scaling,
            "batch": c.batch, "rank_batch": c.rank_batch, "global_batch": c.global_batch,
            "devices": c.world_size, "nodes": c.nodes, "placement": c.placement,
            "basis": c.basis,
            **columns("time", "s", c.time_s),
            **columns("device_hours", "", c.device_hours),
            **columns("efficiency", "", c.efficiency),
            "base_apart": c.apart,
            **support(c.time_s),
            "front": one.comparable and c in best, "advised": c is one.recommended,
            "misses": "; ".join(c.misses),
        }
        for c in one.candidates
    ]  # fmt: skip
