"""Is B faster than A, by how much, and is that real? Of two sweeps, or two values of an axis."""

from __future__ import annotations

from harness.analysis.compare.comparison import compare, compare_values
from harness.analysis.compare.contrast import Contrast
from harness.analysis.compare.text import render_comparison
from harness.analysis.compare.types import Comparison, Pair, Side, Unlike

__all__ = [
    "Comparison",
    "Contrast",
    "Pair",
    "Side",
    "Unlike",
    "compare",
    "compare_values",
    "render_comparison",
]
