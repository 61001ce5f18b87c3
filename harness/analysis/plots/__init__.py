"""The figures of a sweep. A figure is one function here; adding one is a function and a line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.facets import facets
from harness.analysis.flags import figure_flags
from harness.analysis.results import Results, load_results, nothing_measured
from harness.analysis.scaling import Curve, Failure
from harness.analysis.training import TrainedPoint
from harness.errors import AnalysisError, MissingDependencyError, did_you_mean
from harness.store import write_atomic

if TYPE_CHECKING:
    from harness.analysis.plots.series import Plot

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A figure of the registry: its function, imported when it is drawn (matplotlib is heavy)."""

    target: str  # module:function
    needs: str  # what records must have for it, and how to get that
    #: What is drawn of marked steps; all else is of the window, which only a sampler slows down.
    instruments: tuple[str, ...] = ("telemetry",)


_HERE = "harness.analysis.plots"
_MARKED = ("phases", "telemetry")
_NEEDS_PHASES = "it needs launches of 2 ranks or more with the instrument 'phases'"
#: File name of a figure of curves → how it is drawn, in the order in which they are shown.
PLOTS: dict[str, Entry] = {
    "speedup": Entry(f"{_HERE}.speedup:speedup", "it needs other launches than the base"),
    "efficiency": Entry(
        f"{_HERE}.speedup:efficiency", "it needs other launches than the base, and the base"
    ),
    "throughput": Entry(f"{_HERE}.over_devices:throughput", "it needs windows"),
    "exposed_sync": Entry(f"{_HERE}.sync:exposed_sync", _NEEDS_PHASES, _MARKED),
    "exposed_sync_epoch": Entry(f"{_HERE}.over_devices:exposed_sync_epoch", _NEEDS_PHASES, _MARKED),
    "phases": Entry(f"{_HERE}.phases:phases", "it needs the instrument 'phases'", _MARKED),
    "phase_shares": Entry(
        f"{_HERE}.shares:phase_shares",
        "it needs the instrument 'phases', and an engine that can mark all of them",
        _MARKED,
    ),
    "epoch_time": Entry(
        f"{_HERE}.epoch:epoch_time",
        "it needs several batch sizes; for many curves of one see epoch_time_devices",
    ),
    "epoch_time_devices": Entry(f"{_HERE}.over_devices:epoch_time_devices", "it needs windows"),
    "batches": Entry(f"{_HERE}.batches:batches", "it needs windows"),
    "allreduce": Entry(
        f"{_HERE}.isolated:allreduce", "it needs launches of 2 ranks or more that reduce gradients"
    ),
    "utilisation": Entry(
        f"{_HERE}.telemetry:utilisation", "it needs the instrument 'telemetry', and a longer window"
    ),
}
#: The same of trainings.
TRAINING_PLOTS: dict[str, Entry] = {
    "training": Entry(f"{_HERE}.training:training", "it needs trainings: hvdscale train")
}
FORMATS = ("png", "svg", "pdf")

Draw = Callable[[Any, Sequence[str]], "Plot | None"]  # of a facet, or of trained points


@dataclass(frozen=True)
class Drawn:
    """A figure: its name, which is its files' name, what stands over it, and the figure itself.

    ``plot.image("svg")`` and ``plot.csv_text()`` are the files' contents.
    """

    name: str  # of the registry; where a sweep has several kinds of scaling with it: NAME-weak
    title: str
    plot: Plot


def draw(results: Results, names: Sequence[str] | None = None) -> Iterator[Drawn]:
    """Draw the figures that the records allow, one after the other; all of them without ``names``.

    Where a sweep has several workloads, frameworks, kinds of scaling or devices, each has its own
    figures. What nothing was measured for is left out with a warning that says what is missing;
    a sweep without any measurement has no figure. Raises AnalysisError on an unknown name,
    MissingDependencyError without matplotlib.
    """
    known = [*PLOTS, *TRAINING_PLOTS]
    for name in names or ():
        if name not in known:
            raise AnalysisError(
                f"'{name}' is no figure{did_you_mean(name, known)}; figures: {', '.join(known)}"
            )
    require_matplotlib()
    wanted = set(known if names is None else names)
    return _drawn(results, wanted)


def plot_all(
    sweep_dir: Path | str,
    out_dir: Path | str,
    formats: Sequence[str] = ("png", "svg"),
    *,
    base: str | None = None,
    mixed: bool = False,
) -> list[Path]:
    """Collect a sweep and draw every figure that its records allow; return the files written.

    Each figure is ``NAME.png``, ``NAME.svg`` and the CSV behind it. The same records give the same
    bytes. Raises AnalysisError where there is nothing to draw, and as of ``scaling.curves``.
    """
    check_formats(formats)
    require_matplotlib()
    results = load_results(sweep_dir, base=base, mixed=mixed)
    if not results.curves and not results.trainings:
        raise AnalysisError(nothing_measured(Path(sweep_dir), results.failures))
    files = (
        (f"{drawn.name}.{kind}", content)
        for drawn in draw(results)
        for kind, content in _contents(drawn.plot, formats)
    )
    return write_figures(files, Path(out_dir))


def write_figures(files: Iterator[tuple[str, bytes]], out: Path) -> list[Path]:
    """Write (name, content) into a folder, which is made; return the paths.

    Raises AnalysisError where that cannot be done.
    """
    written: list[Path] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files:
            write_atomic(out / name, content)
            written.append(out / name)
    except OSError as error:
        raise AnalysisError(
            f"{error.filename or out}: the figures cannot be written: {error.strerror}; "
            "choose another folder with --out"
        ) from error
    return written


def check_formats(formats: Sequence[str]) -> None:
    """Raise AnalysisError where one is none of ``FORMATS``."""
    for kind in formats:
        if kind not in FORMATS:
            raise AnalysisError(
                f"'{kind}' is no format of a figure{did_you_mean(kind, FORMATS)}; "
                f"formats: {', '.join(FORMATS)}"
            )


def _contents(plot: Plot, formats: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for kind in formats:
        yield kind, plot.image(kind)
    yield "csv", plot.csv_text().encode()


def _drawn(results: Results, wanted: set[str]) -> Iterator[Drawn]:
    found = facets(results.curves)
    failed = [one for one in results.missing if one.kind != "train"]
    for facet, suffix in zip(found, _telling([_key(one.curves[0]) for one in found]), strict=True):
        for name, entry in PLOTS.items():
            if name in wanted:
                said = [*_notes(failed), *figure_flags(facet.curves, entry.instruments)]
                yield from _draw(entry, facet, said, name, suffix)
    groups: dict[tuple[str, ...], list[TrainedPoint]] = {}
    for point in results.trainings:
        groups.setdefault(_key(point), []).append(point)
    failed = [one for one in results.missing if one.kind == "train"]
    for group, suffix in zip(groups.values(), _telling(list(groups)), strict=True):
        unlike = [f"unlike launches mixed in {p.label}: {p.unlike}" for p in group if p.unlike]
        for name, entry in TRAINING_PLOTS.items():
            if name in wanted:
                yield from _draw(entry, group, [*_notes(failed), *unlike], name, suffix)


def _draw(entry: Entry, what: Any, notes: Sequence[str], name: str, suffix: str) -> Iterator[Drawn]:
    """Draw one figure, if there is something to draw in it."""
    from harness.analysis.plots.style import style

    with style():  # not around a yield: the caller has a style of its own
        plot = _function(entry.target)(what, notes)
    if plot is None:
        log.warning("no figure %s%s: %s", name, suffix, entry.needs)
        return
    of = suffix.replace("-", " ").strip()
    yield Drawn(f"{name}{suffix}", f"{plot.title}, {of}" if of else plot.title, plot)


def require_matplotlib() -> None:
    """Raise MissingDependencyError where there is no matplotlib, and say how to get it."""
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise MissingDependencyError(
            f"figures need matplotlib ({error}); install it: pip install 'hvdscale[analysis]'"
        ) from None


def _function(target: str) -> Draw:
    module, _, name = target.partition(":")
    found: Draw = getattr(import_module(module), name)
    return found


def _key(one: Curve | TrainedPoint) -> tuple[str, ...]:
    """Return what figures are of; see ``facets``."""
    return (one.workload, one.framework, one.scaling, one.device)


def _telling(keys: Sequence[tuple[str, ...]]) -> list[str]:
    """Return what tells the files of several apart: nothing for a single one."""
    differing = [i for i in range(4) if len({key[i] for key in keys}) > 1]
    return ["".join(f"-{key[i]}" for i in differing) for key in keys]


def _notes(failed: Sequence[Failure]) -> list[str]:
    if not failed:
        return []
    text = (
        "1 launch failed and is" if len(failed) == 1 else f"{len(failed)} launches failed and are"
    )
    return [f"{text} not drawn"]
