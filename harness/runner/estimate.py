"""How long launches take, before any has run: what ``validate`` tells, and presets are made for."""

from __future__ import annotations

from harness.config import Measure
from harness.measure import ablation, overhead
from harness.measure.blocks import SHARE
from harness.measure.phases import marked_steps

#: Of a launch: start of the ranks, imports, proof of the backend, warm-up, isolated all-reduce and
#: end, without window and phases. A guess: on two idle cores launches of the demo took 4.5 s (one
#: process) to 13 s (two ranks under horovodrun), 9 s in the mean.
START_S = 9.0

_LONG = 1000  # steps of a window in which the least number of marked steps plays no part


def launch_s(measure: Measure) -> float:
    """Return about how many seconds a launch takes whose window is not held up by ``min_steps``."""
    if "timeline" in measure.instruments:
        return START_S  # a few steps, and no window
    phases = marked_steps(_LONG) / _LONG if "phases" in measure.instruments else 0.0
    blocks = sum(
        4 * quads * SHARE
        for name, quads in (("ablation", ablation.QUADS), ("telemetry", overhead.QUADS))
        if name in measure.instruments
    )
    return START_S + measure.window_s * (1 + phases + blocks)
