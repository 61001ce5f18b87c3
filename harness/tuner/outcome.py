"""What a tuning came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config.models import HorovodTuning
from harness.stats import Interval
from harness.tuner.autotune_log import Chosen
from harness.tuner.searching import Trial
from harness.tuner.verdict import Gain

INTERRUPTED = 130


@dataclass(frozen=True)
class Arm:
    """One of what the validation compares."""

    name: str  # "default", "winner", "autotune"
    rate: Interval | None  # samples a second; None where no launch was measured
    blocks: int


@dataclass(frozen=True)
class Outcome:
    """All that ``hvdscale tune`` says."""

    name: str
    workload: str
    placement: str
    world_size: int
    backend: str | None
    batch_size: int  # of one rank
    device: str  # the model of GPU or CPU, "" where no record tells
    date: str  # of the last launch of the validation, "" without one
    trials: tuple[Trial, ...]
    ended_by: str  # what ended the search, "" where that was a signal
    default: HorovodTuning
    winner: HorovodTuning | None
    knobs: Mapping[str, Any]  # of the winner, where it is not like the default
    arms: tuple[Arm, ...]
    over_default: Gain | None
    over_autotune: Gain | None
    chosen: Chosen | None  # by Horovod's autotuner, in the first block
    searching_still: int  # launches whose window began before the autotuner was done
    no_autotune: str  # why it is not compared with, "" where it is
    notes: tuple[str, ...]
    launches_failed: int
    spent_s: float
    budget_s: float
    validation: Path | None
    preset: Path | None
    interrupted: bool = False
    starts_again: bool = False
    time_was_near: bool = False

    @property
    def exit_code(self) -> int:
        """Return 130 where the user interrupted, 1 where a launch failed, else 0."""
        if self.interrupted:
            return INTERRUPTED
        return int(self.launches_failed > 0 or self.time_was_near)
