"""Devices per node: reading, writing, and placing them on a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import Placement
from harness.errors import ValidationError


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("1x1", (1,)),
        ("2x4", (4, 4)),
        ("8+2", (8, 2)),
        ("2 x 4", (4, 4)),
        ("4+4", (4, 4)),
        ("1+2+3", (1, 2, 3)),
    ],
)
def test_explicit_placements(text: str, devices: tuple[int, ...]) -> None:
    placement = Placement.parse(text)
    assert placement.devices == devices
    assert placement.count == sum(devices)


def test_a_mere_count_leaves_the_nodes_open() -> None:
    assert Placement.parse(3) == Placement.parse("3") == Placement(3)
    assert Placement.parse("1x3") != Placement(3)


@pytest.mark.parametrize(
    "value",
    ["", "0", 0, -1, "x", "2x", "0x4", "2x0", "8+0", "8+", "2x4x2", "two", 1.5, True, None, [1], {},
     "9999999x9999999", "1" * 30, "-2x4", "١x٢"],
)  # fmt: skip
def test_what_is_no_placement(value: object) -> None:
    with pytest.raises(ValueError, match="placement"):
        Placement.parse(value)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=9))
def test_what_is_written_is_read_back(devices: list[int]) -> None:
    placement = Placement(sum(devices), tuple(devices))
    assert Placement.parse(str(placement)) == placement


@given(st.integers(1, 1_000_000))
def test_a_count_is_read_back(count: int) -> None:
    assert Placement.parse(str(Placement(count))) == Placement(count)


def test_pack_fills_a_node_before_the_next_and_spread_evens_out() -> None:
    assert Placement(10).resolve((8, 8, 8), "pack") == (8, 2)
    assert Placement(10).resolve((8, 8, 8), "spread") == (4, 3, 3)
    assert Placement(2).resolve((8, 8, 8), "pack") == (2,)
    assert Placement(2).resolve((8, 8, 8), "spread") == (1, 1)
    assert Placement(7).resolve((2, 8), "spread") == (2, 5)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=8), st.data())
def test_every_rank_has_a_slot_under_both_policies(slots: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, sum(slots)))
    for policy in ("pack", "spread"):
        taken = Placement(count).resolve(slots, policy)
        assert sum(taken) == count
        assert all(0 < n <= there for n, there in zip(taken, slots, strict=False))
    spread = Placement(count).resolve(slots, "spread")
    # Only a full node has fewer than the fullest less one.
    for n, there in zip(spread, slots, strict=False):
        assert n >= max(spread) - 1 or n == there


@pytest.mark.parametrize(
    ("text", "slots", "words"),
    [
        ("5", (2, 2), r"5 ranks, but the machine has 4 slots \(2\+2\).*--slots"),
        ("3x1", (4, 4), "needs 3 nodes, but there are 2"),
        ("1+3", (2, 2), "3 ranks on node 1, which has 2 slots.*--slots"),
    ],
)
def test_a_machine_that_is_too_small(text: str, slots: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Placement.parse(text).resolve(slots, "pack")
