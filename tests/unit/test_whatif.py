"""Replays of a measured step with one thing changed: by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.analysis.models.changes import Change, parse_change
from harness.analysis.models.launch_bound import graph_of
from harness.analysis.models.whatif import render_what_if, what_if
from harness.analysis.models.whatif_types import Replay
from harness.analysis.plain import json_text
from harness.analysis.results import Results, load_results
from harness.errors import AnalysisError, ConfigError
from harness.record import DeviceTelemetry, NodeTelemetry, RunRecord, Telemetry, Timeline
from tests import factories
from tests.unit.mechanism_records import World, write_world
from tests.unit.test_table import check_golden

# At N = 2 over MPI: 10 ms of compute, half a cycle of 0.5 ms, an exchange of 30 µs, and half of a
# ring of 2 · 20 µs + 613,764 bytes / (2 GB/s).
LATENCY_S, BANDWIDTH_S = 0.5 * 40e-6, 0.5 * factories.PARAMETERS * 4 / 2e9
TRANSFER_S = 0.5e-3 + 30e-6 + LATENCY_S + BANDWIDTH_S


def replays(folder: Path, *changes: str, n: int = 2) -> dict[str, Replay]:
    found = what_if(load_results(folder), changes)
    return {one.change: one for one in found if one.world_size == n and one.curve[:4] != "none"}


def saved_s(one: Replay) -> float:
    assert one.replayed is not None
    return one.measured.step_s.estimate - one.replayed.step_s.estimate


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Two and four ranks, so that latency and bandwidth are told apart; no overlap."""
    return write_world(tmp_path / "w", World(share=1.0), (1, 2, 4), blocks=2)


def full_s(n: int = 2) -> tuple[float, float]:
    """Latency and bandwidth of a ring of which nothing is hidden."""
    return 2 * (n - 1) * 20e-6, 2 * (n - 1) / n * factories.PARAMETERS * 4 / 2e9


def test_a_cycle_of_nothing_saves_half_a_cycle(plain: Path) -> None:
    one = replays(plain, "cycle_time_ms=0")["cycle_time_ms=0"]
    assert saved_s(one) == pytest.approx(0.5e-3)
    longer = replays(plain, "cycle_time_ms=5")["cycle_time_ms=5"]
    assert saved_s(longer) == pytest.approx(-2e-3)


def test_a_cycle_saves_no_more_than_is_exposed(tmp_path: Path) -> None:
    world = World(share=0.0, exchange_s=0.0, cycle_ms=1.0)

    def little(one: RunRecord) -> RunRecord:
        """An exposed transfer of 0.2 ms, in which half a cycle has no room."""
        phases, window = one.phases, one.window
        assert phases is not None
        assert window is not None
        if one.config.world_size == 1:
            return one
        less_s = phases.transfer_s - 0.2e-3
        changes = {name: getattr(phases, name) - less_s
                   for name in ("transfer_s", "exposed_sync_s", "sum_s")}  # fmt: skip
        wall_s = window.wall_s - less_s * window.steps
        return one.model_copy(update={
            "phases": phases.model_copy(update=changes),
            "window": window.model_copy(update={"wall_s": wall_s}),
        })  # fmt: skip

    folder = write_world(tmp_path / "w", world, (1, 2, 4), change=little)
    assert saved_s(replays(folder, "cycle_time_ms=0")["cycle_time_ms=0"]) == pytest.approx(0.2e-3)


@pytest.mark.parametrize("n", [2, 4])
def test_bandwidth_and_latency(plain: Path, n: int) -> None:
    found = replays(plain, "bandwidth=2x", "latency=0.25x", n=n)
    latency_s, bandwidth_s = full_s(n)
    assert saved_s(found["bandwidth=2x"]) == pytest.approx(bandwidth_s / 2)
    assert saved_s(found["latency=0.25x"]) == pytest.approx(0.75 * latency_s)
    parts = {part.name: part for part in found["bandwidth=2x"].parts}
    assert parts["all-reduce bandwidth"].after_s == pytest.approx(bandwidth_s / 2)
    assert [one.name for one in parts.values() if one.is_changed] == ["all-reduce bandwidth"]


def test_no_stragglers_and_no_sync(tmp_path: Path) -> None:
    world = World(jitter=lambda random, shape: random.exponential(1e-3, shape))
    folder = write_world(tmp_path / "w", world, (1, 2, 4), blocks=2)
    (wait_s,) = (
        point.wait_s.estimate
        for curve in load_results(folder).curves
        for point in curve.points
        if point.world_size == 4
    )
    assert wait_s > 0.5e-3
    found = replays(folder, "no-stragglers", "no-sync", n=4)
    assert saved_s(found["no-stragglers"]) == pytest.approx(wait_s)
    assert saved_s(found["no-sync"]) == pytest.approx(wait_s + world.transfer_s(4, "mpi"))


def test_parts_sum_to_the_steps(plain: Path) -> None:
    for one in replays(plain, "bandwidth=3x", "no-sync", "cycle_time_ms=0", n=4).values():
        assert sum(part.before_s for part in one.parts) == pytest.approx(
            one.measured.step_s.estimate
        )
        assert sum(part.after_s for part in one.parts) == pytest.approx(
            one.replayed.step_s.estimate
        )


def test_all_together_is_each_of_them(plain: Path) -> None:
    found = replays(plain, "bandwidth=2x", "cycle_time_ms=0", "bandwidth=2x")
    assert list(found) == ["bandwidth=2x", "cycle_time_ms=0",
                           "together: bandwidth=2x, cycle_time_ms=0"]  # fmt: skip
    alone, other, both = map(saved_s, found.values())
    assert both == pytest.approx(alone + other)


def test_what_is_refused_is_not_in_all_together(plain: Path) -> None:
    found = replays(plain, "graph", "no-sync", "cycle_time_ms=0")
    assert list(found)[-1] == "together: no-sync, cycle_time_ms=0"
    assert found["graph"].replayed is None
    assert "a CPU launches no kernels" in found["graph"].refused


def test_rates_follow_the_step(plain: Path) -> None:
    one = replays(plain, "no-sync")["no-sync"]
    ratio = one.measured.step_s.estimate / one.replayed.step_s.estimate
    assert one.gain.estimate == pytest.approx(ratio)
    rates = [x.throughput_samples_per_s.estimate for x in (one.measured, one.replayed)]
    assert rates[1] == pytest.approx(rates[0] * ratio)
    assert rates[1] == pytest.approx(2 * 75 / 10e-3)
    assert one.replayed.speedup.estimate == pytest.approx(2.0)
    assert one.replayed.efficiency.estimate == pytest.approx(1.0)
    assert one.measured.efficiency.estimate == pytest.approx(10e-3 / one.measured.step_s.estimate)


def test_noise_widens_the_interval(tmp_path: Path) -> None:
    widths = []
    for noise in (0.002, 0.05):
        folder = write_world(tmp_path / str(noise), World(noise=noise), (1, 2, 4), blocks=4)
        found = replays(folder, "no-sync")["no-sync"].replayed.step_s
        widths.append(found.high - found.low)
    assert widths[1] > 10 * widths[0] > 0


def test_one_placement_cannot_tell_latency_from_bandwidth(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(), (1, 2))
    found = replays(folder, "bandwidth=2x", "latency=0.5x")
    assert "latency cannot be told from bandwidth" in found["latency=0.5x"].refused
    assert any("at most" in line for line in found["bandwidth=2x"].assumptions)
    # Of the exposed 0.71 ms half a cycle is none of the all-reduce.
    assert saved_s(found["bandwidth=2x"]) == pytest.approx((TRANSFER_S - 0.5e-3) / 2)


def test_phases_are_laid_on_the_window(tmp_path: Path) -> None:
    def marked_slow(one: RunRecord) -> RunRecord:
        """Marking doubled every phase."""
        phases = one.phases
        assert phases is not None
        doubled = {
            name: 2 * value
            for name, value in phases.model_dump().items()
            if name.endswith("_s") and value is not None
        }
        return one.model_copy(update={"phases": phases.model_copy(update=doubled)})

    folder = write_world(tmp_path / "w", World(), (1, 2, 4), change=marked_slow)
    one = replays(folder, "no-sync")["no-sync"]
    assert saved_s(one) == pytest.approx(TRANSFER_S)


def test_a_timeline_tells_negotiation_from_the_all_reduce(tmp_path: Path) -> None:
    tuning = {"cycle_time_ms": 1.0, "controller": "mpi"}
    made = factories.config("horovod", 2, 75, backend="mpi", horovod=tuning)
    states = Timeline(
        steps=20, step_s=1e-2, plain_step_s=1e-2, negotiation_s=0.05e-3, queue_s=0.02e-3,
        copy_in_s=0.0, allreduce_s=0.1e-3, copy_out_s=0.0, cycles=1.0, tensors=3.0,
        allreduces=3.0, tensors_fused=1.0, file="timeline.json",
    )  # fmt: skip
    line = factories.timeline(made, node=4, timeline=states)
    folder = write_world(tmp_path / "w", World(), (1, 2), extra=[line])
    one = replays(folder, "bandwidth=2x")["bandwidth=2x"]
    parts = {part.name: part.before_s for part in one.parts}
    # All of the 0.05 ms has room beside the last operation of 0.04 ms.
    assert parts["negotiation"] == pytest.approx(0.05e-3)
    assert parts["all-reduce bandwidth"] == pytest.approx(TRANSFER_S - 0.5e-3 - 0.05e-3)


# Refused as a whole


def test_points_without_phases_are_refused(tmp_path: Path) -> None:
    def bare(one: RunRecord) -> RunRecord:
        return one.model_copy(update={"phases": None})

    folder = write_world(tmp_path / "w", World(), (1, 2), change=bare)
    with pytest.raises(AnalysisError, match="no-sync: it needs the phases of a step"):
        what_if(load_results(folder), ["no-sync"])


def test_without_an_all_reduce_bandwidth_is_refused(tmp_path: Path) -> None:
    def bare(one: RunRecord) -> RunRecord:
        return one.model_copy(update={"allreduce": None})

    folder = write_world(tmp_path / "w", World(), (1, 2), change=bare)
    with pytest.raises(AnalysisError, match="neither an isolated all-reduce nor a timeline"):
        what_if(load_results(folder), ["bandwidth=2x"])
    assert saved_s(replays(folder, "cycle_time_ms=0")["cycle_time_ms=0"]) == pytest.approx(0.5e-3)


def test_only_horovod_has_a_cycle(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(engine="ddp"), (2, 4), backend="gloo")
    with pytest.raises(AnalysisError, match="only Horovod has a cycle"):
        what_if(load_results(folder), ["cycle_time_ms=0"])
    latency_s = replays(folder, "latency=0x")["latency=0x"]
    assert saved_s(latency_s) == pytest.approx(LATENCY_S)


def test_one_device_synchronises_nothing(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(), (1,))
    with pytest.raises(AnalysisError, match="no point of two devices or more"):
        what_if(load_results(folder), ["no-sync"])


def test_an_empty_folder(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "none", [])
    with pytest.raises(AnalysisError, match="holds no measurements"):
        what_if(load_results(folder), ["no-sync"])


# Graphs


def on_gpu(
    utilisation: Callable[[RunRecord], float | None], **execution: bool
) -> Callable[[RunRecord], RunRecord]:
    def change(one: RunRecord) -> RunRecord:
        resolved = one.resolved.model_copy(update={"device": "cuda"})
        device = DeviceTelemetry(
            index=0, uuid="GPU-0", name="H", samples=10, utilisation_mean=utilisation(one),
            sm_activity_mean=None, memory_used_max_bytes=None, power_mean_w=None, energy_j=None,
            energy_per_sample_j=None, sm_clock_mean_mhz=None, throttle_reasons=None,
        )  # fmt: skip
        node = NodeTelemetry(
            host="node0", samples=10, interval_s=0.1, cpu_utilisation_mean=None, rank_cpu_mean=(),
            rank_rss_max_bytes=(), devices=(device,),
        )  # fmt: skip
        telemetry = Telemetry(nodes=(node,), power_mean_w=None, energy_per_sample_j=None)
        return one.model_copy(update={"resolved": resolved, "telemetry": telemetry})

    return change


def test_a_graph_takes_the_hosts_time_away(tmp_path: Path) -> None:
    world = World()
    folder = write_world(tmp_path / "w", world, (1, 2), change=on_gpu(lambda _: 0.4))
    one = replays(folder, "graph", n=1)["graph"]
    # 60 % of the step is idle, and 5 % of it brings data, which no graph changes.
    assert saved_s(one) == pytest.approx(0.6 * 10e-3 - 0.05 * 10e-3)
    step_s = world.step_s(2)
    two = replays(folder, "graph", n=2)["graph"]
    assert saved_s(two) == pytest.approx(0.6 * step_s - TRANSFER_S - 0.5e-3)
    assert {part.name for part in two.parts if part.is_changed} == {
        "forward", "backward", "update"
    }  # fmt: skip


def test_a_shorter_backward_pass_hides_less(tmp_path: Path) -> None:
    # 20 ms of all-reduce, of which 2 ms are exposed; the backward pass is 5.5 ms and more is hidden
    # than it has, so all that it no longer has is exposed.
    world = World(engine="ddp", alpha_s=10e-3, bandwidth=1e15, share=0.8)
    folder = write_world(
        tmp_path / "w", world, (2, 4), backend="gloo", change=on_gpu(lambda _: 0.1)
    )
    one = replays(folder, "graph", n=2)["graph"]
    parts = {part.name: part for part in one.parts}
    hidden_s = 0.2 * 20e-3
    more_s = hidden_s - parts["backward"].after_s
    assert more_s > 1e-3
    grown = parts["all-reduce bandwidth"]
    assert grown.after_s - grown.before_s == pytest.approx(more_s)


def test_a_busy_device_is_not_launch_bound(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "w", World(), (1, 2), change=on_gpu(lambda _: 0.95))
    with pytest.raises(AnalysisError, match="not launch-bound: a kernel ran in 95 %"):
        what_if(load_results(folder), ["graph"])


def _two_batches(folder: Path, larger_s: float) -> Results:
    """Write batches of 75 and 300, without utilisation; a step of 300 takes ``larger_s``."""
    change = on_gpu(lambda _: None)
    kept: list[RunRecord] = []

    def keep(one: RunRecord) -> RunRecord:
        kept.append(change(one).sealed())
        return kept[-1]

    write_world(folder / "large", World(compute_s=larger_s), (1, 2), batch=300, change=keep)
    other = [one.model_copy(update={"steps_sha256": None}).sealed() for one in kept]
    world = World(raw=False)
    return load_results(write_world(folder / "both", world, (1, 2), extra=other, change=change))


def test_batches_that_last_alike_are_launch_bound(tmp_path: Path) -> None:
    results = _two_batches(tmp_path, 10e-3)
    found = {(one.curve, one.world_size): one for one in what_if(results, ["graph"])}
    one = found["mpi, batch 75", 1]
    # Of 9.5 ms without data a quarter is what the device is taken to need.
    assert saved_s(one) == pytest.approx(0.75 * 9.5e-3)
    assert any("best case" in line for line in one.assumptions)
    assert "nothing shows that the step is launch-bound" in found["mpi, batch 300", 1].refused


def test_batches_that_last_longer_are_not(tmp_path: Path) -> None:
    results = _two_batches(tmp_path, 30e-3)
    (curve,) = (one for one in results.curves if one.label == "mpi, batch 75")
    refused = graph_of(curve, curve.points[0], results.curves).refused
    assert "a batch of 300 takes 3 times as long" in refused


def test_a_step_that_is_a_graph_already(tmp_path: Path) -> None:
    keys = {"execution": {"graph": True}}
    folder = write_world(tmp_path / "w", World(), (1, 2), change=on_gpu(lambda _: 0.4), **keys)
    with pytest.raises(AnalysisError, match="one graph already"):
        what_if(load_results(folder), ["graph"])


# What a user writes, and reads


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("cycle_time_ms=0", Change("cycle_time_ms", 0.0)),
        ("bandwidth=2x", Change("bandwidth", 2.0)),
        (" bandwidth=1.5 ", Change("bandwidth", 1.5)),
        ("latency=0x", Change("latency", 0.0)),
        ("no-stragglers", Change("no-stragglers")),
    ],
)
def test_changes_are_read(text: str, change: Change) -> None:
    assert parse_change(text) == change
    assert parse_change(change.text) == change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bandwith=2x", "did you mean 'bandwidth'"),
        ("bandwidth", "takes a factor, e.g. bandwidth=2x"),
        ("bandwidth=0x", "takes a factor"),
        ("cycle_time_ms=-1", "takes milliseconds"),
        ("cycle_time_ms=2x", "takes milliseconds"),
        ("latency=nan", "takes a factor"),
        ("cycle_time_ms=1e300", "from 0 to 1,000,000"),
        ("bandwidth=1e-308x", "from 1e-06 to 1,000,000"),
        ("latency=1_0x", "takes a factor"),
        ("latency=\u0662x", "takes a factor"),
        ("graph=1", "graph takes no value"),
        ("", "knows no ''"),
    ],
)
def test_changes_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_change(text)


def _text(folder: Path, changes: Sequence[str]) -> str:
    return render_what_if(what_if(load_results(folder), changes))


def test_the_text(tmp_path: Path) -> None:
    world = World(jitter=lambda random, shape: random.exponential(1e-3, shape), noise=0.01)
    folder = write_world(tmp_path / "w", world, (1, 2, 4))
    text = _text(folder, ["cycle_time_ms=0", "bandwidth=2x", "no-stragglers", "graph"])
    assert text.startswith("A replay, no measurement")
    check_golden("what_if.txt", text + "\n")


def test_json_says_that_it_is_no_measurement(plain: Path) -> None:
    text = json_text(what_if(load_results(plain), ["no-sync"]))
    assert '"is_measurement": false' in text
