"""From records to tables, curves and plots. Reads results folders; runs and imports no training."""

from __future__ import annotations

from harness.analysis.collecting import collect, load
from harness.analysis.plots import plot_all
from harness.analysis.scaling import Curve, Failure, Launch, Point, curves, failures
from harness.analysis.table import render_table

__all__ = [
    "Curve",
    "Failure",
    "Launch",
    "Point",
    "collect",
    "curves",
    "failures",
    "load",
    "plot_all",
    "render_table",
]
