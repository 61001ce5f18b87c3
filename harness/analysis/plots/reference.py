"""What curves are held against: the ideal from the base, and the line fitted to S."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.match import BaseName
from harness.analysis.plots.series import Look, handle
from harness.analysis.plots.style import FAINT, INK
from harness.analysis.scaling import Curve
from harness.stats import BlockKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

IDEAL: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 3)), "linewidth": 0.8}
_FIT: dict[str, Any] = {"linestyle": "-", "linewidth": 0.45}
_SAME = 1e-6  # relative; two curves' values of one launch differ by rounding alone
_STEPS = 65


def of_base(
    curves: Iterable[Curve], value_of: Callable[[Curve, float], float]
) -> list[tuple[BaseName, float]]:
    """Return each base with its value, the geometric mean over its blocks.

    ``value_of`` says it by a curve and its base's samples/s in a block. Curves that have one base
    in common give it once.
    """
    found: list[tuple[BaseName, dict[BlockKey, float]]] = []
    for curve in curves:
        values = {block: value_of(curve, rate) for block, rate in curve.base_rates.items()}
        if curve.base is None or not values:
            continue
        for base, known in found:
            if base == curve.base and _agree(known, values):
                known.update(values)
                break
        else:
            found.append((curve.base, values))
    return [(base, geometric_mean(known.values())) for base, known in found]


def _agree(one: Mapping[BlockKey, float], other: Mapping[BlockKey, float]) -> bool:
    return all(math.isclose(one.get(key, v), v, rel_tol=_SAME) for key, v in other.items())


def draw_ideal(ax: Axes, ideal_of: Callable[[float], float]) -> None:
    """Draw an ideal over the whole axis, so that a single device count has it, too.

    ``ideal_of`` is a power of the device count: straight where y is logarithmic, or constant.
    """
    ends = list(ax.get_xlim())
    ax.plot(ends, [ideal_of(n) for n in ends], zorder=1, **IDEAL)
    ax.set_xlim(*ends)


def draw_fits(
    ax: Axes,
    fits: Iterable[tuple[Curve, Look]],
    value_of: Callable[[float, float], float],
) -> None:
    """Draw the fitted lines of S against N, thin, from each curve's least N to its greatest.

    ``value_of`` turns N and the line's S into what the axes show; what is not above zero has no
    place on a logarithmic axis and is left out.
    """
    for curve, look in fits:
        if curve.slope is None or curve.intercept is None:
            continue
        counts = [point.world_size for point in curve.points if point.speedup]
        n = np.geomspace(min(counts), max(counts), _STEPS)
        speedup = curve.slope.estimate * n + curve.intercept.estimate
        pairs = [(x, value_of(x, s)) for x, s in zip(n.tolist(), speedup.tolist(), strict=True)]
        shown = [(x * look.shift, y) for x, y in pairs if y > 0]
        ax.plot(
            [x for x, _ in shown], [y for _, y in shown], color=look.colour, zorder=3, **_FIT
        )  # fmt: skip


def fit_handles(curves: Sequence[Curve], name: str) -> list[Line2D]:
    """Return the legend entry of fitted lines, where there are any."""
    fitted = any(curve.slope for curve in curves)
    return [handle(name, color=FAINT, **_FIT)] if fitted else []


def slope_text(curve: Curve) -> str:
    """Return `` (slope 0.53 [0.51, 0.55])``; nothing without a slope."""
    slope = curve.slope
    if slope is None:
        return ""
    ends = "" if slope.low is None else f" [{slope.low:.2f}, {slope.high:.2f}]"
    return f" (slope {slope.estimate:.2f}{ends})".replace("-", "−")
