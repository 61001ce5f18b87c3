"""Every engine keeps the contract of ``harness/engines/api.py`` on two real ranks.

And N ranks train as one would: the same global batches give the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.ranks import point, run_program
from tests.requirements import require_modules

GRADIENT_BYTES = 613_764
STEPS = 50
#: Sums of 40 float32 gradients in another order differ in the last bits, and Adam divides small
#: numbers by small ones; steps let that grow (after 100 it may be 8e-4).
TOLERANCE = 1e-4
ENGINES = [
    ("horovod", "torch", "gloo"),
    ("horovod", "torch", "mpi"),
    ("ddp", "torch", "gloo"),
    ("horovod", "tensorflow", "gloo"),
    ("horovod", "tensorflow", "mpi"),
]


@pytest.fixture(scope="module", params=ENGINES, ids=lambda e: "-".join(e))
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data_dir: Path
) -> list[dict[str, Any]]:
    engine, framework, backend = request.param
    require_modules(framework)
    folder = tmp_path_factory.mktemp("contract")
    config = point(engine, backend, 2, framework)
    found = run_program("contract", config, folder, data_dir, str(STEPS))
    asked = {"engine": engine, "framework": framework, "backend": backend}
    return [answer | asked for answer in found]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Callable[[str], np.ndarray]:
    """Give the losses of one rank with the global batch, in a framework; each is run once."""

    @lru_cache
    def losses(framework: str) -> np.ndarray:
        require_modules(framework)
        config = point("none", None, 1, framework, batch_size=40)
        folder = tmp_path_factory.mktemp("alone")
        return np.array(run_program("losses", config, folder, data_dir, str(STEPS))[0]["losses"])

    return losses


def test_two_ranks_give_the_losses_of_one(
    answers: list[dict[str, Any]], alone: Callable[[str], np.ndarray]
) -> None:
    assert answers[0]["losses"] != answers[1]["losses"]
    together = np.mean([answer["losses"] for answer in answers], axis=0)
    np.testing.assert_allclose(together, alone(answers[0]["framework"]), rtol=TOLERANCE)
    assert together[-10:].mean() < together[:10].mean()


def test_broken_sharding_is_seen(
    alone: Callable[[str], np.ndarray], tmp_path: Path, data_dir: Path
) -> None:
    config = point("horovod", "gloo", 2)
    answers = run_program("losses", config, tmp_path, data_dir, str(STEPS), "broken")
    together = np.mean([answer["losses"] for answer in answers], axis=0)
    assert np.abs(together / alone("torch") - 1).max() > 20 * TOLERANCE


def test_both_frameworks_train_alike(alone: Callable[[str], np.ndarray]) -> None:
    """From equal weights with equal batches.

    Not bit by bit: Keras's Adam has its epsilon in another place than torch's, which counts as
    long as the second moments are young. Measured: 0.5 %.
    """
    one, other = alone("torch"), alone("tensorflow")
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    np.testing.assert_allclose(one, other, rtol=0.02)


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
        assert answer["reduced_end"] == [44, 44 * GRADIENT_BYTES]


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
        # What is not in a phase is the way from one step to the next: a few Python calls, and in
        # TensorFlow the end of its function, 0.3 ms. A rank may lose its core there, in most of
        # these steps where other programs run; a phase left out is missing in all. So the step
        # with the least time lost; the last one has no next.
        assert (parts <= whole + 1e-9).all()
        assert np.max(parts[:-1] / whole[:-1]) > 0.9


def test_after_an_ablation_training_goes_on_as_if_nothing_had_been(
    answers: list[dict[str, Any]],
) -> None:
    for answer in answers:
        assert answer["ablated"]["same"]
        assert answer["ablated"]["blocks"] == [4, 4, 5]
        assert min(answer["ablated"]["seconds"]) > 0


def test_asking_between_steps_changes_nothing(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        asked = answer["asked_between"]
        assert asked["unchanged"]
        assert asked["same"]
        assert 0 < asked["metrics"]["mse"] < 1
        assert asked["weights"] == asked["size"] == GRADIENT_BYTES // 4


def test_gradients_are_each_ranks_own_until_they_are_summed(answers: list[dict[str, Any]]) -> None:
    one, other = (answer["asked_between"] for answer in answers)
    assert one["local"] != other["local"]
    assert one["sum"] == other["sum"]
    wanted = np.add(one["local"], other["local"])
    np.testing.assert_allclose(one["sum"], wanted, rtol=1e-6, atol=1e-12)


def test_the_learning_rate_of_a_step_that_is_made_can_be_set(answers: list[dict[str, Any]]) -> None:
    assert all(answer["slowed"] == [True, False] for answer in answers)


def test_threads_are_those_of_the_config(answers: list[dict[str, Any]]) -> None:
    assert all(answer["threads"] == 1 for answer in answers)
