"""The subcommand that hands a sweep to Slurm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.submit.site import Site


def command_submit(
    source: str,
    site: str,
    *,
    site_overrides: Sequence[str],
    overrides: Sequence[str],
    results: Path,
    dry_run: bool,
    parsable: bool,
    throttle: int | None,
    shared_base: bool,
    points_per_job: int | None,
    training: bool,
    after: str | None,
    collect: bool,
) -> int:
    """Submit what is missing of a sweep; print what was submitted, or would be."""
    from harness.config import load_sweep
    from harness.submit.site_files import find_site
    from harness.submit.submit import Wishes, submit

    sweep, place = load_sweep(source, overrides), find_site(site, site_overrides)
    if not dry_run:
        _compare_with_slurm(place)
    submission = submit(
        sweep,
        place,
        results,
        wishes=Wishes(throttle, shared_base, points_per_job, after, collect),
        training=training,
        dry_run=dry_run,
    )
    # With nothing to submit, or ids alone wanted, the words are not among what a shell is given.
    words = sys.stderr if dry_run or (parsable and not submission.arrays) else sys.stdout
    if dry_run:
        print(submission.shell(), end="")
    elif parsable:
        print(submission.parsable(), end="")
    if not parsable or words is sys.stderr:
        print(submission.text(), file=words)
    return 0


def _compare_with_slurm(site: Site) -> None:
    """Say where Slurm knows otherwise than the site; jobs may go wrong for that, or be refused."""
    from harness.submit.site_facts import ask_slurm, differences

    for difference in differences(site, ask_slurm()):
        print(f"hvdscale: site {site.name}: {difference}", file=sys.stderr)
