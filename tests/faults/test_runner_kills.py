"""Runners that are killed, share a folder, or find another clock or host: nothing is lost.

What is asserted is in ``kills``, ``real_kills``, ``sharing`` and ``disturbed``: a failure tells the
seed and the moment that were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.forks import FACTOR, SEED, Server, served


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as process:
        yield process


def test_killed_at_any_file_operation_a_sweep_ends_as_if_undisturbed(
    server: Server, tmp_path: Path
) -> None:
    found = server.call(
        "tests.faults.kills:killed_at_checkpoints", folder=tmp_path, seed=SEED, kills=200 * FACTOR
    )
    assert found["kills"] >= 200 * FACTOR
    assert found["sweeps"] >= 5 * FACTOR


def test_killed_at_any_time_no_process_is_left_and_a_sweep_ends_as_if_undisturbed(
    server: Server, tmp_path: Path
) -> None:
    found = server.call(
        "tests.faults.real_kills:killed_by_the_clock", folder=tmp_path, seed=SEED, count=24 * FACTOR
    )
    assert found["kills"] >= 24 * FACTOR


def test_two_hosts_share_a_sweep_and_are_killed(server: Server, tmp_path: Path) -> None:
    found = server.call(
        "tests.faults.sharing:two_hosts", folder=tmp_path, seed=SEED, sweeps=6 * FACTOR
    )
    assert found["rounds"] == 4 * 6 * FACTOR


def test_64_writers_at_once(server: Server, tmp_path: Path) -> None:
    found = server.call("tests.faults.sharing:many_writers", folder=tmp_path)
    assert found["written"] == 64 * 2 + 4
    assert found["refused"] == 63 * 4
    assert found["attempts"] == list(range(1, 65))


def test_a_clock_that_is_set_back(server: Server, tmp_path: Path) -> None:
    found = server.call("tests.faults.sharing:clock_set_back", folder=tmp_path, seed=SEED)
    assert found["spread_days"] > 1000  # the clock was set back indeed
    assert found["backwards"] == found["rows"][-1]
    first, second, third = found["rows"]  # of the table, which is told by times what is new
    assert 0 < first < second < third
    assert found["attempts"][-1] > 1


def test_a_host_that_is_renamed_between_runs(server: Server, tmp_path: Path) -> None:
    found = server.call("tests.faults.sharing:host_renamed", folder=tmp_path, seed=SEED)
    assert found["kills"] == 6
    assert found["bases"] > 0
