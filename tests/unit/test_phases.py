"""Where a step's time goes: transfer, wait and means, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness.engines.api import PHASES
from harness.measure.phases import marked_steps, run_marked, split_sync, summarise
from tests.unit.fake_engine import FakeEngine, FakeStep


@pytest.mark.parametrize(("window", "marked"), [(1, 5), (10, 5), (11, 5), (12, 6), (1000, 500)])
def test_how_many_steps_are_marked(window: int, marked: int) -> None:
    assert marked_steps(window) == marked


def test_marked_steps_become_phases() -> None:
    """Step k starts at 10k s; its phases last 1, 2, 3, 4 and 5 s, so 15 s in all."""
    step = FakeStep()
    marked = run_marked(step, lambda: (0,), FakeEngine(calls=step.calls), 3)
    rows = marked.columns
    assert step.calls == ["barrier", "synchronise", "marked", "marked", "marked", "synchronise"]
    np.testing.assert_allclose(rows[:, 1:], [[1, 2, 3, 4, 5]] * 3)
    # From start to start; the last ends with its own update.
    np.testing.assert_allclose(rows[:, 0], [10, 10, 15])
    # After data, forward and backward the last local gradient is there.
    np.testing.assert_allclose(marked.ready_s, [6, 16, 26])


def test_transfer_is_the_least_and_wait_the_rest() -> None:
    exposed = np.array([[3.0, 1.0, 2.0], [1.0, 4.0, 2.0], [2.0, 6.0, 2.0]])
    transfer, wait = split_sync(exposed)
    assert transfer.tolist() == [1.0, 1.0, 2.0]
    assert wait.tolist() == [[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [1.0, 5.0, 0.0]]


seconds = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 8)),
    elements=st.floats(0, 10, allow_subnormal=False),
)


@given(seconds)
def test_in_every_step_somebody_waits_for_nobody(exposed: np.ndarray) -> None:
    transfer, wait = split_sync(exposed)
    assert (wait >= 0).all()
    assert (wait.min(axis=0) == 0).all()
    np.testing.assert_allclose(transfer + wait, exposed)


def rows(step_s: float, **phases: float) -> np.ndarray:
    return np.array([[step_s, *(phases.get(name, 0.0) for name in PHASES)]])


def test_the_summary_is_of_all_ranks_and_steps() -> None:
    quick = np.vstack([rows(1.0, forward_s=0.2, exposed_sync_s=0.6)] * 2)
    late = np.vstack([rows(1.0, forward_s=0.4, exposed_sync_s=0.4)] * 2)
    found = summarise([quick, late], synchronised=True)
    assert found.steps == 2
    assert found.step_s == pytest.approx(1.0)
    assert found.forward_s == pytest.approx(0.3)
    assert found.exposed_sync_s == pytest.approx(0.5)
    assert found.transfer_s == pytest.approx(0.4)
    assert found.wait_s == pytest.approx(0.1)  # rank 0 waits 0.2, rank 1 not at all
    assert found.sum_s == pytest.approx(0.8)  # 0.3 and 0.5: the other 0.2 s lie between steps


@given(seconds)
def test_transfer_and_wait_are_exposed_sync(exposed: np.ndarray) -> None:
    ranks = [
        np.vstack([rows(11.0, exposed_sync_s=float(value)) for value in of_rank])
        for of_rank in exposed
    ]
    found = summarise(ranks, synchronised=True)
    assert found.transfer_s is not None
    assert found.wait_s is not None
    assert found.exposed_sync_s == pytest.approx(found.transfer_s + found.wait_s)


def test_what_is_not_synchronised_has_no_sync_rather_than_none_of_it() -> None:
    found = summarise([rows(1.0, forward_s=0.5)], synchronised=False)
    assert (found.exposed_sync_s, found.transfer_s, found.wait_s) == (None, None, None)
    assert found.forward_s == pytest.approx(0.5)


def test_a_boundary_that_cannot_be_marked_makes_its_phases_absent() -> None:
    """As in a compiled step that has no seam between forward and backward."""
    marked = rows(1.0, forward_s=np.nan, backward_s=np.nan, exposed_sync_s=0.25, update_s=0.5)
    found = summarise([marked, marked], synchronised=True)
    assert (found.forward_s, found.backward_s) == (None, None)
    assert (found.exposed_sync_s, found.update_s, found.step_s) == (0.25, 0.5, 1.0)
    assert found.sum_s is None
    unmarked_sync = rows(1.0, forward_s=0.5, exposed_sync_s=np.nan)
    found = summarise([unmarked_sync] * 2, synchronised=True)
    assert (found.exposed_sync_s, found.transfer_s, found.wait_s) == (None, None, None)
