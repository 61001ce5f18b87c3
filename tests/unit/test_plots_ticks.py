"""Labels of a logarithmic axis: the first and the last are there, and none touches another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from harness.analysis.plots.style import log2_axis, new_figure, style
from harness.collectives.sizes import size_text

SIZES = [4096, 613_764, 2**20, 25 * 2**20, 100 * 2**20, 2**30]
COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48, 56, 64]


def labels(values: list[int], text: Callable[[int], str]) -> list[str]:
    """Draw an axis; return its labels, once none of them touches the one before."""
    with style():
        figure, (ax,) = new_figure(1, "title", (), ())
        ax.set_ylabel("throughput")
        ax.plot(values, [1e9] * len(values))
        log2_axis(ax, values, text)
        figure.draw_without_rendering()
        ticks = ax.xaxis.get_ticklabels()
        boxes = [tick.get_window_extent() for tick in ticks]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    return [tick.get_text() for tick in ticks]


def test_a_size_beside_a_round_one_gives_way() -> None:
    assert labels(SIZES, size_text) == ["4K", "1M", "25M", "100M", "1G"]


def test_counts_and_batch_sizes_as_far_as_they_fit() -> None:
    assert labels([1, 2, 3, 4], str) == ["1", "2", "3", "4"]
    found = labels(COUNTS, str)
    assert found == ["1", "2", "3", "4", "5", "6", "8", "16", "24", "32", "48", "64"]
    assert labels([5000, 75, 700, 1500, 300, 150, 3000], "{:,}".format) == [
        *("75", "150", "300", "700", "1,500", "5,000")
    ]
    assert labels([8], str) == ["8"]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 2**40), min_size=3, max_size=25, unique=True))
def test_no_label_touches_another(values: list[int]) -> None:
    ends = min(values), max(values)
    assume(ends[1] >= 2 * ends[0])  # the first and the last stay, however near they are
    found = labels(values, size_text)
    assert (found[0], found[-1]) == tuple(map(size_text, ends))
