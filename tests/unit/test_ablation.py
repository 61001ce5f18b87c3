"""Steps with and without the all-reduce: order, what is put back, and the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.errors import LaunchError
from harness.measure import ablation, overhead
from harness.measure.blocks import MIN_STEPS, SETTLE_STEPS, block_steps
from tests.unit.fake_engine import FakeEngine, FakeStep


class FakeFeed:
    position = 7

    def next(self) -> Any:
        self.position += 1
        return (0,)

    def seek(self, position: int) -> None:
        self.position = position


class Told(FakeStep):
    """Writes down whether each step was synchronised."""

    def run(self, batch: Any, *, sync: bool = True) -> Any:
        loss = super().run(batch, sync=sync)
        self.calls[-1] = "sync" if sync else "alone"
        return loss


@pytest.mark.parametrize(("window", "steps"), [(1, 5), (50, 5), (51, 6), (1000, 100)])
def test_a_block_is_a_share_of_the_window(window: int, steps: int) -> None:
    assert block_steps(window) == steps


def test_blocks_are_abba_and_training_is_put_back() -> None:
    step, feed = Told(), FakeFeed()
    found = ablation.run_ablation(step, feed, FakeEngine(), 50)
    a_block = SETTLE_STEPS + MIN_STEPS
    ran = [call for call in step.calls if call in ("sync", "alone")]
    order = [set(ran[k : k + a_block]) for k in range(0, len(ran), a_block)]
    assert order == [{"sync"}, {"alone"}, {"alone"}, {"sync"}] * ablation.QUADS
    assert step.calls[0] == "snapshot"
    assert step.calls[-1] == "restore"
    assert feed.position == 7
    assert len(found.with_s) == len(found.without_s) == 2 * ablation.QUADS
    assert found.steps == MIN_STEPS


def test_weights_that_are_not_put_back_are_a_failed_run() -> None:
    class Forgetful(FakeStep):
        def checksum(self) -> str:
            return str(self.reduced().steps)

    with pytest.raises(LaunchError, match="not what they were"):
        ablation.run_ablation(Forgetful(), FakeFeed(), FakeEngine(), 50)


def test_it_is_put_back_after_a_failure_too() -> None:
    class Failing(FakeStep):
        def run(self, batch: Any, *, sync: bool = True) -> Any:
            if not sync:
                raise RuntimeError("no such step")
            return super().run(batch, sync=sync)

    step, feed = Failing(), FakeFeed()
    with pytest.raises(RuntimeError, match="no such step"):
        ablation.run_ablation(step, feed, FakeEngine(), 50)
    assert step.calls[-1] == "restore"
    assert feed.position == 7


def test_interference_is_the_difference_without_the_wait() -> None:
    """Rank 1 is slow: rank 0 waits 3 ms for it, and gains them where nothing is reduced."""
    ranks = [
        ablation.RankAblation(np.array([0.010, 0.012]), np.array([0.006, 0.008]), 5),
        ablation.RankAblation(np.array([0.010, 0.012]), np.array([0.009, 0.011]), 5),
    ]
    found = ablation.summarise(ranks, exposed_sync_s=0.0020)  # 3.5 and 0.5 ms
    assert found.with_s == pytest.approx((0.010, 0.012))
    assert found.without_s == pytest.approx((0.0075, 0.0095))
    assert found.difference_s == pytest.approx(0.0025)
    assert found.interference_s == pytest.approx(0.0005)
    assert found.error_s == pytest.approx(0.0, abs=1e-12)  # both pairs say the same
    ranks = [ablation.RankAblation(np.array([0.010, 0.012]), np.array([0.006, 0.006]), 5)]
    assert ablation.summarise(ranks, None).error_s == pytest.approx(0.001)  # 4 and 6 ms
    assert ablation.summarise(ranks, None).interference_s is None


def test_what_runs_beside_is_paused_and_goes_on() -> None:
    class Beside:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def pause(self) -> None:
            self.calls.append("pause")

        def resume(self) -> None:
            self.calls.append("resume")

    beside = Beside()
    found = overhead.run_toggled(FakeStep(), FakeFeed(), FakeEngine(), 50, beside)
    quad = ["resume", "pause", "pause", "resume"]
    assert beside.calls == quad * overhead.QUADS
    assert len(found.on_s) == len(found.off_s) == 2 * overhead.QUADS
    overhead.run_toggled(FakeStep(), FakeFeed(), FakeEngine(), 50, None)  # another rank's


def test_the_cost_is_of_the_longest_rank() -> None:
    ranks = [
        overhead.RankToggled(np.array([1.0, 2.2]), np.array([2.0, 1.0])),
        overhead.RankToggled(np.array([2.2, 1.0]), np.array([1.0, 2.0])),
    ]
    cost, error = overhead.cost(ranks)  # 2.2 and 2.2 s, 2 and 2 s
    assert (cost, error) == (pytest.approx(0.1), pytest.approx(0.0))


def test_the_error_of_a_cost_is_that_of_a_ratio_of_means() -> None:
    """On 1.1 ± 0.1 (4 blocks), off 1.0 ± 0: relative errors add in squares."""
    on_s = np.array([0.9, 1.1, 1.1, 1.3])
    cost, error = overhead.cost([overhead.RankToggled(on_s, np.ones(4))])
    assert cost == pytest.approx(0.1)
    assert error == pytest.approx(on_s.std(ddof=1) / 2)
