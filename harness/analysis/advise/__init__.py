"""What to ask for: placement, backend, batch size and tuning, with what they cost and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.analysis.advise.advising import advise
from harness.analysis.advise.parsing import parse_goal
from harness.analysis.advise.text import render_advice
from harness.analysis.advise.types import Advice, Answer, Candidate, Goal, Target

if TYPE_CHECKING:
    from harness.analysis.plots.series import Plot

__all__ = [
    "Advice",
    "Answer",
    "Candidate",
    "Goal",
    "Target",
    "advise",
    "parse_goal",
    "pareto",
    "render_advice",
]


def pareto(advice: Advice) -> Plot:
    """Draw time against device-hours, a panel an answer; call it inside ``style()``."""
    from harness.analysis.plots.pareto import pareto as draw  # matplotlib is heavy

    return draw(advice)
