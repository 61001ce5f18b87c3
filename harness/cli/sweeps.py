"""Subcommands that start, or check, a sweep."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.runner.share import Share


def command_run(
    source: str,
    overrides: Sequence[str],
    results: Path,
    dry_run: bool,
    slots: int | None,
    *,
    share: str | None = None,
    training: bool = False,
) -> int:
    """Run what is missing of a sweep; return 0, 1 where a launch failed, 130 where interrupted.

    With ``training`` its points are trained, instead of measured in windows. ``share`` is the part
    of the sweep that is this job's, "3/24".
    """
    from harness.config import load_sweep
    from harness.detect import detect_machine
    from harness.runner import commands, run_sweep
    from harness.runner.cleaning import cleaned
    from harness.runner.progress import reporter
    from harness.runner.share import run_share

    part = _share(share, dry_run)
    sweep = load_sweep(source, overrides)
    machine = detect_machine(slots)
    if part is not None:
        with reporter() as report, cleaned(machine, report):
            summary = run_share(sweep, machine, results, part, report=report, training=training)
        print(summary.text())
        return summary.exit_code
    if dry_run:
        lines = list(commands(sweep, machine, results, training=training))
        for line in lines:
            print(line)
        if not lines:  # not among the lines that a shell may be given
            print(f"{sweep.name}: nothing is missing, nothing to start", file=sys.stderr)
        return 0
    with reporter() as report, cleaned(machine, report):
        summary = run_sweep(sweep, machine, results, report=report, training=training)
    print(summary.text())
    return summary.exit_code


def _share(text: str | None, dry_run: bool) -> Share | None:
    from harness.errors import ConfigError
    from harness.runner.share import Share

    if text is not None and dry_run:
        raise ConfigError("--share: goes with no --dry-run; the dry run shows the whole sweep")
    return Share.parse(text) if text is not None else None


def command_run_point(manifest: Path, index: int | None) -> int:
    """Run one element of a submitted job array; return as ``command_run``."""
    from harness.runner.progress import reporter
    from harness.submit.element import element_index, run_element

    with reporter() as report:
        place = index if index is not None else element_index(os.environ)
        summary = run_element(manifest, place, report)
    print(summary.text())
    return summary.exit_code


def command_validate(
    source: str, overrides: Sequence[str], results: Path, slots: int | None
) -> int:
    """Check a sweep as ``run`` would, and print what it would do."""
    from harness.config import load_sweep
    from harness.config.identity import point_id
    from harness.detect import detect_machine
    from harness.runner.estimate import START_S, launch_s
    from harness.runner.labels import labels
    from harness.runner.progress import duration
    from harness.runner.schedule import missing, planned

    sweep = load_sweep(source, overrides)
    work = planned(sweep, detect_machine(slots), results)
    names = labels(work.plan.launches)
    bases = {point_id(base) for base in work.plan.bases if base is not None}
    todo = [launch.config.measure for launch in missing(work)]  # an error comes before any output
    for config in work.plan.launches:
        key = point_id(config)
        print(f"{names[key]}{'  (base)' if key in bases else ''}")
    for _, reason in work.plan.left_out:
        print(f"left out: {reason}")
    time_s = sum(map(launch_s, todo))
    print(
        f"{sweep.name}: {_launches(len(work.plan.launches))} a block, blocks: {work.blocks}; "
        f"{_launches(len(todo))} missing, about {duration(time_s)} "
        f"(windows, phases, and about {START_S:g} s to start each)"
    )
    return 0


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"
