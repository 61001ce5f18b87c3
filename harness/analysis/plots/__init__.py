"""The figures of a sweep. A figure is one function here; adding one is a function and a line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.collecting import load_arrow
from harness.analysis.evaluations import load_evaluations
from harness.analysis.facets import Facet, facets
from harness.analysis.flags import figure_flags
from harness.analysis.results import nothing_measured
from harness.analysis.scaling import Failure, curves, failures
from harness.analysis.training import TrainedPoint, trainings
from harness.errors import AnalysisError, MissingDependencyError, did_you_mean
from harness.store import write_atomic

if TYPE_CHECKING:
    from harness.analysis.plots.series import Plot

log = logging.getLogger(__name__)

#: File name of a figure → ``module:function``, imported when it is drawn (matplotlib is heavy).
PLOTS: dict[str, str] = {
    "speedup": "harness.analysis.plots.speedup:speedup",
    "efficiency": "harness.analysis.plots.speedup:efficiency",
    "exposed_sync": "harness.analysis.plots.sync:exposed_sync",
    "phases": "harness.analysis.plots.phases:phases",
    "epoch_time": "harness.analysis.plots.epoch:epoch_time",
}
#: The same of trainings.
TRAINING_PLOTS: dict[str, str] = {"training": "harness.analysis.plots.training:training"}
#: What is drawn of marked steps; all else is of the window, which only a sampler may slow down.
_SHOWS = {"exposed_sync": ("phases", "telemetry"), "phases": ("phases", "telemetry")}
FORMATS = ("png", "svg", "pdf")

Draw = Callable[[Any, Sequence[str]], "Plot | None"]  # of a facet, or of trained points


def plot_all(
    sweep_dir: Path | str,
    out_dir: Path | str,
    formats: Sequence[str] = ("png", "svg"),
    *,
    base: str | None = None,
    mixed: bool = False,
) -> list[Path]:
    """Collect a sweep and draw every figure that its records allow; return the files written.

    Each figure is ``NAME.png``, ``NAME.svg`` and the CSV behind it; where a sweep has several
    workloads, kinds of scaling or devices, each has its own, ``NAME-weak.png``. The same records
    give the same bytes. A figure that nothing was measured for is left out with a warning. Raises
    AnalysisError where there is nothing to draw, and as of ``scaling.curves``.
    """
    _check(formats)
    table = load_arrow(sweep_dir)
    failed = failures(table)
    found = facets(curves(table, base=base, mixed=mixed))
    trained = trainings(table, load_evaluations(sweep_dir), mixed=mixed)
    if not found and not trained:
        raise AnalysisError(nothing_measured(Path(sweep_dir), failed))
    out = Path(out_dir)
    try:
        out.mkdir(parents=True, exist_ok=True)
        measured = [failure for failure in failed if failure.kind != "train"]
        rest = [failure for failure in failed if failure.kind == "train"]
        return [
            *_draw_all(found, out, formats, _notes(measured)),
            *_draw_trainings(trained, out, formats, _notes(rest)),
        ]
    except OSError as error:
        raise AnalysisError(
            f"{error.filename or out}: the figures cannot be written: {error.strerror}; "
            "choose another folder with --out"
        ) from error


def _draw_all(
    found: Sequence[Facet], out: Path, formats: Sequence[str], notes: Sequence[str]
) -> list[Path]:
    written: list[Path] = []
    for facet, suffix in zip(found, _suffixes(found), strict=True):
        for name, target in PLOTS.items():
            said = [*notes, *figure_flags(facet.curves, _SHOWS.get(name, ("telemetry",)))]
            written += _draw(target, facet, said, out, f"{name}{suffix}", formats)
    return written


def _draw_trainings(
    points: Sequence[TrainedPoint], out: Path, formats: Sequence[str], notes: Sequence[str]
) -> list[Path]:
    groups: dict[tuple[str, ...], list[TrainedPoint]] = {}
    for point in points:
        key = (point.workload, point.framework, point.scaling, point.device)
        groups.setdefault(key, []).append(point)
    suffixes = _telling(list(groups))
    written: list[Path] = []
    for group, suffix in zip(groups.values(), suffixes, strict=True):
        unlike = [f"unlike launches mixed in {p.label}: {p.unlike}" for p in group if p.unlike]
        for name, target in TRAINING_PLOTS.items():
            said = [*notes, *unlike]
            written += _draw(target, group, said, out, f"{name}{suffix}", formats)
    return written


def _draw(
    target: str, what: Any, notes: Sequence[str], out: Path, name: str, formats: Sequence[str]
) -> list[Path]:
    """Draw one figure; return its files, none where there is nothing to draw in it."""
    from harness.analysis.plots.style import figure_bytes, style

    written: list[Path] = []
    with style():
        plot = _function(target)(what, notes)
        if plot is None:
            log.warning("no figure %s: the records have nothing to draw in it", name)
            return []
        for kind in formats:
            written.append(out / f"{name}.{kind}")
            write_atomic(written[-1], figure_bytes(plot.figure, kind))
    written.append(out / f"{name}.csv")
    write_atomic(written[-1], plot.csv_text().encode())
    return written


def _function(target: str) -> Draw:
    module, _, name = target.partition(":")
    found: Draw = getattr(import_module(module), name)
    return found


def _check(formats: Sequence[str]) -> None:
    for kind in formats:
        if kind not in FORMATS:
            raise AnalysisError(
                f"'{kind}' is no format of a figure{did_you_mean(kind, FORMATS)}; "
                f"formats: {', '.join(FORMATS)}"
            )
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise MissingDependencyError(
            f"figures need matplotlib ({error}); install it: pip install 'hvdscale[analysis]'"
        ) from None


def _suffixes(found: Sequence[Facet]) -> list[str]:
    """Return what tells the facets' files apart: nothing for a single one."""
    keys = [
        (first.workload, first.framework, first.scaling, first.device)
        for first in (facet.curves[0] for facet in found)
    ]
    return _telling(keys)


def _telling(keys: Sequence[tuple[str, ...]]) -> list[str]:
    differing = [i for i in range(4) if len({key[i] for key in keys}) > 1]
    return ["".join(f"-{key[i]}" for i in differing) for key in keys]


def _notes(failed: Sequence[Failure]) -> list[str]:
    missing = len({failure.run_id for failure in failed if not failure.repaired})
    if not missing:
        return []
    text = "1 launch failed and is" if missing == 1 else f"{missing} launches failed and are"
    return [f"{text} not drawn"]
