"""Samples on real ranks: every one once an epoch, and a file cache that is really cold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.feed import cache
from tests.integration.ranks import point, run_program
from tests.requirements import require_modules

COUNT, BATCH, STEPS = 1003, 50, 10  # as programs/feeds.py has it; 3 samples are left over


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("feeds")


@pytest.fixture(scope="module")
def answers(folder: Path, data_dir: Path) -> list[dict[str, Any]]:
    require_modules("torch", "horovod")
    config = point("horovod", "gloo", 2, data="disk")
    return run_program("feeds", config, folder, data_dir)


@pytest.mark.parametrize("order", ["shuffled", "streams"])
def test_every_sample_comes_once_an_epoch_but_for_the_remainder(
    order: str, answers: list[dict[str, Any]]
) -> None:
    epochs = list(zip(*(answer["seen"][f"{order} disk"] for answer in answers), strict=True))
    assert len(epochs) == 2
    for of_ranks in epochs:
        assert [len(one) for one in of_ranks] == [STEPS * BATCH] * 2
        together = [sample for one in of_ranks for sample in one]
        assert len(set(together)) == len(together) == COUNT - 3
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("order", ["shuffled", "streams"])
def test_all_ways_to_the_device_bring_the_same(order: str, answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        disk = answer["seen"][f"{order} disk"]
        assert answer["seen"][f"{order} device"] == answer["seen"][f"{order} host"] == disk


def test_files_that_both_ranks_have_mapped_are_dropped(
    folder: Path, answers: list[dict[str, Any]]
) -> None:
    file = folder / "samples.npy"
    cache.drop([file], 10)
    if cache.cached_share([file]):
        pytest.skip(f"{folder} is on a file system that keeps its files in memory")
    times = answers[0]["times"]
    assert times == answers[1]["times"]
    assert (times["files"], times["file_bytes"]) == (1, file.stat().st_size)
    assert times["batch_bytes"] == BATCH * (1000 * 4 + 8)
    assert times["cached_warm"] > 0.9  # it was just read
    assert times["cached_cold"] < 0.1
    assert times["batches"] >= times["cold_batches"] >= 5
    assert times["warm_s"] > 0
    assert times["cold_s"] > 0
