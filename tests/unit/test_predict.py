from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import cli
from harness.analysis.models import registry, render
from harness.analysis.models.api import Network, Parameter, Place, Term
from harness.analysis.models.predict import packed, place_text, predict
from harness.analysis.models.prediction import CurvePrediction, Prediction
from harness.analysis.models.render import render_predictions
from harness.analysis.plots.prediction import prediction
from harness.analysis.results import Results, load_results
from harness.cli.predict import parse_devices, parse_network
from harness.errors import AnalysisError, ConfigError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, failure, record

GOLDEN = Path(__file__).parents[1] / "golden" / "analysis"
STRONG = {"scaling": "strong"}


def amdahl_rate(n: int) -> float:
    return 4096 / (0.5 * (0.1 + 0.9 / n))


def gustafson_rate(n: int) -> float:
    return 1000 * (n - 0.3 * (n - 1))


def measured(
    rate: Callable[[int], float],
    counts: Sequence[int] = (1, 2, 4, 8, 16),
    *,
    blocks: int = 3,
    noise: float = 0.0,
    node: int = 8,
    base: bool = True,
    seed: int = 1,
    **more: Any,
) -> list[RunRecord]:
    """Records of Horovod with the throughput ``rate(N)``; its base has that of one device."""
    random = np.random.default_rng(seed)
    batch = 4096 if more else 64
    made = []
    for block in range(blocks):
        if base:
            seen = rate(1) * math.exp(random.normal(0, noise))
            plain = config("none", 1, batch, **more)
            made.append(record(plain, block, throughput=seen, is_base=True))
        for n in counts:
            seen = rate(n) * math.exp(random.normal(0, noise))
            point = config("horovod", n, batch, backend="mpi", **more)
            made.append(record(point, block, throughput=seen, node=node))
    return made


@pytest.fixture
def results(tmp_path: Path) -> Callable[..., Results]:
    def made(records: list[RunRecord], **how: Any) -> Results:
        folder = factories.write_results(tmp_path / f"s{len(list(tmp_path.iterdir()))}", records)
        return load_results(folder, **how)

    return made


@pytest.fixture(autouse=True)
def _laws_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the mechanism, which has tests of its own."""
    monkeypatch.setattr(registry, "MECHANISMS", {})


def single(found: Sequence[CurvePrediction]) -> CurvePrediction:
    (one,) = found
    return one


def row(one: CurvePrediction, n: int) -> Prediction:
    (found,) = [row for row in one.predictions if row.world_size == n]
    return found


def relative_width(found: Prediction) -> float:
    rate = found.throughput_samples_per_s
    assert rate is not None
    assert rate.low is not None
    assert rate.high is not None
    return math.log(rate.high / rate.low)


def test_the_law_that_made_the_records_is_chosen_and_predicts(results: Any) -> None:
    one = single(predict(results(measured(amdahl_rate, **STRONG)), (64, 4)))
    assert one.models[0].name == "amdahl"  # before the USL, which is the same with more parameters
    assert [found.world_size for found in one.predictions] == [4, 64]
    far = row(one, 64)
    assert far.throughput_samples_per_s is not None
    assert far.throughput_samples_per_s.estimate == pytest.approx(amdahl_rate(64), rel=1e-6)
    assert far.speedup is not None
    assert far.speedup.estimate == pytest.approx(amdahl_rate(64) / amdahl_rate(1), rel=1e-6)
    assert far.efficiency is not None
    assert far.efficiency.estimate == pytest.approx(far.speedup.estimate / 64)
    assert far.epoch_s is not None
    assert far.epoch_s.estimate == pytest.approx(750_000 / amdahl_rate(64), rel=1e-6)
    assert (far.times_largest, far.extrapolated) == (4.0, True)
    assert (row(one, 4).times_largest, row(one, 4).extrapolated) == (0.25, False)
    assert not {"gustafson", "gustafson from 2"} & {tried.name for tried in one.models}
    assert any("law of weak scaling" in left.reason for left in one.left_out)


def test_the_held_out_error_is_signed_and_of_the_largest_count(results: Any) -> None:
    def rate(n: int) -> float:
        return gustafson_rate(n) * (0.9 if n == 16 else 1.0)

    one = single(predict(results(measured(rate)), (32,)))
    by_name = {tried.name: tried for tried in one.models}
    (test,) = by_name["gustafson"].tests
    assert test.world_size == one.held_out == 16
    assert test.error == pytest.approx(1 / 0.9 - 1, rel=1e-6)
    errors = [tried.log_error for tried in one.models]
    assert errors == pytest.approx(sorted(errors))


def test_whether_a_test_lies_in_the_models_interval(results: Any) -> None:
    def bent(n: int) -> float:
        return gustafson_rate(n) * (0.5 if n == 16 else 1.0)

    fine = single(predict(results(measured(gustafson_rate, noise=0.02, blocks=5)), (32,)))
    wrong = single(predict(results(measured(bent, noise=0.02, blocks=5)), (32,)))
    one_block = single(predict(results(measured(gustafson_rate, blocks=1)), (32,)))
    inside = [
        next(t for t in one.models if t.name == "gustafson").tests[0].inside
        for one in (fine, wrong, one_block)
    ]
    assert inside == [True, False, None]


def test_intervals_grow_with_distance_noise_and_the_held_out_error(results: Any) -> None:
    def bent(n: int) -> float:
        return gustafson_rate(n) * (0.8 if n == 16 else 1.0)

    quiet, noisy, wrong = (
        single(predict(results(records), (8, 32, 64, 128)))
        for records in (
            measured(gustafson_rate, noise=0.002, seed=3),
            measured(gustafson_rate, noise=0.02, seed=3),
            measured(bent, noise=0.002, seed=3),
        )
    )
    for one in (quiet, noisy, wrong):
        widths = [relative_width(found) for found in one.predictions]
        assert widths == sorted(widths)
    assert relative_width(row(noisy, 64)) > 2 * relative_width(row(quiet, 64))
    assert relative_width(row(wrong, 64)) > 5 * relative_width(row(quiet, 64))
    rate = row(wrong, 64).throughput_samples_per_s
    assert rate is not None
    assert rate.method == "model (t, 3 blocks of one allocation), held-out error"


def test_one_block_has_the_held_out_error_alone(results: Any) -> None:
    def bent(n: int) -> float:
        return gustafson_rate(n) * (0.95 if n == 16 else 1.0)

    one = single(predict(results(measured(bent, blocks=1)), (32,)))
    rate = row(one, 32).throughput_samples_per_s
    assert rate is not None
    assert rate.method == "model (one block: no interval), held-out error"
    error = one.models[0].log_error
    assert error is not None
    # g = 1 step beyond: a standard error of 2 e and the misfit, on either side 1.96 times.
    half = 1.96 * math.hypot(2 * error, one.models[0].misfit)
    assert relative_width(row(one, 32)) / 2 == pytest.approx(half, rel=0.02)


@pytest.mark.parametrize("counts", [(1,), (1, 2), (4, 8)])
def test_fewer_than_three_counts_predict_nothing(results: Any, counts: tuple[int, ...]) -> None:
    one = single(predict(results(measured(gustafson_rate, counts)), (64,)))
    assert one.refused is not None
    assert "cannot show how a step depends on N: measure at least 3 device counts" in one.refused
    assert (one.predictions, one.models, one.lines) == ((), (), ())
    assert "nothing is predicted" in render_predictions([one])
    assert prediction(one) is None


def test_no_law_predicts_onto_nodes_that_were_not_measured(results: Any) -> None:
    alone = results(measured(gustafson_rate, node=16))
    for network in (None, Network(3e-6, 25e9)):  # laws know nothing of networks
        one = single(predict(alone, (16, 32), network=network))
        assert row(one, 16).refused is None
        refused = row(one, 32)
        assert refused.throughput_samples_per_s is None
        assert "measure on two, or give --inter-node-us and --inter-node-gbs" in str(
            refused.refused
        )
    wide = single(predict(alone, (32,), devices_per_node=32))
    assert row(wide, 32).refused is None
    taken = "a node of 32 devices is taken; 16 at most were measured"
    assert any(taken in note for note in wide.notes)
    unasked = single(predict(alone, ()))  # as nothing tells of a second node, on a larger one
    assert [(one.placement, one.refused) for one in unasked.predictions] == [
        ("32", None), ("64", None), ("128", None),
    ]  # fmt: skip
    two_nodes = single(predict(results(measured(gustafson_rate, node=8)), (64,)))
    assert (row(two_nodes, 64).placement, row(two_nodes, 64).nodes) == ("8x8", 8)
    assert row(two_nodes, 64).refused is None
    assert any("several nodes were measured at the held-out N alone" in n for n in two_nodes.notes)


@dataclass(frozen=True)
class Stub:
    """A mechanism: it knows a network, and is wrong by half at any N."""

    network: Network | None
    name: str = "mechanism"
    formula: str = "step = 1 s"
    parameters: tuple[Parameter, ...] = ()
    notes: tuple[str, ...] = ("a stub",)

    def step_s(self, place: Place) -> float:
        if place.nodes > 1 and self.network is None:
            raise AnalysisError("no network")
        return 2.0 * place.world_size * 64 / gustafson_rate(place.world_size)

    def terms(self, place: Place) -> tuple[Term, ...]:
        step_s = self.step_s(place)
        return (Term("compute", 0.9 * step_s, "as fast"), Term("wire", 0.1 * step_s, "as wide"))

    def draws_s(self, place: Place, count: int) -> Any:
        return np.full(count, self.step_s(place))


def stub(results: Results, curve: Any, *, network: Any = None, allreduce: Any = None) -> Stub:
    assert results.curves
    return Stub(network)


def test_a_mechanism_with_a_network_speaks_where_laws_cannot(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MECHANISMS", {"mechanism": f"{__name__}:stub"})
    alone = results(measured(gustafson_rate, node=16))
    one = single(predict(alone, (8, 32), network=Network(3e-6, 25e9)))
    assert one.models[0].name.startswith("gustafson")
    assert (row(one, 8).model or "").startswith("gustafson")
    far = row(one, 32)
    assert (far.model, far.term, far.assumption) == ("mechanism", "compute", "as fast")
    assert far.throughput_samples_per_s is not None
    assert far.throughput_samples_per_s.estimate == pytest.approx(gustafson_rate(32) / 2)
    # Its own held-out error of ln 2 is in its interval: two standard errors of it, one step on.
    assert relative_width(far) / 2 > 1.96 * 2 * math.log(2)
    text = render_predictions([one])
    assert "at N = 32: mechanism, the best of those that can speak of that place" in text
    assert row(single(predict(alone, (32,))), 32).refused is not None


def test_a_model_that_cannot_be_tested_stands_behind_those_that_can(
    results: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MECHANISMS", {"mechanism": f"{__name__}:stub"})
    one = single(predict(results(measured(gustafson_rate, node=8)), (64,)))
    assert one.models[-1].name == "mechanism"
    assert (one.models[-1].log_error, one.models[-1].untested) == (None, "no network")
    assert "not tested: no network" in render_predictions([one])


def test_what_does_not_divide_the_global_batch_is_refused(results: Any) -> None:
    one = single(predict(results(measured(amdahl_rate, **STRONG)), (24, 32)))
    assert row(one, 24).refused == "no divisor of the global batch 4096"
    assert row(one, 32).refused is None
    assert any("a rank's batch falls to 128, 256 was the smallest" in note for note in one.notes)


def test_the_assumption_that_dominates_is_that_of_the_part_that_changes_most(results: Any) -> None:
    def rate(n: int) -> float:
        return 900 * n / (1 + 0.01 * (n - 1) + 0.002 * n * (n - 1))

    one = single(predict(results(measured(rate, (1, 2, 4, 8, 16, 32))), (64,)))
    found = row(one, 64)
    assert found.model == "usl"
    assert found.term == "crosstalk"
    assert "N·(N − 1)" in str(found.assumption)


def test_a_part_that_stays_does_not_dominate_however_long_it_is(results: Any) -> None:
    def rate(n: int) -> float:
        return 4096 / (0.5 * (0.6 + 0.4 / n))

    one = single(predict(results(measured(rate, **STRONG)), (64,)))
    assert (row(one, 64).model, row(one, 64).term) == ("amdahl", "parallel part")


def test_without_counts_doublings_are_predicted(results: Any) -> None:
    one = single(predict(results(measured(gustafson_rate)), ()))
    assert [found.world_size for found in one.predictions] == [32, 64, 128]
    assert all(found.extrapolated for found in one.predictions)


def test_far_out_nothing_is_told_and_all_numbers_stay_finite(results: Any) -> None:
    broken = {1: 1000.0, 2: 2000.0, 4: 1.0}  # the largest N breaks down, as on too few cores
    for noise in (0.0, 0.3):
        found = results(measured(broken.__getitem__, tuple(broken), noise=noise, blocks=2, node=8))
        one = single(predict(found, (1_000_000,), devices_per_node=1_000_000))
        made = row(one, 1_000_000)
        for interval in (made.throughput_samples_per_s, made.speedup, made.epoch_s):
            assert interval is not None
            assert 0 < interval.low < 1e-6 * interval.estimate
            assert 1e6 * interval.estimate < interval.high < math.inf
        assert "[wide]" in render_predictions((one,))


def test_a_peak_without_an_upper_end_is_endless() -> None:
    assert render._number(math.inf) == "∞"


def test_models_from_2_do_not_speak_of_one_device(results: Any) -> None:
    def rate(n: int) -> float:  # N = 1 has no all-reduce and is far above the law of the others
        return gustafson_rate(n) * (2 if n == 1 else 1)

    one = single(predict(results(measured(rate)), (1, 32)))
    assert one.models[0].name == "gustafson from 2"
    assert row(one, 32).model == "gustafson from 2"
    assert row(one, 1).model not in (None, "gustafson from 2", "usl from 2")
    line = next(line for line in one.lines if line.model == "gustafson from 2")
    assert [point.world_size for point in line.points] == [2, 4, 8, 16, 32]


def test_where_n_1_was_not_measured_no_model_is_there_twice(results: Any) -> None:
    one = single(predict(results(measured(gustafson_rate, (2, 4, 8, 16))), (32,)))
    assert not any(tried.name.endswith("from 2") for tried in one.models)


def test_the_base_alone_is_nothing_to_predict(results: Any) -> None:
    plain = [record(config("none", 1, 64), block) for block in range(3)]
    with pytest.raises(AnalysisError, match="all launches are of one device alone"):
        predict(results(plain), (8,))


def test_without_a_base_there_is_no_speedup(results: Any) -> None:
    one = single(predict(results(measured(gustafson_rate, base=False)), (32,)))
    assert (row(one, 32).speedup, row(one, 32).efficiency) == (None, None)
    text = render_predictions([one])
    assert "no speedup: no launch is its base none@1" in text
    assert " S " not in text.splitlines()[2]


def test_the_bases_own_scatter_is_in_the_speedup(results: Any) -> None:
    records = measured(gustafson_rate, noise=0.0)
    shaken = [
        one if not one.block.is_base else record(one.config, one.block.repeat, is_base=True,
                                                  throughput=1000 * (1 + 0.1 * one.block.repeat))
        for one in records
    ]  # fmt: skip
    found = row(single(predict(results(shaken), (32,))), 32)
    assert found.speedup is not None
    assert found.speedup.low is not None
    assert found.speedup.high is not None
    assert found.speedup.high / found.speedup.low > 1.4
    assert relative_width(found) < 0.01


def test_mixed_hardware_is_refused_or_named(results: Any) -> None:
    records = measured(gustafson_rate)
    other = factories.PROVENANCE | {"cpu_model": "Other CPU"}
    mixed = [
        one.model_copy(update={"provenance": other}).sealed() if one.block.repeat else one
        for one in records
    ]
    with pytest.raises(AnalysisError, match="unlike hardware or software"):
        results(mixed)
    one = single(predict(results(mixed, mixed=True), (32,)))
    assert any("unlike launches mixed" in note for note in one.notes)


def test_an_empty_folder_and_one_of_failures_say_what_is_missing(results: Any) -> None:
    with pytest.raises(AnalysisError, match=r"a prediction: .* holds no measurements; run"):
        predict(results([]), (8,))
    failed = [failure(config("horovod", 2, 64, backend="mpi"))]
    with pytest.raises(AnalysisError, match=r"its only launch failed.*probably out of memory"):
        predict(results(failed), (8,))


def test_counts_that_are_none_are_refused(results: Any) -> None:
    found = results(measured(gustafson_rate))
    for wrong in ((0,), (-4,), (10**7,)):
        with pytest.raises(ConfigError, match="a device count is from 1 to"):
            predict(found, wrong)
    with pytest.raises(ConfigError, match="a device count"):
        predict(found, (8,), devices_per_node=-1)


@given(n=st.integers(1, 5000), node=st.integers(1, 64))
def test_packed_fills_a_node_before_the_next(n: int, node: int) -> None:
    place = packed(n, node)
    assert place.world_size == n
    assert place.nodes == -(-n // node)
    assert set(place.placement[:-1]) <= {node}
    assert 1 <= place.placement[-1] <= node


@pytest.mark.parametrize(
    ("placement", "text"),
    [((4,), "4"), ((8, 8), "2x8"), ((8, 8, 2), "2x8+2"), ((8, 2), "8+2"), ((2, 2, 8), "2x2+8")],
)
def test_places_are_short(placement: tuple[int, ...], text: str) -> None:
    assert place_text(placement) == text


def test_the_text_of_predictions(results: Any) -> None:
    from tests.unit.test_table import check_golden

    weak = predict(results(measured(gustafson_rate, noise=0.01, node=8)), (8, 64, 60))
    made = measured(amdahl_rate, (1, 2, 4, 8), noise=0.01, **STRONG)
    strong = predict(results(made), (16, 24), devices_per_node=16)
    few = predict(results(measured(gustafson_rate, (1, 2))), (64,))
    check_golden("predict.txt", render_predictions([*weak, *strong, *few]) + "\n")


@pytest.mark.parametrize("text", ["", "8,", "a", "0", "-1", "1.5", "8;16", "9" * 5000, "²"])
def test_wrong_lists_of_devices_are_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--devices: .* is no device count; give e\.g\."):
        parse_devices(text)


def test_lists_of_devices() -> None:
    assert parse_devices("64, 256,1024") == (64, 256, 1024)
    assert parse_devices(None) == ()


@pytest.mark.parametrize(
    ("latency", "bandwidth", "message"),
    [
        (3.0, None, "--inter-node-gbs is missing"),
        (None, 25.0, "--inter-node-us is missing"),
        (0.0, 25.0, "--inter-node-us: 0 is not a positive number"),
        (3.0, math.nan, "--inter-node-gbs: nan is not"),
        (3.0, math.inf, "--inter-node-gbs: inf is not"),
    ],
)
def test_a_network_takes_both_flags(
    latency: float | None, bandwidth: float | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_network(latency, bandwidth)


def test_a_networks_units() -> None:
    assert parse_network(None, None) is None
    found = parse_network(3.0, 25.0)
    assert found is not None
    assert found.latency_s == pytest.approx(3e-6)
    assert found.bandwidth_bytes_per_s == 25e9


def test_the_command_prints_text_and_json(tmp_path: Path, capsys: Any) -> None:
    factories.write_results(tmp_path / "s", measured(gustafson_rate))
    argv = ["predict", "s", "--results", str(tmp_path), "--devices", "64", "--devices-per-node"]
    assert cli.main([*argv, "64"]) == 0
    assert "gustafson" in capsys.readouterr().out
    assert cli.main([*argv, "64", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["predictions"]
    (found,) = one["predictions"]
    assert found["throughput_samples_per_s"]["estimate"] == pytest.approx(gustafson_rate(64))
    assert one["models"][0]["tests"][0]["world_size"] == 16
    assert one["lines"][0]["points"][-1]["world_size"] == 64


@pytest.mark.parametrize(
    ("counts", "flags", "message"),
    [
        ((1, 2), ["--devices", "64"], "N = 1 and 2 cannot show how a step depends on N"),
        ((1, 2, 4), ["--devices", "640"], "N = 640: on several nodes, and all was measured on one"),
        ((1, 2, 4), ["--devices", "x"], "--devices: 'x' is no device count"),
        ((1, 2, 4), ["--inter-node-us", "3"], "--inter-node-gbs is missing"),
        ((1, 2, 4), ["--what-if", "graph", "--devices-per-node", "8"], "need --devices"),
        ((1, 2, 4), ["--devices", "8", "--allreduce", "nowhere"], "nowhere"),
    ],
)
def test_errors_of_the_command_are_one_line(
    tmp_path: Path, capsys: Any, counts: Any, flags: list[str], message: str
) -> None:
    factories.write_results(tmp_path / "s", measured(gustafson_rate, counts))
    assert cli.main(["predict", "s", "--results", str(tmp_path), *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_what_if_alone_predicts_nothing(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.analysis.models import whatif

    monkeypatch.setattr(whatif, "what_if", lambda results, changes: tuple(changes))
    monkeypatch.setattr(whatif, "render_what_if", lambda replays: f"replayed {replays}")
    factories.write_results(tmp_path / "s", measured(gustafson_rate))
    argv = ["predict", "s", "--results", str(tmp_path), "--what-if", "graph"]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == "replayed ('graph',)\n"
    assert cli.main([*argv, "--devices", "32", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"predictions", "what_if"}


def test_the_figure_holds_what_was_measured_predicted_and_held_out(results: Any) -> None:
    one = single(predict(results(measured(gustafson_rate, noise=0.01)), (32, 64)))
    plot = prediction(one)
    assert plot is not None
    rows = {kind: [r for r in plot.rows if r["row"] == kind] for kind in
            ("measured", "held out", "model")}  # fmt: skip
    assert [r["devices"] for r in rows["measured"]] == [1, 2, 4, 8, 16]
    assert {r["devices"] for r in rows["held out"]} == {16}
    assert {r["model"] for r in rows["held out"]} == {tried.name for tried in one.models}
    assert {r["devices"] for r in rows["model"] if r["extrapolated"]} == {32, 64}
    assert {r["model"] for r in rows["model"] if r["chosen"]} == {one.models[0].name}
    ax = plot.figure.axes[0]
    dashed = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert len(dashed) == len(one.lines)
    assert all(min(line.get_xdata()) == 16 for line in dashed)
    assert len(ax.collections) == 1  # the band of the chosen model
    assert plot.image("png").startswith(b"\x89PNG")
    again = prediction(replace(one))
    assert again is not None
    assert again.csv_text() == plot.csv_text()
