"""The mechanism: records made by it give its parameters back, and its parts have closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.models.alpha_beta import AllReduceModel, Link, of_record
from harness.analysis.models.api import Model, Network, Place
from harness.analysis.models.jitter import (
    Jitter,
    expected_maximum,
    expected_normal_maximum,
    independent_steps,
    own_deviations,
)
from harness.analysis.models.mechanism import fit_mechanism
from harness.analysis.models.negotiation import growth, messages_across
from harness.analysis.models.overlap import calibrate
from harness.analysis.models.spread import Spread, bounded_pair
from harness.analysis.results import load_results
from harness.collectives.record import CollectivesRecord, LibraryFacts, Row
from harness.config.models import HorovodTuning
from harness.errors import AnalysisError
from harness.record import BackendProof, RunRecord, Timeline
from harness.stats import t_quantile
from tests import factories
from tests.unit.mechanism_records import BYTES, World, still, write_world

HERE = Place((4,))


def model(folder: Path, engine: str = "horovod", **how: object) -> Model:
    results = load_results(folder)
    (curve,) = (curve for curve in results.curves if curve.engine == engine)
    return fit_mechanism(results, curve, **how)


def value(of: Model, symbol: str) -> float:
    return next(one.interval.estimate for one in of.parameters if one.symbol == symbol)


def width(of: Model, symbol: str) -> float:
    (found,) = (one.interval for one in of.parameters if one.symbol == symbol)
    return found.high - found.low


# The expected maximum


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_the_expected_maximum_of_a_uniform_sample(ranks: int) -> None:
    grid = (np.arange(200_000) + 0.5) / 200_000
    assert expected_maximum(grid, ranks) == pytest.approx(ranks / (ranks + 1), abs=1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_the_expected_maximum_of_an_exponential_sample(ranks: int) -> None:
    grid = -np.log1p(-(np.arange(400_000) + 0.5) / 400_000)
    harmonic = sum(1 / k for k in range(1, ranks + 1))
    assert expected_maximum(grid, ranks) == pytest.approx(harmonic, rel=1e-3)


def test_the_expected_maximum_by_hand() -> None:
    # Of {0, 1}: one of two draws is 1 with the chance 3/4. Their order does not matter.
    assert expected_maximum(np.asarray([1.0, 0.0]), 2) == pytest.approx(0.75)
    # Beyond the sample's tail it is the sample's largest, and no more.
    assert expected_maximum(np.asarray([3.0, 1.0, 2.0]), 10**6) == pytest.approx(3.0)


def test_the_expected_maximum_of_normal_draws() -> None:
    assert expected_normal_maximum(1) == pytest.approx(0.0, abs=1e-9)
    assert expected_normal_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-6)
    assert expected_normal_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(1, 40))
def test_more_ranks_wait_no_less(samples: list[float], ranks: int) -> None:
    x = np.asarray(samples)
    here, more = expected_maximum(x, ranks), expected_maximum(x, ranks + 1)
    assert here <= more + 1e-9
    assert x.mean() - 1e-6 <= here <= x.max() + 1e-6


def test_what_slows_all_ranks_alike_is_no_jitter() -> None:
    random = np.random.default_rng(1)
    own = random.normal(0, 1.0, (4, 4000))
    common = random.normal(0, 5.0, (1, 4000))
    assert np.std(own_deviations(own)) == pytest.approx(1.0, rel=0.03)
    assert np.std(own_deviations(own + common)) == pytest.approx(1.0, rel=0.03)
    assert not own_deviations(np.broadcast_to(common, (4, 4000))).any()


def test_steps_that_are_alike_count_less() -> None:
    random = np.random.default_rng(1)
    white = random.standard_normal((2, 2000))
    slow = np.repeat(random.standard_normal((2, 200)), 10, axis=1)
    assert independent_steps(white) == pytest.approx(4000, rel=0.1)
    # Lag-1 correlation of runs of ten: 0.9, so 1/19 of the steps.
    assert independent_steps(slow) == pytest.approx(4000 / 19, rel=0.3)


# Draws


def test_draws_of_a_mean_are_student_s() -> None:
    blocks = {("a", 0): 1.0, ("a", 1): 2.0, ("a", 2): 6.0}
    spread = Spread.over(blocks, 60_000)
    found = spread.interval(spread.draws({k: v + 1e3 for k, v in blocks.items()}))
    half = t_quantile(0.975, 2) * np.std([1, 2, 6], ddof=1) / math.sqrt(3)
    assert found.estimate == pytest.approx(1003.0)
    assert found.high - 1003.0 == pytest.approx(half, rel=0.05)
    assert 1003.0 - found.low == pytest.approx(half, rel=0.05)


def test_what_a_block_does_to_all_quantities_stays_together() -> None:
    blocks = {("a", 0): 10.0, ("a", 1): 11.0, ("a", 2): 13.0}
    spread = Spread.over(blocks, 100)
    twice = spread.draws({key: 2 * x for key, x in blocks.items()})
    assert twice == pytest.approx(2 * spread.draws(blocks))


def test_allocations_are_the_outer_level() -> None:
    values = {("a", 0): 1.0, ("a", 1): 3.0, ("b", 0): 4.0, ("b", 1): 6.0, ("b", 2): 8.0}
    spread = Spread.over(values, 10)
    assert spread.units == ("a", "b")
    assert spread.draws(values)[0] == pytest.approx((2.0 + 6.0) / 2)


def test_one_block_has_no_interval() -> None:
    spread = Spread.over([("a", 0)], 5)
    assert spread.draws({("a", 0): 2.0}).tolist() == [2.0] * 6
    assert not spread.interval(spread.draws({("a", 0): 2.0})).has_interval


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 5), st.floats(0, 5))
def test_a_bounded_pair_is_found_again(p: float, q: float) -> None:
    a, b = np.asarray([[1.0, 2.0, 3.0]]), np.asarray([[1.0, 0.5, 4.0]])
    found = bounded_pair(a, b, p * a + q * b)
    assert float(found[0][0]) == pytest.approx(p, abs=1e-9)
    assert float(found[1][0]) == pytest.approx(q, abs=1e-9)


def test_a_bounded_pair_stays_inside() -> None:
    a, b = np.asarray([[1.0, 2.0]]), np.asarray([[1.0, 1.0]])
    p, q = bounded_pair(a, b, np.asarray([[3.0, 2.0]]))  # unbounded: −1 and 4
    assert (float(p[0]), float(q[0])) == (0.0, pytest.approx(2.5))
    p, q = bounded_pair(a, b, np.asarray([[2.0, 4.0]]), most=1.0)  # unbounded: 2 and 0
    assert (float(p[0]), float(q[0])) == (1.0, pytest.approx(1.5))


# Negotiation, overlap, links


def test_how_negotiation_grows() -> None:
    assert [growth("gloo", n) for n in (2, 8, 64)] == [1, 7, 63]
    assert [growth("mpi", n) for n in (2, 8, 64)] == [1, 3, 6]
    assert messages_across("gloo", Place((8,))) == 0
    assert messages_across("gloo", Place((8, 8))) == 30
    assert messages_across("mpi", Place((8, 8, 8, 8))) == 4


def test_the_overlap_that_fits_is_taken() -> None:
    allreduce = np.asarray([[2.0, 4.0, 8.0]])
    backward, none = np.full((1, 3), 100.0), np.zeros(3)
    share = calibrate(allreduce, backward, 0.25 * allreduce, none, None)
    assert (share.form, float(share.level[0])) == ("share", pytest.approx(0.25))
    budget = calibrate(allreduce, backward, allreduce - 1.5, none, None)
    assert (budget.form, float(budget.level[0])) == ("budget", pytest.approx(1.5))


def test_no_more_is_hidden_than_a_backward_pass() -> None:
    allreduce = np.asarray([[2.0, 4.0]])
    found = calibrate(allreduce, np.full((1, 2), 5.0), 0.25 * allreduce, np.zeros(2), None)
    exposed = found.exposed_s(np.asarray([100.0]), np.asarray([5.0]))
    assert float(exposed[0]) == pytest.approx(95.0)


def test_a_single_placement_gives_the_rest_to_negotiation() -> None:
    one = np.asarray([[2.0]])
    found = calibrate(one, one, np.asarray([[5.0]]), np.asarray([3.0]), None)
    assert (float(found.level[0]), float(found.exchange_s[0])) == (1.0, pytest.approx(1.0))
    alone = calibrate(one, one, np.asarray([[5.0]]), np.asarray([0.0]), None)  # no Horovod
    assert (float(alone.level[0]), float(alone.exchange_s[0])) == (2.5, 0.0)


def test_a_ring_and_a_hierarchy_by_hand() -> None:
    inside = Link(np.asarray([1e-6]), np.asarray([1e-10]), "")
    across = Link(np.asarray([1e-5]), np.asarray([1e-9]), "")
    flat = AllReduceModel(8e6, inside, across)
    assert flat.parts(Place((4,))).seconds[0] == pytest.approx(6e-6 + 1.5 * 8e-4)
    assert flat.parts(Place((4, 4))).seconds[0] == pytest.approx(14e-5 + 1.75 * 8e-3)
    tiered = AllReduceModel(8e6, inside, across, hierarchical=True)
    between = 2e-5 + 1.0 * 2e-3  # a ring of two nodes with a quarter of the bytes
    assert tiered.parts(Place((4, 4))).seconds[0] == pytest.approx(6e-6 + 12e-4 + between)
    assert flat.parts(Place((1,))).seconds[0] == 0.0


# The whole


@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_records_made_by_it_give_its_parameters_back(tmp_path: Path, backend: str) -> None:
    world = World()
    found = model(write_world(tmp_path / "w", world, (1, 2, 4), backend=backend))
    assert value(found, "a") == pytest.approx(world.compute_s)
    assert value(found, "α1") == pytest.approx(world.alpha_s)
    assert value(found, "β1") == pytest.approx(world.bandwidth)
    assert value(found, "φ") == pytest.approx(world.share)
    assert value(found, "r") == pytest.approx(world.exchange_s)
    assert value(found, "q") == pytest.approx(0.5e-3)
    assert found.step_s(Place((3,))) == pytest.approx(world.step_s(3, backend))


def test_of_ddp_there_is_no_negotiation(tmp_path: Path) -> None:
    world = World(engine="ddp")
    found = model(write_world(tmp_path / "w", world, (2, 3, 4), backend="gloo"), "ddp")
    names = [term.name for term in found.terms(HERE)]
    assert "negotiation" not in names
    assert "cycle" not in names
    assert value(found, "φ") == pytest.approx(0.5)
    assert found.step_s(HERE) == pytest.approx(world.step_s(4, "gloo"))


def test_jitter_is_found_and_grows(tmp_path: Path) -> None:
    world = World(jitter=lambda random, shape: random.normal(0, 1e-3, shape), steps=800)
    found = model(write_world(tmp_path / "w", world, (1, 2, 4), blocks=2))
    assert value(found, "σ") == pytest.approx(1e-3, rel=0.05)
    assert value(found, "w") == pytest.approx(1.0, abs=0.05)
    (jitter,) = (term.time_s for term in found.terms(Place((64,))) if term.name == "jitter")
    assert jitter == pytest.approx(1e-3 * expected_normal_maximum(64), rel=0.08)


def test_without_raw_steps_waits_tell_the_jitter_and_it_says_so(tmp_path: Path) -> None:
    world = World(jitter=lambda random, shape: random.normal(0, 1e-3, shape), raw=False, steps=400)
    found = model(write_world(tmp_path / "w", world, (2, 4), blocks=2))
    assert value(found, "σ") == pytest.approx(1e-3, rel=0.1)
    (said,) = (note for note in found.notes if "no raw steps" in note)
    assert "another --results" not in said


def test_noise_widens_the_intervals(tmp_path: Path) -> None:
    quiet = model(write_world(tmp_path / "q", World(noise=0.002), (1, 2, 4), blocks=5))
    loud = model(write_world(tmp_path / "l", World(noise=0.05), (1, 2, 4), blocks=5))
    assert width(loud, "a") > 10 * width(quiet, "a") > 0
    ends = [np.quantile(one.draws_s(Place((64,)), 500), (0.025, 0.975)) for one in (quiet, loud)]
    assert np.ptp(ends[1]) > 10 * np.ptp(ends[0]) > 0


def test_draws_are_always_the_same_and_surround_the_step(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(noise=0.02), (1, 2, 4), blocks=4)
    found, again = model(folder), model(folder)
    draws = found.draws_s(HERE, 400)
    assert draws.shape == (400,)
    assert (draws == again.draws_s(HERE, 400)).all()
    assert draws.min() < found.step_s(HERE) < draws.max()


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_terms_add_up_and_grow(tmp_path: Path, scaling: str) -> None:
    world = World(per_sample_s=10e-6, jitter=lambda random, shape: random.exponential(5e-4, shape))
    keys = {"scaling": scaling, "batch": 4800}
    found = model(write_world(tmp_path / "w", world, (1, 2, 4, 8), backend="gloo", **keys))
    before: dict[str, float] = {}
    for nodes in (1, 2, 4, 16, 64):
        place = Place((4,) * nodes)
        terms = {term.name: term for term in found.terms(place)}
        assert sum(term.time_s for term in terms.values()) == pytest.approx(found.step_s(place))
        assert all(term.time_s >= 0 and term.assumption for term in terms.values())
        for name in set(before) - {"compute", "cycle"}:
            assert terms[name].time_s >= before[name] * (1 - 1e-9)
        before = {name: term.time_s for name, term in terms.items()}


def test_strong_scaling_is_a_line_in_the_batch(tmp_path: Path) -> None:
    world = World(compute_s=4e-3, per_sample_s=20e-6)
    keys = {"scaling": "strong", "batch": 1200}
    found = model(write_world(tmp_path / "w", world, (1, 2, 4), **keys))
    assert value(found, "a") == pytest.approx(4e-3)
    assert value(found, "b") == pytest.approx(20e-6)
    assert any("300 to 600" in note for note in found.notes)
    compute = found.terms(Place((3,)))[0]
    assert (compute.name, compute.time_s) == ("compute", pytest.approx(4e-3 + 1200 / 3 * 20e-6))


def test_ranks_that_share_a_node_slow_each_other(tmp_path: Path) -> None:
    def crowded(one: RunRecord) -> RunRecord:
        """Each further rank of a node takes 1 ms more to compute."""
        more_s = 1e-3 * (one.config.world_size - 1)
        phases, window = one.phases, one.window
        assert phases is not None
        assert window is not None
        grown = {"forward_s": phases.forward_s + more_s, "sum_s": phases.sum_s + more_s}
        wall_s = window.wall_s + more_s * window.steps
        return one.model_copy(update={
            "phases": phases.model_copy(update=grown),
            "window": window.model_copy(update={"wall_s": wall_s}),
        })  # fmt: skip

    found = model(write_world(tmp_path / "w", World(), (2, 3, 4), change=crowded))
    assert value(found, "k") == pytest.approx(1e-3)
    terms = {term.name: term.time_s for term in found.terms(HERE)}
    assert terms["contention"] == pytest.approx(2e-3)


# Across nodes


def test_nothing_is_predicted_across_nodes_without_data(tmp_path: Path) -> None:
    found = model(write_world(tmp_path / "w", World(), (1, 2, 4)))
    with pytest.raises(AnalysisError, match=r"two-node data.*--inter-node-us"):
        found.step_s(Place((4, 4)))
    with pytest.raises(AnalysisError, match="two-node data"):
        found.draws_s(Place((4, 4)), 10)


def test_a_network_that_is_given(tmp_path: Path) -> None:
    world = World()
    network = Network(world.across_alpha_s, world.across_bandwidth)
    found = model(write_world(tmp_path / "w", world, (1, 2, 4)), network=network)
    terms = {term.name: term.time_s for term in found.terms(Place((4, 4)))}
    wire_s = 14 * network.latency_s + 1.75 * BYTES / network.bandwidth_bytes_per_s
    together = terms["all-reduce latency"] + terms["all-reduce bandwidth"]
    assert together == pytest.approx(0.5 * wire_s)
    # An exchange crosses between two nodes once there and once back.
    assert terms["negotiation"] == pytest.approx(3 * 30e-6 + 2 * network.latency_s)


def test_two_placements_across_nodes_give_their_link(tmp_path: Path) -> None:
    world = World(compute_s=20e-3)  # a backward pass that is long enough to hide its share
    found = model(write_world(tmp_path / "w", world, (1, 2, 4, 8, 16)))
    assert value(found, "α2") == pytest.approx(world.across_alpha_s)
    assert value(found, "β2") == pytest.approx(world.across_bandwidth)
    place = Place((4,) * 16)
    assert found.step_s(place) == pytest.approx(world.step_s(64))


def test_one_placement_across_nodes_is_slower_by_one_factor(tmp_path: Path) -> None:
    world = World()
    world = replace(world, across_alpha_s=3 * world.alpha_s, across_bandwidth=world.bandwidth / 3)
    found = model(write_world(tmp_path / "w", world, (1, 2, 4, 8)))
    assert value(found, "α2") == pytest.approx(world.across_alpha_s)
    assert value(found, "β2") == pytest.approx(world.across_bandwidth)


# hvdscale allreduce


def record_of(ranks: int, library: str = "mpi4py", backend: str = "mpi") -> CollectivesRecord:
    """A ring with 20 µs a message and 2 GB/s, that has a slower regime above 1 MiB."""

    def row(size: int) -> Row:
        slow = 2.0 if size > 1 << 20 else 1.0
        seconds = 2 * (ranks - 1) * 20e-6
        seconds += 2 * (ranks - 1) / ranks * (size - 1024) / 2e9 * slow
        return Row(
            library=library, collective="all_reduce", bytes=size, iterations=5,
            latency_p50_s=seconds, latency_p99_s=seconds, latency_min_s=seconds,
            latency_max_s=seconds, algbw_bytes_per_s=1.0, busbw_bytes_per_s=1.0,
        )  # fmt: skip

    sizes = (1024, 1 << 19, 1 << 20, 1 << 22)
    proof = BackendProof(requested=backend, proven=backend, controller=None, evidence={})
    return CollectivesRecord(
        run_id="r", started_at="2026-01-01T00:00:00Z", ended_at="2026-01-01T00:01:00Z", argv=(),
        launcher="mpirun", hosts=("n",), placement=(ranks,), world_size=ranks, device="cpu",
        cores_per_rank=1, tuning=HorovodTuning(),
        libraries=(LibraryFacts(name=library, proof=proof, versions={}),),
        collectives=("all_reduce",), sizes=sizes, max_iterations=5, rows=tuple(map(row, sizes)),
    )  # fmt: skip


def test_all_reduces_by_size_are_piecewise() -> None:
    small = of_record(record_of(4), "mpi", "cpu", 1 << 19, 3)
    large = of_record(record_of(4), "mpi", "cpu", 1 << 22, 3)
    assert small.alpha_s == pytest.approx(np.full(3, 20e-6))
    assert 1 / small.s_per_byte[0] == pytest.approx(2e9, rel=0.01)
    assert 1 / large.s_per_byte[0] == pytest.approx(1e9, rel=0.01)


def test_all_reduces_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AnalysisError, match="none over gloo; they have: mpi4py over mpi"):
        of_record(record_of(4), "gloo", "cpu", 1e6, 1)
    with pytest.raises(AnalysisError, match="ran on cpu, the sweep on cuda"):
        of_record(record_of(4), "mpi", "cuda", 1e6, 1)


def test_with_all_reduces_one_device_count_will_do(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(), (1, 2))
    found = model(folder, allreduce=record_of(2))
    assert value(found, "α1") == pytest.approx(20e-6)
    assert any("assumed, not shown" in note for note in found.notes)
    assert found.step_s(Place((2,))) == pytest.approx(World().step_s(2), rel=1e-3)


# What cannot be told


def test_two_device_counts_cannot_show_dependence(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(), (1, 2))
    with pytest.raises(AnalysisError, match="N = 1, 2 alone cannot show dependence on N"):
        model(folder)


def test_one_device_shows_nothing(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(), (1,))
    with pytest.raises(AnalysisError, match="one device cannot show what an all-reduce costs"):
        model(folder)
    with pytest.raises(AnalysisError, match="engine none is one device"):
        model(folder, "none")


def test_without_phases_there_is_no_mechanism(tmp_path: Path) -> None:
    def bare(one: RunRecord) -> RunRecord:
        return one.model_copy(update={"phases": None})

    folder = write_world(tmp_path / "w", World(), (1, 2, 4), change=bare)
    with pytest.raises(AnalysisError, match="needs the phases of a step"):
        model(folder)


def test_one_block_says_so(tmp_path: Path) -> None:
    found = model(write_world(tmp_path / "w", World(), (1, 2, 4), blocks=1))
    assert not any(one.interval.has_interval for one in found.parameters)
    assert any("one block" in note for note in found.notes)
    assert np.ptp(found.draws_s(HERE, 50)) == 0.0


def test_a_cycle_that_hides_the_all_reduce_is_named(tmp_path: Path) -> None:
    long = model(write_world(tmp_path / "l", World(cycle_ms=5.0), (1, 2, 4)))
    short = model(write_world(tmp_path / "s", World(cycle_ms=0.1), (1, 2, 4)))
    said = "mostly Horovod's cycle"
    assert any(said in note for note in long.notes)
    assert not any(said in note for note in short.notes)


def test_a_timeline_parts_what_is_exposed(tmp_path: Path) -> None:
    def lines() -> list[RunRecord]:
        tuning = {"cycle_time_ms": 1.0, "controller": "mpi"}
        found = []
        for n in (2, 4):
            made = factories.config("horovod", n, 75, backend="mpi", horovod=tuning)
            states = Timeline(
                steps=20, step_s=1e-2, plain_step_s=1e-2, negotiation_s=3e-3, queue_s=0.0,
                copy_in_s=0.0, allreduce_s=0.2e-3, copy_out_s=0.0, cycles=1.0, tensors=1.0,
                allreduces=2.0, tensors_fused=1.0, file="timeline.json",
            )  # fmt: skip
            found.append(factories.timeline(made, node=4, timeline=states))
        return found

    world = World()
    found = model(write_world(tmp_path / "w", world, (1, 2, 4), extra=lines()))
    rest = [world.transfer_s(n, "mpi") - 0.5e-3 for n in (2, 4)]
    # The last of two operations takes 0.1 ms; the rest that is exposed is negotiation.
    expected = np.mean([(rest[0] - 0.1e-3) / 1, (rest[1] - 0.1e-3) / 2])
    assert value(found, "r") == pytest.approx(expected)


def test_a_tail_that_was_not_seen_is_said(tmp_path: Path) -> None:
    world = World(jitter=lambda random, shape: random.normal(0, 1e-3, shape), steps=20)
    found = model(write_world(tmp_path / "w", world, (1, 2, 4), blocks=1))
    words = {
        n: next(t.assumption for t in found.terms(Place((n,))) if t.name == "jitter")
        for n in (4, 100_000)
    }
    assert "do not show this tail" in words[100_000]
    assert "do not show" not in words[4]
    assert still(np.random.default_rng(1), (2, 3)).shape == (2, 3)


def test_jitter_knows_its_size() -> None:
    made = Jitter({("a", 0): np.asarray([-1.0, 1.0]), ("a", 1): np.asarray([-3.0, 3.0])}, 4)
    assert made.deviation_s == pytest.approx(math.sqrt(5))
    assert made.deviation_by_block() == {("a", 0): 1.0, ("a", 1): 3.0}
    assert isinstance(made.expected_s(2), float)
