"""The subcommand that hands a sweep to Slurm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


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
    from harness.submit.site_files import find_site, override_site
    from harness.submit.submit import Wishes, submit

    submission = submit(
        load_sweep(source, overrides),
        override_site(find_site(site), site_overrides),
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
