"""The figures of a sweep. A figure is one function here; adding one is a function and a line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.collecting import load_arrow
from harness.analysis.facets import Facet, facets
from harness.analysis.flags import figure_flags
from harness.analysis.scaling import Failure, curves, failures
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
#: What is drawn of marked steps; all else is of the window, which only a sampler may slow down.
_SHOWS = {"exposed_sync": ("phases", "telemetry"), "phases": ("phases", "telemetry")}
FORMATS = ("png", "svg", "pdf")

Draw = Callable[[Facet, Sequence[str]], "Plot | None"]


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
    if not found:
        raise AnalysisError(_nothing(Path(sweep_dir), failed))
    out = Path(out_dir)
    try:
        out.mkdir(parents=True, exist_ok=True)
        return _draw_all(found, out, formats, _notes(failed))
    except OSError as error:
        raise AnalysisError(
            f"{error.filename or out}: the figures cannot be written: {error.strerror}; "
            "choose another folder with --out"
        ) from error


def _draw_all(
    found: Sequence[Facet], out: Path, formats: Sequence[str], notes: Sequence[str]
) -> list[Path]:
    from harness.analysis.plots.style import figure_bytes, style

    written: list[Path] = []
    for facet, suffix in zip(found, _suffixes(found), strict=True):
        for name, target in PLOTS.items():
            said = [*notes, *figure_flags(facet.curves, _SHOWS.get(name, ("telemetry",)))]
            with style():
                plot = _function(target)(facet, said)
                if plot is None:
                    log.warning(
                        "no figure %s%s: the records have nothing to draw in it", name, suffix
                    )
                    continue
                for kind in formats:
                    written.append(out / f"{name}{suffix}.{kind}")
                    write_atomic(written[-1], figure_bytes(plot.figure, kind))
            written.append(out / f"{name}{suffix}.csv")
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
    differing = [i for i in range(4) if len({key[i] for key in keys}) > 1]
    return ["".join(f"-{key[i]}" for i in differing) for key in keys]


def _notes(failed: Sequence[Failure]) -> list[str]:
    missing = len({failure.run_id for failure in failed if not failure.repaired})
    if not missing:
        return []
    text = "1 launch failed and is" if missing == 1 else f"{missing} launches failed and are"
    return [f"{text} not drawn"]


def _nothing(folder: Path, failed: Sequence[Failure]) -> str:
    if not failed:
        return f"{folder}: no measurements to draw; run the sweep first"
    return (
        f"{folder}: no measurements to draw, all {len(failed)} launches failed, the last one: "
        f"{failed[-1].cause}"
    )
