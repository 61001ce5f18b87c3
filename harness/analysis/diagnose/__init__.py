"""What limits the worst points of a sweep: ``limiters`` defines how limiters are told apart."""

from __future__ import annotations

from harness.analysis.diagnose.answer import diagnose
from harness.analysis.diagnose.limiters import LIMITERS, Limiter
from harness.analysis.diagnose.text import render_diagnosis
from harness.analysis.diagnose.types import Diagnosis, Finding, Knob, Missing, Ranking

__all__ = [
    "LIMITERS",
    "Diagnosis",
    "Finding",
    "Knob",
    "Limiter",
    "Missing",
    "Ranking",
    "diagnose",
    "render_diagnosis",
]
