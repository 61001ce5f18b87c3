"""The timed loop and its check, among ranks that are threads, with libraries that are made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from harness.collectives import measuring, patterns
from harness.collectives.api import AgreedError, Library, agree
from harness.collectives.measuring import Times, measure, summarise
from harness.collectives.patterns import Buffers, fault, fill, make_buffers
from harness.errors import LaunchError, ValidationError

MOVING = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first round that this machine makes slow leaves no round out; tests of that set less."""
    monkeypatch.setattr(measuring, "BUDGET_S", 1e6)


class Ranks:
    """What the ranks of a made-up launch share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.meet = threading.Barrier(size, timeout=300)
        self.values: list[Any] = [None] * size

    def run(self, program: Callable[[Comm], Any]) -> list[Any]:
        """Run ``program`` as every rank; return what each returns, or the exception it ends by."""

        def safely(rank: int) -> Any:
            try:
                return program(Comm(self, rank))
            except AgreedError as error:
                return error

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(safely, range(self.size)))


class Comm:
    def __init__(self, ranks: Ranks, rank: int) -> None:
        self._ranks, self.rank = ranks, rank

    def gather(self, value: Any) -> list[Any]:
        self._ranks.values[self.rank] = value
        self.barrier()
        found = list(self._ranks.values)
        self.barrier()
        return found

    def barrier(self) -> None:
        self._ranks.meet.wait()


class FakeLibrary(Library):
    """Collectives by their definition, over what the ranks have gathered."""

    lacks = {}  # noqa: RUF012

    def __init__(self, name: str, comm: Comm, spoil: Any = None, delay_s: float = 0.0) -> None:
        self.name, self._comm, self._spoil, self._delay_s = name, comm, spoil, delay_s
        self.called: list[str] = []

    def run(self, buffers: Buffers) -> Any:
        time.sleep(self._delay_s)
        given = self._comm.gather(None if buffers.send is None else buffers.send.clone())
        if buffers.send is None:
            return None
        result = reference(buffers.collective, given, self._comm.rank)
        if self._spoil:
            self._spoil(result, self._comm.rank)
        out = buffers.send if buffers.receive is None else buffers.receive
        out.copy_(result)
        return out

    def barrier(self) -> None:
        self._comm.barrier()

    def facts(self) -> Any:
        raise NotImplementedError


def reference(collective: str, given: list[Any], rank: int) -> Any:
    size = len(given)
    match collective:
        case "all_reduce":
            return torch.stack(given).sum(0)
        case "broadcast":
            return given[0].clone()
        case "all_gather":
            return torch.cat(given)
        case "reduce_scatter":
            return torch.stack(given).sum(0).chunk(size)[rank].clone()
        case "all_to_all":
            return torch.cat([one.chunk(size)[rank] for one in given])
        case _:
            return given[(rank - 1) % size].clone()


def all_buffers(collective: str, count_bytes: int, size: int) -> list[Buffers]:
    made = [make_buffers(collective, count_bytes, rank, size, CPU) for rank in range(size)]
    for one in made:
        fill(one)
    return made


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 13])  # elements of a rank's share
@pytest.mark.parametrize("collective", MOVING)
def test_a_right_result_is_right_and_any_wrong_element_is_not(
    collective: str, count: int, size: int
) -> None:
    made = all_buffers(collective, 4 * count * size, size)
    for rank, buffers in enumerate(made):
        result = reference(collective, [one.send for one in made], rank)
        assert fault(buffers, result) is None
        for place in range(result.numel()):
            wrong = result.clone()
            wrong[place] += 1
            assert fault(buffers, wrong) is not None
        result[-1] = torch.nan
        assert fault(buffers, result) is not None


@pytest.mark.parametrize("collective", MOVING)
def test_what_was_never_written_shared_or_reordered_shows(collective: str) -> None:
    size = 3
    made = all_buffers(collective, 4 * 4 * size, size)
    given = [one.send for one in made]
    untouched = made[1].send if made[1].receive is None else made[1].receive
    assert fault(made[1], untouched) is not None
    result = reference(collective, given, 1)
    assert fault(made[1], result.flip(0)) is not None
    short = fault(made[1], result[:-1])
    assert short is not None
    assert f"{result.numel() - 1} values instead of {result.numel()}" in short
    if collective not in ("all_reduce", "broadcast", "all_gather"):  # there all ranks get the same
        assert fault(made[1], reference(collective, given, 2)) is not None


def test_the_right_sizes_are_made() -> None:
    def lengths(name: str) -> tuple[int | None, int | None]:
        made = make_buffers(name, 4096, 0, 4, CPU)
        return tuple(None if t is None else t.nbytes for t in (made.send, made.receive))

    assert {name: lengths(name) for name in (*MOVING, "barrier")} == {
        "all_reduce": (4096, None), "broadcast": (4096, None), "all_gather": (1024, 4096),
        "reduce_scatter": (4096, 1024), "all_to_all": (4096, 4096), "send_recv": (4096, 4096),
        "barrier": (None, None),
    }  # fmt: skip


def once(comm: Comm, libraries: list[Library], size: int, **changes: Any) -> Any:
    name, count = changes.pop("collective", "all_reduce"), changes.pop("count_bytes", 4096)
    buffers = make_buffers(name, count, comm.rank, size, CPU)
    return measure(libraries, buffers, comm, comm.barrier, **changes)


def test_times_are_of_every_rank_and_iteration_of_every_library() -> None:
    def program(comm: Comm) -> Any:
        late = 0.02 if comm.rank == 1 else 0.0
        quick, slow = FakeLibrary("quick", comm), FakeLibrary("slow", comm, delay_s=late)
        return once(comm, [quick, slow], 2, max_iterations=6)

    first, second = Ranks(2).run(program)
    assert [one.library for one in first] == ["quick", "slow"]
    assert all(one.rank_s.shape == (2, 6) for one in first)
    for mine, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine.rank_s, other.rank_s)
    assert (first[1].rank_s[1] >= 0.02).all()  # planted
    assert (first[0].rank_s > 0).all()


def test_a_slow_library_gets_fewer_rounds_and_never_under_the_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "BUDGET_S", 0.05)

    def program(comm: Comm) -> Any:
        return once(comm, [FakeLibrary("slow", comm, delay_s=0.04)], 2)

    (times,) = Ranks(2).run(program)[0]
    assert times.rank_s.shape == (2, measuring.MIN_ITERATIONS)


def test_the_libraries_begin_in_turn() -> None:
    order: list[str] = []

    class Noted(FakeLibrary):
        def run(self, buffers: Buffers) -> Any:
            order.append(self.name)
            return super().run(buffers)

    def program(comm: Comm) -> Any:
        kind = Noted if comm.rank == 0 else FakeLibrary
        return once(comm, [kind(name, comm) for name in "abc"], 2, max_iterations=3)

    Ranks(2).run(program)
    assert "".join(order[-9:]) == "abcbcacab"


def spoil_last(result: Any, rank: int) -> None:
    if rank == 1:
        result[-1] += 1


@pytest.mark.parametrize("collective", MOVING)
def test_a_wrong_result_ends_all_ranks_and_names_library_and_size(collective: str) -> None:
    def program(comm: Comm) -> Any:
        libraries = [FakeLibrary("right", comm), FakeLibrary("broken", comm, spoil_last)]
        return once(comm, libraries, 2, collective=collective, count_bytes=64 * 1024)

    errors = Ranks(2).run(program)
    assert all(isinstance(error, AgreedError) for error in errors)
    assert {error.exit_code for error in errors} == {1}
    assert str(errors[0]) == str(errors[1])
    assert f"broken's {collective} of 64K (65,536 bytes) is wrong" in str(errors[0])
    assert "in 1 of " in str(errors[0])
    assert str(errors[0]).endswith("places on rank 1; nothing was written")


def test_a_sum_that_goes_wrong_only_later_is_found_too() -> None:
    """The last round is checked as well as the first."""

    def program(comm: Comm) -> Any:
        left = [4]

        def later(result: Any, rank: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                result[0] = 0

        return once(comm, [FakeLibrary("ageing", comm, later)], 2, max_iterations=10)

    errors = Ranks(2).run(program)
    assert all("ageing's all_reduce of 4K" in str(error) for error in errors)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_buffers_are_filled_anew_for_each_library(collective: str) -> None:
    """A library that does nothing must not pass with what the one before has left."""

    class Idle(FakeLibrary):
        def run(self, buffers: Buffers) -> Any:
            return buffers.send if buffers.receive is None else buffers.receive

    def program(comm: Comm) -> Any:
        libraries = [FakeLibrary("right", comm), Idle("idle", comm)]
        return once(comm, libraries, 2, collective=collective)

    assert f"idle's {collective}" in str(Ranks(2).run(program)[0])


def test_a_barrier_has_a_time_and_no_bandwidth() -> None:
    def program(comm: Comm) -> Any:
        return once(comm, [FakeLibrary("a", comm)], 2, collective="barrier", count_bytes=0)

    (times,) = Ranks(2).run(program)[0]
    row = summarise(times)
    assert row.latency_p50_s > 0
    assert (row.bytes, row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (0, None, None)


def test_an_iteration_lasts_as_long_as_its_slowest_rank() -> None:
    rank_s = np.array([[1.0, 5.0, 1.0, 1.0], [2.0, 1.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0]])
    row = summarise(Times("a", "all_reduce", 6000, rank_s))  # slowest: 2, 5, 3, 4
    assert (row.iterations, row.latency_min_s, row.latency_max_s) == (4, 2.0, 5.0)
    assert row.latency_p50_s == 3.5
    assert row.latency_p99_s == pytest.approx(4.97)
    assert row.algbw_bytes_per_s == pytest.approx(6000 / 3.5)
    assert row.busbw_bytes_per_s == pytest.approx(6000 / 3.5 * 4 / 3)


def test_one_ranks_error_is_every_ranks() -> None:
    def program(comm: Comm) -> Any:
        agree(comm, None)
        agree(comm, [None, ValidationError("too large"), LaunchError("later")][comm.rank])

    errors = Ranks(3).run(program)
    assert [(str(error), error.exit_code) for error in errors] == [("too large", 2)] * 3


def test_values_stay_exact_in_float32_up_to_the_ranks_that_the_docs_say() -> None:
    size = 1600
    total = size * (size + 1) / 2 * patterns._CYCLE
    assert total < 2**24
