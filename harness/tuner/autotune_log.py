"""What Horovod's autotuner tried and chose, as its log says (0.28.1, ``parameter_manager.cc``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.tuning import AUTOTUNE_JUDGEMENTS

_CACHE, _CYCLE, _FUSION = 3, 4, 5  # columns, of 7
_COLUMNS = 7


@dataclass(frozen=True)
class Chosen:
    """What the autotuner ended with."""

    cycle_time_ms: float
    fusion_threshold_mb: float
    cache: bool


def read_log(path: Path) -> Chosen | None:
    """Return what was chosen; None where the log is not there, or the search not at its end."""
    try:
        return parse_log(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def parse_log(text: str) -> Chosen | None:
    """As ``read_log``: a row of names, one of each judgement, and the best one once more."""
    rows = [line.split(",") for line in text.splitlines()[1:] if line.strip()]
    if len(rows) <= AUTOTUNE_JUDGEMENTS or len(rows[-1]) != _COLUMNS:
        return None
    try:
        last = [float(cell) for cell in rows[-1]]
    except ValueError:
        return None
    return Chosen(last[_CYCLE], last[_FUSION], last[_CACHE] > 0)
