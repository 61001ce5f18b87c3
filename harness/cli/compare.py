"""``hvdscale compare``: two sweeps, or two values of one axis of one sweep."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from harness.cli.listing import sweep_folder
from harness.errors import ConfigError

_USAGE = (
    "compare takes two sweeps (compare A B), or a sweep and two values of one key "
    "(compare demo backend=mpi backend=gloo)"
)


def command_compare(
    what: Sequence[str], results: Path, mixed: bool, as_json: bool, *, base: str | None = None
) -> int:
    """Print how B differs from A; ``base`` only where the records were measured with several."""
    folders, values = _parted(what, results)
    from harness.analysis.compare import compare, compare_values, render_comparison
    from harness.analysis.plain import json_text
    from harness.analysis.results import load_results

    loaded = [load_results(folder, base=base, mixed=mixed) for folder in folders]
    if values:
        found = compare_values(loaded[0], *values, mixed=mixed)
    else:
        found = compare(loaded[0], loaded[1])
    print(json_text(found) if as_json else render_comparison(found))
    return 0


def _parted(what: Sequence[str], results: Path) -> tuple[list[Path], list[str]]:
    """Sort the arguments into sweeps' folders and ``key=value``, one sweep or two of each."""
    values = [word for word in what if "=" in word and not os.path.isdir(word)]
    sweeps = [word for word in what if word not in values]
    if (len(sweeps), len(values)) not in ((2, 0), (1, 2)):
        raise ConfigError(f"{_USAGE}; got: {' '.join(what)}")
    return [sweep_folder(word, results) for word in sweeps], values
