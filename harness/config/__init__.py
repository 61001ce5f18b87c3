"""What to measure: a ``Sweep`` as a user writes it, and the ``RunConfig`` points it stands for."""

from __future__ import annotations

from harness.config.expand import Expansion, expand
from harness.config.faults import validated
from harness.config.identity import run_id
from harness.config.load import (
    apply_overrides,
    load_sweep,
    parse_sweep,
    preset_names,
    sweep_to_yaml,
)
from harness.config.models import (
    Base,
    DdpTuning,
    Execution,
    HorovodTuning,
    LearningRate,
    Measure,
    RunConfig,
    Sweep,
    SweepMeasure,
    WorkloadConfig,
)
from harness.config.placement import Placement

__all__ = [
    "Base",
    "DdpTuning",
    "Execution",
    "Expansion",
    "HorovodTuning",
    "LearningRate",
    "Measure",
    "Placement",
    "RunConfig",
    "Sweep",
    "SweepMeasure",
    "WorkloadConfig",
    "apply_overrides",
    "expand",
    "load_sweep",
    "parse_sweep",
    "preset_names",
    "run_id",
    "sweep_to_yaml",
    "validated",
]
