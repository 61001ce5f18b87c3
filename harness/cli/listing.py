"""Subcommands that read results."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError, StoreError, did_you_mean

if TYPE_CHECKING:
    from harness.runner.listing import SweepState

RESULTS = Path("results")
_RECORD = "record.json"  # of collectives, see collectives/writing.py


def command_ls(path: Path, as_json: bool) -> int:
    """Print the sweeps below ``path``, or the one that ``path`` is, with their points.

    Of several, one that cannot be read is listed with its fault, and the exit code is 1.
    """
    from harness.runner.listing import list_sweep

    if not os.path.isdir(path):
        path = _sweep_named(path)
    if (path / "sweep.json").is_file():
        found: list[SweepState | tuple[Path, StoreError]] = [list_sweep(path)]
    else:
        found = [_listed(folder) for folder in sweep_folders(path)]
    if as_json:
        rows = [
            {"name": one[0].name, "path": str(one[0]), "error": str(one[1])}
            if isinstance(one, tuple)
            else one.as_dict()
            for one in found
        ]
        print(json.dumps(rows, indent=1))
    for one in found if not as_json else ():
        print(f"{one[0].name}: cannot be read: {one[1]}" if isinstance(one, tuple) else one.text())
    return int(any(isinstance(one, tuple) for one in found))


def _sweep_named(path: Path) -> Path:
    """Return the folder of a sweep by its name, preset or file, as `collect` does; or ``path``."""
    preset = _preset_folder(str(path), RESULTS)
    there = (RESULTS / path, *([preset] if preset is not None else []))
    return next((folder for folder in there if _has(folder, "sweep.json")), path)


def _listed(folder: Path) -> SweepState | tuple[Path, StoreError]:
    from harness.runner.listing import list_sweep

    try:
        return list_sweep(folder)
    except StoreError as error:
        return folder, error


def command_collect(path: str, results: Path, base: str | None, mixed: bool) -> int:
    """Gather a sweep's records; print the table, and on stderr where the files are.

    ``base`` and ``mixed`` decide what is printed: the files have the records as they are.
    """
    folder = sweep_folder(path, results)
    from harness.analysis import collect, render_table

    written = collect(folder)
    print(render_table(folder, base=base, mixed=mixed))
    print(f"{written} and {written.with_suffix('.csv').name} written", file=sys.stderr)
    return 0


def command_plot(
    path: str, out: Path | None, formats: str, results: Path, base: str | None, mixed: bool
) -> int:
    """Draw the plots of a sweep, or of a result of ``hvdscale allreduce``; print their paths."""
    from harness.analysis.plots import FORMATS, plot_all

    wanted = tuple(dict.fromkeys(part.strip() for part in formats.split(",") if part.strip()))
    for name in wanted:
        if name not in FORMATS:
            near = did_you_mean(name, FORMATS)
            raise ConfigError(f"--format: '{name}' is not one of {', '.join(FORMATS)}{near}")
    if not wanted:
        raise ConfigError(f"--format: name at least one of {', '.join(FORMATS)}")
    collectives = _allreduce_folder(path, results)
    if collectives is not None:
        if base or mixed:
            raise ConfigError("--base and --mixed are of a sweep; this is a result of allreduce")
        found = _plot_collectives(collectives, out or collectives, wanted)
    else:
        folder = sweep_folder(path, results)
        found = plot_all(folder, out or folder / "plots", wanted, base=base, mixed=mixed)
    for written in found:
        print(written)
    return 0


def _plot_collectives(folder: Path, out: Path, formats: Sequence[str]) -> list[Path]:
    from harness.analysis.plots import require_matplotlib

    require_matplotlib()
    from harness.analysis.plots.collectives import plot_record

    return plot_record(folder, out, formats)


def _allreduce_folder(path: str, results: Path) -> Path | None:
    """Return the folder of a result of ``hvdscale allreduce``, from its path or name; or None."""
    given = Path(path)
    candidates = [given.parent] if given.name == _RECORD else [given]
    if "/" not in path:
        candidates += [results / path, results / "allreduce" / path]
    for folder in candidates:
        if _has(folder, "sweep.json"):
            return None
        if _has(folder, _RECORD):
            return folder
    return None


def sweep_folder(path: str, results: Path) -> Path:
    """Return a sweep's folder from its path, its name below ``results``, or its preset's name."""
    candidates = [Path(path)] if "/" in path or path in (".", "..") else []
    candidates += [results / path, Path(path)] if not candidates else []
    for folder in candidates:
        if _has(folder, "sweep.json"):
            return folder
    named = _preset_folder(path, results)
    if named is not None and _has(named, "sweep.json"):
        return named
    if _allreduce_folder(path, results) is not None:
        raise ConfigError(
            f"'{path}' is a result of hvdscale allreduce, not of a sweep: hvdscale plot draws it, "
            "and hvdscale predict SWEEP takes it as --allreduce"
        )
    there = [folder.name for folder in _folders(results)]
    several = "neither " if len(candidates) > 1 else ""
    lacks = "has a" if several else "has no"
    raise ConfigError(
        f"no results of '{path}': {several}{' nor '.join(map(str, candidates))} {lacks} sweep.json"
        f"{did_you_mean(path, there)}; run or submit it first, or give --results"
    )


def _has(folder: Path, name: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(folder / name).st_mode)  # is_file hides links in a circle
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # it may not be looked into, or no file can have such a name
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error


def _preset_folder(source: str, results: Path) -> Path | None:
    """A sweep's file or preset may be named otherwise than the sweep in it."""
    from harness.config import load_sweep

    try:
        return results / load_sweep(source).name
    except ConfigError:
        return None  # no sweep by that name: the caller says what it looked for


def sweep_folders(path: Path) -> list[Path]:
    """Return the sweeps' folders below a folder of results; ConfigError where that is none."""
    if not path.is_dir():
        _has(path, ".")  # it may be that it cannot be read
        raise ConfigError(f"{path}: no results folder; `hvdscale run demo` makes results/demo")
    return _folders(path)


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    # Not is_file, which hides a folder that may not be looked into.
    try:
        return sorted(entry for entry in path.iterdir() if os.path.lexists(entry / "sweep.json"))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
