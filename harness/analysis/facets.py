"""Curves that may stand in one table or figure: one workload, one kind of scaling, one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.scaling import Curve, Point
from harness.stats import SEQUENTIAL_NOTE


@dataclass(frozen=True)
class Facet:
    """Curves of one workload, framework, kind of scaling, device and base."""

    curves: tuple[Curve, ...]

    @property
    def title(self) -> str:
        """Return what all its curves share, e.g. ``stress_strain (torch), weak scaling, cpu``."""
        first = self.curves[0]
        device = {"cpu": "CPU", "cuda": "GPU"}.get(first.device, first.device)
        return f"{first.workload} ({first.framework}), {first.scaling} scaling, {device}"

    @property
    def batch_text(self) -> str:
        """Say which batch is declared and so kept over the device count."""
        kept = "batch a rank" if self.curves[0].scaling == "weak" else "global batch"
        return f"{kept} constant"

    @property
    def base_text(self) -> str:
        """Name the base, or say why there is none."""
        bases = {str(curve.base) for curve in self.curves if curve.base}
        if bases:
            return f"base {', '.join(sorted(bases))}"
        return f"no speedup: {self.curves[0].note}"

    @property
    def interval_text(self) -> str:
        """Say what intervals rest on: ``95 % intervals: t, 3 blocks of one allocation``."""
        found = [_interval(p) for curve in self.curves for p in curve.points]
        of_level: dict[float, set[str]] = {}
        for level, method in found:
            if level:
                of_level.setdefault(level, set()).add(method)
        methods = [
            f"{level:.0%} intervals: {'; '.join(sorted(texts))}"
            for level, texts in sorted(of_level.items())
        ]
        single = any(not level for level, _ in found)
        plain = ["one block: no interval"] if single else []
        noted = [SEQUENTIAL_NOTE] if self.sequential else []
        return "; ".join([m.replace("%", " %") for m in methods] + plain + noted)

    @property
    def sequential(self) -> bool:
        """Say whether an interval is marked ``sequential``."""
        return any(point.sequential for curve in self.curves for point in curve.points)

    @property
    def engine_text(self) -> str:
        """Name the engines of its curves, the plain step excepted where others are there."""
        engines = sorted({curve.engine for curve in self.curves} - {"none"})
        return ", ".join(engines) or "none"


def facets(curves: Sequence[Curve]) -> tuple[Facet, ...]:
    """Sort curves into facets, in the order of their first curves."""
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        key = (curve.workload, curve.framework, curve.scaling, curve.device)
        groups.setdefault(key, []).append(curve)
    return tuple(Facet(tuple(group)) for group in groups.values())


def is_base_point(curve: Curve, point: Point) -> bool:
    """Say whether a point is the very thing that its curve is divided by."""
    return (
        curve.base is not None
        and curve.engine == curve.base.engine
        and point.world_size == curve.base.devices
    )


def _interval(point: Point) -> tuple[float | None, str]:
    shown = point.speedup or point.throughput_samples_per_s
    return (shown.level if shown.has_interval else None, shown.method)
