"""``hvdscale advise``: what to ask for, from one sweep or several."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.analysis.advise import Advice


def command_advise(
    paths: Sequence[str],
    min_efficiency: float | None,
    deadline: str | None,
    target: str | None,
    out: Path | None,
    results: Path,
    *,
    base: str | None = None,
    mixed: bool = False,
    as_json: bool = False,
) -> int:
    """Print advice, or JSON; with ``out`` draw time against device-hours there, and its CSV."""
    from harness.analysis.advise import advise, parse_goal, render_advice
    from harness.analysis.plain import json_text
    from harness.analysis.results import load_results
    from harness.cli.listing import sweep_folder

    goal = parse_goal(min_efficiency, deadline, target)  # before records are read
    folders = [sweep_folder(path, results) for path in paths]
    loaded = [load_results(folder, base=base, mixed=mixed) for folder in folders]
    found = advise(loaded, goal, mixed=mixed, look_ahead=True)
    print(json_text(found) if as_json else render_advice(found))
    if out is not None:
        for path in _drawn(found, out):
            print(f"{path} written", file=sys.stderr)
    return 0


def _drawn(advice: Advice, out: Path) -> list[Path]:
    from harness.analysis.advise import pareto
    from harness.errors import AnalysisError, MissingDependencyError
    from harness.store import write_atomic

    try:
        from harness.analysis.plots.style import figure_bytes, style
    except ImportError as error:
        raise MissingDependencyError(
            f"figures need matplotlib ({error}); install it: pip install 'hvdscale[analysis]'"
        ) from None
    written = [out / f"pareto.{kind}" for kind in ("png", "svg", "csv")]
    with style():
        plot = pareto(advice)
        content = [*(figure_bytes(plot.figure, kind) for kind in ("png", "svg"))]
    content.append(plot.csv_text().encode())
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, data in zip(written, content, strict=True):
            write_atomic(path, data)
    except OSError as error:
        raise AnalysisError(
            f"{error.filename or out}: the figure cannot be written: {error.strerror}; "
            "choose another folder with --out"
        ) from error
    return written
