"""Clocks of hosts compared, and what is said of waits by them: with planted offsets and drift."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.engines.api import World
from harness.errors import LaunchError
from harness.measure import clocks, pings
from harness.measure.clocks import Exchange, Host, RankClock

A, B, C = Host("a", "kernel 1"), Host("b", "kernel 2"), Host("c", "kernel 3")


@dataclass(frozen=True)
class Planted:
    """A clock that goes wrong in a known way: reading = true time · (1 + drift) + offset."""

    offset_s: float
    drift: float

    def read(self, true_s: Any) -> Any:
        return true_s + self.offset_s + self.drift * true_s

    def offset_at(self, reading_s: float) -> float:
        return reading_s - (reading_s - self.offset_s) / (1 + self.drift)


TRUE = Planted(0.0, 0.0)


def simulated(clock: Planted, legs_s: NDArray[np.float64], start_s: float) -> NDArray[np.float64]:
    """Return the pings of ``clock`` to the true one over the planted ways there and back."""
    asked = start_s + np.concatenate([[0.0], np.cumsum(legs_s.sum(axis=1))[:-1]])
    theirs = asked + legs_s[:, 0]
    return np.column_stack([clock.read(asked), theirs, clock.read(theirs + legs_s[:, 1])])


def exchanged(clock: Planted, host: Host, legs_s: NDArray[np.float64], start_s: float) -> Exchange:
    found = pings.least(simulated(clock, legs_s, start_s))
    return Exchange(found.at_s, found.offset_s, found.error_s, host)


def legs(generator: np.random.Generator, least_s: tuple[float, float]) -> NDArray[np.float64]:
    """Return 200 ways there and back of unlike length, with a long tail of jitter."""
    return np.array(least_s) + generator.pareto(1.5, (pings.PINGS, 2)) * 2e-5


planted_clocks = st.builds(Planted, st.floats(-1e6, 1e6), st.floats(-1e-4, 1e-4))
ways = st.tuples(st.floats(1e-6, 1e-3), st.floats(1e-6, 1e-3))
seeds = st.integers(0, 2**32 - 1)


@given(planted_clocks, ways, seeds)
def test_the_offset_is_within_half_of_the_least_round_trip(
    clock: Planted, way: tuple[float, float], seed: int
) -> None:
    legs_s = legs(np.random.default_rng(seed), way)
    found = pings.least(simulated(clock, legs_s, start_s=100.0))
    rounds = legs_s.sum(axis=1)
    assert found.error_s == pytest.approx(rounds.min() / 2, rel=2e-4, abs=1e-9)
    wrong_by_s = found.offset_s - clock.offset_at(found.at_s)
    assert abs(wrong_by_s) <= found.error_s + 1e-9
    # It is wrong by what the two ways differ, of the shortest or of one that rounding makes so.
    shortest = legs_s[rounds <= rounds.min() + 1e-9]
    assert any(
        wrong_by_s == pytest.approx((back_s - there_s) / 2, rel=2e-4, abs=1e-9)
        for there_s, back_s in shortest
    )


@given(planted_clocks, ways, seeds)
@settings(max_examples=50)
def test_arrivals_between_two_exchanges_are_within_the_error(
    clock: Planted, way: tuple[float, float], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    arrivals_s = np.linspace(101.0, 129.0, 50)
    rank = RankClock(
        exchanged(clock, B, legs(generator, way), 100.0),
        exchanged(clock, B, legs(generator, way), 130.0),
        clock.read(arrivals_s),
    )
    assert (abs(rank.arrivals_s() - arrivals_s) <= rank.error_s + 1e-8).all()
    assert rank.drift == pytest.approx(clock.drift, abs=2 * rank.error_s / 30 + 1e-9)


def ranks_of(
    lateness_s: list[float], planted: list[Planted], hosts: list[Host], way: tuple[float, float]
) -> list[RankClock]:
    """Return ranks that arrive ``lateness_s`` after the start of each of 40 steps, 0.1 s apart."""
    generator = np.random.default_rng(7)
    starts_s = 10.0 + np.arange(40) * 0.1
    made = []
    for late_s, clock, host in zip(lateness_s, planted, hosts, strict=True):
        ends = [
            Exchange(clock.read(at_s), 0.0, 0.0, host)
            if host == hosts[0]
            else exchanged(clock, host, legs(generator, way), at_s)
            for at_s in (9.0, 15.0)
        ]
        made.append(RankClock(ends[0], ends[1], clock.read(starts_s + late_s)))
    return made


def test_skew_and_wait_of_three_hosts() -> None:
    planted = [TRUE, TRUE, Planted(3e4, 5e-5), Planted(-7.0, -2e-5)]
    lateness_s = [0.0, 0.004, 0.020, 0.008]
    ranks = ranks_of(lateness_s, planted, [A, A, B, C], (2e-5, 6e-5))
    found = clocks.summarise(ranks)
    assert found is not None
    assert found.method == clocks.ROUND_TRIPS
    assert found.resolved
    assert 4e-5 <= found.error_s < 1e-4
    assert found.skew_s == pytest.approx(0.020, abs=2 * found.error_s)
    assert found.wait_s == pytest.approx((0.020 + 0.016 + 0 + 0.012) / 4, abs=2 * found.error_s)
    assert found.offsets_s[:2] == (0.0, 0.0)
    middle_s = [clock.offset_at(clock.read(12.0)) for clock in planted]
    assert found.offsets_s == pytest.approx(tuple(middle_s), abs=2 * found.error_s)
    assert found.drift == pytest.approx(5e-5, abs=2 * found.error_s / 6)


def test_the_drift_that_is_told_is_the_largest_of_either_sign() -> None:
    ranks = ranks_of(
        [0, 0, 0], [TRUE, Planted(0, 1e-5), Planted(0, -9e-5)], [A, B, C], (1e-6, 1e-6)
    )
    found = clocks.summarise(ranks)
    assert found is not None
    assert found.drift == pytest.approx(-9e-5, abs=1e-5)


def test_a_skew_below_the_error_is_unresolved() -> None:
    planted, hosts = [TRUE, Planted(5.0, 0.0)], [A, B]
    below = clocks.summarise(ranks_of([0, 0.0003], planted, hosts, (5e-4, 5e-4)))
    above = clocks.summarise(ranks_of([0, 0.0007], planted, hosts, (5e-4, 5e-4)))
    assert below is not None
    assert above is not None
    assert below.error_s == pytest.approx(5e-4, rel=0.05)
    assert (below.resolved, above.resolved) == (False, True)


@pytest.mark.parametrize("errors_s", [(1e-4, 5e-4), (5e-4, 1e-4)])
def test_a_clock_is_as_wrong_as_the_worse_of_its_comparisons(errors_s: tuple[float, float]) -> None:
    before, after = (Exchange(at_s, 0.0, e, B) for at_s, e in zip((9, 15), errors_s, strict=True))
    own = RankClock(Exchange(9, 0, 0, A), Exchange(15, 0, 0, A), np.array([10.0]))
    found = clocks.summarise([own, RankClock(before, after, np.array([10.0]))])
    assert found is not None
    assert found.error_s == 5e-4


def test_two_hosts_that_are_not_rank_0s_may_both_be_wrong() -> None:
    """Either is known to 0.5 ms, so their difference is known to 1 ms."""
    planted, way = [TRUE, Planted(5.0, 0.0), Planted(-5.0, 0.0)], (5e-4, 5e-4)
    below = clocks.summarise(ranks_of([0, 0.0004, -0.0004], planted, [A, B, C], way))
    above = clocks.summarise(ranks_of([0, 0.0007, -0.0007], planted, [A, B, C], way))
    assert below is not None
    assert above is not None
    assert below.skew_s > below.error_s
    assert (below.resolved, above.resolved) == (False, True)


def test_ranks_of_one_host_have_one_clock() -> None:
    found = clocks.summarise(ranks_of([0.0, 0.003], [TRUE, TRUE], [A, A], (1e-4, 1e-4)))
    assert found is not None
    assert found.method == clocks.ONE_CLOCK
    assert (found.offsets_s, found.error_s, found.drift) == ((0.0, 0.0), 0.0, 0.0)
    assert found.skew_s == pytest.approx(0.003)
    assert found.wait_s == pytest.approx(0.0015)
    assert found.resolved


def test_arrivals_that_an_engine_cannot_mark_give_no_check() -> None:
    ranks = ranks_of([0.0, 0.003], [TRUE, TRUE], [A, A], (1e-4, 1e-4))
    unmarked = replace(ranks[1], ready_s=np.full(40, np.nan))
    assert clocks.summarise([ranks[0], unmarked]) is None


class Together:
    """Ranks as threads: what each gathers is what all have brought."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=120)
        self._values: list[Any] = [None] * size

    def of(self, rank: int) -> Gatherer:
        return Gatherer(self, rank)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found


@dataclass(frozen=True)
class Gatherer:
    together: Together
    rank: int

    def gather(self, value: Any) -> list[Any]:
        return self.together.gather(self.rank, value)


def on_threads(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Run ``tasks`` at once; return what each returned, or raised."""
    found: list[Any] = [None] * len(tasks)

    def run(place: int) -> None:
        try:
            found[place] = tasks[place]()
        except LaunchError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def exchange_of(
    hosts: list[Host], planted: list[Planted]
) -> tuple[list[Exchange], list[Exchange], float]:
    """Exchange twice between ranks as threads, over real sockets; return also when in between."""
    together, size = Together(len(hosts)), len(hosts)
    middle: list[float] = []

    def rank(number: int) -> tuple[Exchange, Exchange]:
        engine, world = together.of(number), World(number, size, 0, 1)

        def clock() -> float:
            return float(planted[number].read(time.perf_counter()))

        before = clocks.exchange(engine, world, clock=clock, host=hosts[number])
        middle.append(time.perf_counter())
        after = clocks.exchange(engine, world, clock=clock, host=hosts[number])
        return before, after

    found = on_threads([lambda number=number: rank(number) for number in range(size)])
    assert all(isinstance(each, tuple) for each in found), found
    return [one for one, _ in found], [other for _, other in found], middle[0]


def test_hosts_that_really_exchange_find_the_planted_clocks() -> None:
    b, c = Planted(1234.5, 8e-5), Planted(-3.25, -2e-5)
    hosts, planted = [A, B, A, B, C], [TRUE, b, TRUE, b, c]
    before, after, middle_s = exchange_of(hosts, planted)
    assert [one.host for one in before] == hosts
    for place in (0, 2):
        assert (before[place].offset_s, before[place].error_s) == (0.0, 0.0)
    for place in (1, 3, 4):
        for one in (before[place], after[place]):
            assert 0 < one.error_s < 0.01
            assert abs(one.offset_s - planted[place].offset_at(one.at_s)) <= one.error_s
    assert before[1] == before[3]  # one clock, compared once
    ranks = [
        RankClock(one, other, clock.read(np.array([middle_s])))
        for one, other, clock in zip(before, after, planted, strict=True)
    ]
    for rank in ranks:
        assert abs(rank.arrivals_s()[0] - middle_s) <= rank.error_s


def test_other_names_with_one_kernel_exchange_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> socket.socket:
        raise AssertionError("there is nothing to listen for")

    monkeypatch.setattr(pings, "listen", refused)
    before, _, _ = exchange_of([A, replace(A, name="container")], [TRUE, TRUE])
    assert [(one.offset_s, one.error_s) for one in before] == [(0.0, 0.0)] * 2
    assert [one.host.name for one in before] == ["a", "container"]


def test_this_host_is_its_kernel_and_its_name() -> None:
    here = clocks.this_host()
    assert here.name == socket.gethostname()
    assert here.clock.startswith(clocks._BOOT_ID.read_text().strip())
    assert clocks.this_host() == here


def test_strangers_get_nothing_and_callers_are_answered_all_the_same() -> None:
    with pings.listen() as listener:
        door = replace(pings.door_of(listener, "a"), addresses=("127.0.0.1",))
        impostor = replace(door, token=b"guessed")
        with socket.create_connection(("127.0.0.1", door.port)):  # and hangs up without a word
            pass
        answers = on_threads(
            [
                lambda: pings.answer(listener, door, {1: "b"}, time.perf_counter),
                lambda: pings.ask(impostor, 1, time.perf_counter, pings=3, patience_s=5.0),
                lambda: time.sleep(0.1) or pings.ask(door, 1, time.perf_counter, pings=3),
            ]
        )
    assert answers[0] is None
    assert isinstance(answers[1], LaunchError)
    assert answers[2].shape == (3, 3)
    assert (np.diff(answers[2], axis=1) >= 0).all()  # one clock: asked, read, answered


def test_a_caller_that_does_not_come_is_named() -> None:
    with pings.listen() as listener:
        door = pings.door_of(listener, "a")
        with pytest.raises(LaunchError, match=r"rank 3 on b did not reach rank 0 on a at TCP port"):
            pings.answer(listener, door, {3: "b"}, time.perf_counter, patience_s=0.05)


def test_a_door_that_is_shut_is_named_with_every_address() -> None:
    with pings.listen() as listener:
        door = replace(pings.door_of(listener, "localhost"), addresses=("127.0.0.1",))
    with pytest.raises(LaunchError) as caught:
        pings.ask(door, 2, time.perf_counter)
    text = str(caught.value)
    assert f"does not reach rank 0 on localhost at TCP port {door.port}" in text
    assert "127.0.0.1: Connection refused; localhost: Connection refused" in text
    assert "leave clocks out of measure.instruments" in text


def test_a_rank_that_stops_in_between_is_named() -> None:
    class Broken(Exception):
        """The caller's own trouble."""

    def breaks() -> float:
        raise Broken

    with pings.listen() as listener:
        door = replace(pings.door_of(listener, "a"), addresses=("127.0.0.1",))

        def caller() -> None:
            with pytest.raises(Broken):
                pings.ask(door, 1, breaks)

        answers = on_threads(
            [lambda: pings.answer(listener, door, {1: "b"}, time.perf_counter), caller]
        )
    assert isinstance(answers[0], LaunchError)
    assert "rank 1 on b stopped" in str(answers[0])


def test_loopback_is_told_only_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pings, "_ipv6_addresses", lambda: ["::1", "fd00::7"])
    monkeypatch.setattr(pings, "_ipv4_addresses", lambda: ["127.0.0.1", "10.0.0.5"])
    assert pings.own_addresses() == ("10.0.0.5", "fd00::7")
    monkeypatch.setattr(pings, "_ipv6_addresses", lambda: ["::1"])
    monkeypatch.setattr(pings, "_ipv4_addresses", lambda: ["127.0.0.1"])
    assert pings.own_addresses() == ("127.0.0.1", "::1")


def test_the_kernels_own_table_of_addresses_is_read() -> None:
    assert "127.0.0.1" in pings._ipv4_addresses()
