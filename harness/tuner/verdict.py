"""Whether the winner is a gain: from the validation's launches alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.stats import BlockKey, Interval, log_mean_interval, paired_log_ratios

Rates = Mapping[BlockKey, float]  # samples a second by block
Says = Literal["gain", "loss", "not shown", "cannot tell"]


@dataclass(frozen=True)
class Gain:
    """Throughput of the winner / that of ``over``, paired inside blocks."""

    over: str
    ratio: Interval
    blocks: int
    says: Says


def judge(winner: Rates, other: Rates, over: str) -> Gain | None:
    """Return the gain with its interval; None where no block has both."""
    logs = paired_log_ratios(winner, other)
    if not logs:
        return None
    ratio = log_mean_interval(logs)
    return Gain(over, ratio, len(logs), _says(ratio))


def _says(ratio: Interval) -> Says:
    if ratio.low is None or ratio.high is None:
        return "cannot tell"
    if ratio.low > 1:
        return "gain"
    return "loss" if ratio.high < 1 else "not shown"
