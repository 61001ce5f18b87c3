"""``hvdscale export``: a sweep's measurements for another program."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.cli.listing import sweep_folder
from harness.errors import AnalysisError, ConfigError


def command_export(
    path: str, extrap: bool, out: Path | None, results: Path, *, base: str | None, mixed: bool
) -> int:
    """Write the file, to standard output without ``out``; what it leaves out goes to stderr."""
    if not extrap:
        raise ConfigError("export: say for which program: --extrap (Extra-P's JSON Lines)")
    folder = sweep_folder(path, results)
    from harness.analysis.extrap import export
    from harness.analysis.results import load_results
    from harness.store import write_atomic

    found = export(load_results(folder, base=base, mixed=mixed))
    if out is None:
        sys.stdout.write(found.text())
    else:
        try:
            write_atomic(out, found.text().encode())
        except OSError as error:
            raise AnalysisError(f"{out}: cannot be written: {error.strerror}") from error
        print(out)
    for sentence in (*(f"left out: {what}" for what in found.left_out), *found.advice):
        print(sentence, file=sys.stderr)
    return 0
