"""Every engine keeps the contract of ``harness/engines/api.py`` on two real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.ranks import point, run_program

GRADIENT_BYTES = 613_764
ENGINES = [("horovod", "gloo"), ("horovod", "mpi"), ("ddp", "gloo")]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda e: "-".join(e))
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data_dir: Path
) -> list[dict[str, Any]]:
    engine, backend = request.param
    folder = tmp_path_factory.mktemp("contract")
    found = run_program("contract", point(engine, backend, 2), folder, data_dir)
    return [answer | {"engine": engine, "backend": backend} for answer in found]


def test_world_and_gather(answers: list[dict[str, Any]]) -> None:
    assert [answer["world"] for answer in answers] == [[0, 2], [1, 2]]
    assert all(answer["gathered"] == [{"rank": 0}, {"rank": 1}] for answer in answers)


def test_the_backend_is_proven(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["proof"]["proven"] == answer["backend"]
        controller = answer["backend"] if answer["engine"] == "horovod" else None
        assert answer["proof"]["controller"] == controller


def test_ranks_start_alike_and_stay_alike(answers: list[dict[str, Any]]) -> None:
    for name in ("checksum_start", "checksum_synchronised", "checksum_marked"):
        assert answers[0][name] == answers[1][name], name
    assert answers[0]["checksum_start"] != answers[0]["checksum_synchronised"]


def test_bytes_reduced_are_gradient_bytes_times_steps(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["gradient_bytes"] == GRADIENT_BYTES
        assert answer["gradient_allreduce"]
        assert answer["reduced"] == [3, 3 * GRADIENT_BYTES]
        # 3 plain, 6 marked and 1 at the end; the 2 unsynchronised ones do not count.
        assert answer["reduced_end"] == [10, 10 * GRADIENT_BYTES]


def test_steps_without_all_reduce_part_the_ranks(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["checksum_alone"] != answers[1]["checksum_alone"]


def test_sums_are_right(answers: list[dict[str, Any]]) -> None:
    assert all(answer["sum"] == [5.0] for answer in answers)
    assert all(len(answer["isolated"]) >= 5 for answer in answers)


def test_phases_fill_the_step(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        marked = np.array(answer["phases"])
        assert (marked >= 0).all()
        whole, parts = marked[:, 0], marked[:, 1:].sum(axis=1)
        # What is not in a phase is the way from one step to the next: a few Python calls.
        assert (parts <= whole + 1e-9).all()
        np.testing.assert_allclose(parts.sum(), whole.sum(), rtol=0.05)


def test_after_an_ablation_training_goes_on_as_if_nothing_had_been(
    answers: list[dict[str, Any]],
) -> None:
    for answer in answers:
        assert answer["ablated"]["same"]
        assert answer["ablated"]["blocks"] == [4, 4, 5]
        assert min(answer["ablated"]["seconds"]) > 0
