"""The adjustments that let Horovod 0.28.1 (2023) build on today's compilers and frameworks.

Each one knows when it is needed, changes the unpacked sdist or the environment, and verifies what
it did. A target that is not there as expected is a named ``BuildError``: a build that silently
skips one would fail a thousand lines later, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.errors import BuildError
from harness.horovod_build.adjustment import Adjustment, Source
from harness.horovod_build.adjustments import ADJUSTMENTS


def needed_names(source: Source, all_of: Iterable[Adjustment] = ADJUSTMENTS) -> list[str]:
    """Return the names of the adjustments that a build needs."""
    return [adjustment.name for adjustment in all_of if adjustment.needed(source)]


def apply_adjustments(source: Source, all_of: Iterable[Adjustment] = ADJUSTMENTS) -> list[str]:
    """Apply and verify each adjustment that is needed; return their names."""
    if not (source.folder / "CMakeLists.txt").is_file():
        raise BuildError(f"{source.folder.name} is no Horovod sdist: it has no CMakeLists.txt")
    applied = []
    for adjustment in all_of:
        if adjustment.needed(source):
            adjustment.apply(source)
            applied.append(adjustment)
    for adjustment in applied:
        adjustment.verify(source)
    return [adjustment.name for adjustment in applied]
