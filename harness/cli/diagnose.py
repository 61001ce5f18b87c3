"""The subcommand that says what limits the worst points."""

from __future__ import annotations

from pathlib import Path


def command_diagnose(
    path: str, worst: int, results: Path, *, base: str | None, mixed: bool, as_json: bool
) -> int:
    """Print what limits the ``worst`` points of a sweep, as text or JSON."""
    from harness.analysis.diagnose import diagnose, render_diagnosis
    from harness.analysis.plain import json_text
    from harness.analysis.results import load_results
    from harness.cli.listing import sweep_folder

    found = load_results(sweep_folder(path, results), base=base, mixed=mixed)
    diagnoses = diagnose(found, worst)
    print(json_text(diagnoses) if as_json else render_diagnosis(diagnoses))
    return 0
