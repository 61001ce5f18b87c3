"""Each local rank keeps to cores of its own, where there are enough."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.affinity import bind, cores_of
from harness.errors import LaunchError
from harness.spec import Resolved


def resolved(cores_per_rank: int, bind: bool = True) -> Resolved:
    return Resolved(
        launcher="mpirun",
        backend="mpi",
        controller="mpi",
        placement=(2,),
        hosts=("n1",),
        device="cpu",
        cores_per_rank=cores_per_rank,
        bind=bind,
    )


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Stand in for the scheduler; ``allowed`` is this process's mask."""
    state: dict[str, set[int]] = {"allowed": {0, 1, 4, 5, 8, 9}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(state["allowed"]))
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda _, cores: state.__setitem__("allowed", set(cores))
    )
    return state


@pytest.mark.parametrize(
    ("local_rank", "cores", "taken"),
    [(0, 2, (0, 1)), (1, 2, (4, 5)), (2, 2, (8, 9)), (1, 3, (5, 8, 9)), (4, 1, (8,))],
)
def test_a_rank_takes_its_own(
    system: dict[str, set[int]], local_rank: int, cores: int, taken: tuple[int, ...]
) -> None:
    assert bind(resolved(cores), local_rank) == taken
    assert system["allowed"] == set(taken)


@given(
    available=st.lists(st.integers(0, 200), unique=True, min_size=1, max_size=40).map(sorted),
    cores=st.integers(1, 8),
)
def test_no_two_ranks_share_a_core(available: list[int], cores: int) -> None:
    taken = [cores_of(rank, cores, available) for rank in range(len(available) // cores)]
    flat = [core for of_rank in taken for core in of_rank]
    assert len(set(flat)) == len(flat) == cores * len(taken)
    assert set(flat) <= set(available)


@pytest.mark.parametrize(
    ("made", "local_rank"),
    [
        (resolved(1, bind=False), 1),  # more ranks than cores
        (resolved(6), 0),  # srun has left exactly its share
    ],
)
def test_otherwise_the_mask_stays(
    system: dict[str, set[int]], made: Resolved, local_rank: int
) -> None:
    assert bind(made, local_rank) == (0, 1, 4, 5, 8, 9)
    assert system["allowed"] == {0, 1, 4, 5, 8, 9}


@pytest.mark.parametrize(("made", "local_rank"), [(resolved(4), 1), (resolved(2), 3)])
def test_a_binding_that_cannot_be_is_no_silent_sharing(
    system: dict[str, set[int]], made: Resolved, local_rank: int
) -> None:
    with pytest.raises(LaunchError, match=f"local rank {local_rank} was to have"):
        bind(made, local_rank)


def test_the_real_mask_is_set() -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    try:
        assert bind(resolved(1), 0) == (first,)
        assert os.sched_getaffinity(0) == {first}
    finally:
        os.sched_setaffinity(0, before)
