"""Means over the window from planted series, and the table of raw ones."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import telemetry
from harness.telemetry.series import DeviceSeries, NodeSeries
from harness.telemetry.summary import Within

EPOCH_S = 1_800_000_000.0
START_S, END_S = EPOCH_S + 1.0, EPOCH_S + 2.0  # of the window


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def counter(times_s: np.ndarray, rate: float, outside: float) -> np.ndarray:
    """Grow by ``rate`` a second inside the window and by ``outside`` elsewhere."""
    inside = np.clip(times_s, START_S, END_S) - START_S
    return rate * inside + outside * (times_s - EPOCH_S - inside)


def inside_or(times_s: np.ndarray, inside: float, outside: float) -> np.ndarray:
    return np.where((times_s >= START_S) & (times_s <= END_S), inside, outside)


def device(times_s: np.ndarray, index: int = 0, **changes: Any) -> DeviceSeries:
    columns = {
        "utilisation": inside_or(times_s, 0.75, 0.1),
        "sm_activity": inside_or(times_s, 0.5, 0.1),
        "memory_used_bytes": inside_or(times_s, 1 << 30, 1 << 40),
        "power_w": inside_or(times_s, 400.0, 90.0),
        "energy_j": 5e6 + counter(times_s, 410.0, 90.0),
        "sm_clock_mhz": inside_or(times_s, 1700.0, 200.0),
        "throttle_reasons_bits": inside_or(times_s, 0x1 | 0x4, 0x40),
    }
    facts: dict[str, Any] = {"uuid": f"GPU-{index}", "name": "Planted", "ranks": 1}
    return DeviceSeries(**{"index": index, "columns": columns, **facts, **changes})


def node(times_s: np.ndarray | None = None, gpus: int = 0, **changes: Any) -> NodeSeries:
    """One sample every 100 ms of 3 s, two ranks; the window is the middle second."""
    if times_s is None:
        times_s = EPOCH_S + np.arange(31) / 10.0
    fields: dict[str, Any] = {
        "host": "planted",
        "interval_s": 0.1,
        "times_s": times_s,
        "segment": np.zeros(len(times_s)),
        "cpu_busy_s": counter(times_s, 3.0, 0.5),
        "cpu_total_s": 8.0 * (times_s - EPOCH_S),
        "rank_cpu_s": np.stack([counter(times_s, 1.5, 0.0), counter(times_s, 0.5, 9.0)]),
        "rank_rss_bytes": np.stack([inside_or(times_s, 1e6, 9e9), inside_or(times_s, 2e6, 9e9)]),
        "devices": tuple(device(times_s, index) for index in range(gpus)),
    }
    return NodeSeries(**{**fields, **changes})


def test_only_the_window_counts() -> None:
    told = telemetry.summarise([(node(gpus=2), START_S, END_S)], samples=1000)
    (only,) = told.nodes
    assert (only.host, only.interval_s) == ("planted", 0.1)
    assert only.samples == 11
    assert only.cpu_utilisation_mean == pytest.approx(3.0 / 8.0)
    assert only.rank_cpu_mean == pytest.approx((1.5, 0.5))
    assert only.rank_rss_max_bytes == (1_000_000, 2_000_000)
    first, second = only.devices
    assert (first.index, first.uuid, second.index) == (0, "GPU-0", 1)
    assert first.utilisation_mean == pytest.approx(0.75)
    assert first.sm_activity_mean == pytest.approx(0.5)
    assert first.memory_used_max_bytes == 1 << 30
    assert first.power_mean_w == pytest.approx(400.0)
    assert first.sm_clock_mean_mhz == pytest.approx(1700.0)
    assert first.throttle_reasons == ("sw_power_cap",)
    assert first.energy_j == pytest.approx(410.0)  # the counter's, not power's
    assert first.energy_per_sample_j == pytest.approx(410.0 / 500)  # its rank's samples
    assert told.power_mean_w == pytest.approx(800.0)
    assert told.energy_per_sample_j == pytest.approx(820.0 / 1000)


def test_energy_is_of_the_whole_window_though_samples_end_within_it() -> None:
    times_s = EPOCH_S + np.arange(16) / 5.0 + 0.1  # in the window from 1.1 to 1.9
    told = telemetry.summarise([(node(times_s, gpus=1), START_S, END_S)], samples=10)
    assert told.nodes[0].samples == 5
    assert told.energy_per_sample_j == pytest.approx(41.0)


def test_without_a_counter_energy_is_the_power_over_the_window() -> None:
    series = node(gpus=1)
    (gpu,) = series.devices
    columns = {k: v for k, v in gpu.columns.items() if k != "energy_j"}
    series = replace(series, devices=(replace(gpu, columns=columns),))
    (told,) = telemetry.summarise([(series, START_S, END_S)], samples=10).nodes[0].devices
    assert told.energy_j == pytest.approx(400.0)


def test_a_counter_that_was_set_anew_tells_nothing() -> None:
    series = node(gpus=1)
    series.devices[0].columns["energy_j"][16:] -= 1e6
    told = telemetry.summarise([(series, START_S, END_S)], samples=10)
    assert told.nodes[0].devices[0].energy_j is None
    assert told.nodes[0].devices[0].power_mean_w == pytest.approx(400.0)
    assert told.energy_per_sample_j is None


def test_waiting_for_a_disk_may_be_counted_back_for_a_moment() -> None:
    series = node()
    series.cpu_total_s[15] = series.cpu_total_s[14] - 0.01
    (told,) = telemetry.summarise([(series, START_S, END_S)], samples=10).nodes
    assert told.cpu_utilisation_mean == pytest.approx(3.0 / 8.0)


def test_a_total_misses_no_device() -> None:
    series = node(gpus=2)
    silent = replace(series.devices[1], columns={})
    series = replace(series, devices=(series.devices[0], silent))
    told = telemetry.summarise([(series, START_S, END_S)], samples=10)
    assert told.power_mean_w is None
    assert told.energy_per_sample_j is None
    absent = told.nodes[0].devices[1]
    assert absent.utilisation_mean is None
    assert absent.memory_used_max_bytes is None
    assert absent.throttle_reasons is None
    assert told.nodes[0].devices[0].power_mean_w == pytest.approx(400.0)


def test_nodes_add_up_each_in_its_own_window() -> None:
    late = node(gpus=1)
    shifted = replace(late, times_s=late.times_s + 50.0)
    nodes = [(node(gpus=1), START_S, END_S), (shifted, START_S + 50.0, END_S + 50.0)]
    told = telemetry.summarise(nodes, samples=100)
    assert [each.samples for each in told.nodes] == [11, 11]
    assert told.power_mean_w == pytest.approx(800.0)
    assert told.energy_per_sample_j == pytest.approx(8.2)


def test_on_a_cpu_there_are_no_devices_and_no_power() -> None:
    told = telemetry.summarise([(node(), START_S, END_S)], samples=10)
    assert told.nodes[0].devices == ()
    assert told.power_mean_w is None
    assert told.energy_per_sample_j is None


def test_means_are_weighted_by_time() -> None:
    times_s = EPOCH_S + array(1.0, 1.1, 1.9)
    within = Within(node(times_s), START_S, END_S)
    # Linear between samples: (0 + 1)/2 for 0.1 s, (1 + 3)/2 for 0.8 s.
    assert within.mean(array(0.0, 1.0, 3.0)) == pytest.approx((0.05 + 1.6) / 0.9)
    # The first value is of the time before the window.
    assert within.mean_of_intervals(array(99.0, 1.0, 3.0)) == pytest.approx((0.1 + 2.4) / 0.9)
    assert within.rate(array(10.0, 10.5, 11.8)) == pytest.approx(2.0)


def test_what_did_not_answer_is_left_out() -> None:
    times_s = EPOCH_S + array(1.0, 1.2, 1.4, 1.6)
    within = Within(node(times_s), START_S, END_S)
    assert within.mean(array(1.0, np.nan, 3.0, 3.0)) == pytest.approx((2.0 * 0.4 + 3.0 * 0.2) / 0.6)
    assert within.mean(array(np.nan, np.nan, 3.0, np.nan)) is None
    assert within.mean_of_intervals(array(np.nan, np.nan, 3.0, 1.0)) == pytest.approx(2.0)


def test_a_pause_within_the_window_is_no_time() -> None:
    times_s = EPOCH_S + array(1.0, 1.1, 1.8, 1.9)
    series = node(times_s, segment=array(0.0, 0.0, 1.0, 1.0))
    within = Within(series, START_S, END_S)
    assert within.rate(array(0.0, 1.0, 70.0, 71.0)) == pytest.approx(10.0)
    assert within.mean(array(2.0, 2.0, 4.0, 4.0)) == pytest.approx(3.0)
    assert within.mean_of_intervals(array(9.0, 1.0, 9.0, 3.0)) == pytest.approx(2.0)
    # 0.2 s of 1 s are no ground for the energy of all of it.
    assert within.over_window(10.0, array(0.0, 1.0, 70.0, 71.0)) is None


@pytest.mark.parametrize("times", [(), (1.5,), (0.5, 2.5)])
def test_under_two_samples_there_is_no_figure(times: tuple[float, ...]) -> None:
    times_s = EPOCH_S + array(*times)
    within = Within(node(times_s), START_S, END_S)
    ones = np.ones(len(times))
    assert within.samples == len(times) % 2
    for figure in (within.rate, within.mean, within.mean_of_intervals, within.largest):
        assert figure(ones) is None
    assert within.share(ones, ones) is None
    assert within.over_window(1.0, ones) is None


@pytest.mark.parametrize(
    ("busy_s", "total_s", "share"),
    [
        pytest.param((81345.62, 81347.64), (513.51, 515.53), 1.0, id="rounding"),
        pytest.param((5.0, 5.3), (9.0, 9.2), 1.0, id="rest stepped back"),
        pytest.param((5.0, 4.9), (9.0, 9.2), 0.0, id="work stepped back"),
    ],
)
def test_a_share_stays_between_none_and_all(
    busy_s: tuple[float, float], total_s: tuple[float, float], share: float
) -> None:
    busy, total = array(*busy_s), array(*total_s)
    series = node(START_S + array(0.0, 1.0), cpu_busy_s=busy, cpu_total_s=total)
    assert not 0.0 <= float(np.diff(busy)[0] / np.diff(total)[0]) <= 1.0
    assert Within(series, START_S, END_S).share(busy, total) == share
    rows = telemetry.table([series]).to_pylist()
    assert [r["cpu_utilisation"] for r in rows if r["subject"] == "node"] == [None, share]


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=30), st.floats(0.1, 1e3))
def test_what_does_not_change_has_its_own_value_as_mean(gaps: list[float], value: float) -> None:
    times_s = START_S + np.cumsum([0.0, *gaps])
    within = Within(node(times_s), START_S, float(times_s[-1]))
    level = np.full(len(times_s), value)
    assert within.mean(level) == pytest.approx(value)
    assert within.mean_of_intervals(level) == pytest.approx(value)
    assert within.rate(value * (times_s - START_S)) == pytest.approx(value)


def test_the_table_has_a_row_for_every_sample_and_subject() -> None:
    series = node(EPOCH_S + array(0.0, 0.1, 0.5, 0.6), segment=array(0, 0, 1, 1), gpus=1)
    series.devices[0].columns["power_w"][2] = np.nan
    table = telemetry.table([series, replace(series, host="other")])
    rows = table.to_pylist()
    assert len(rows) == 2 * 4 * (1 + 2 + 1)
    assert {row["host"] for row in rows} == {"planted", "other"}

    def column(subject: str, index: int, name: str) -> list[Any]:
        wanted = ("planted", subject, index)
        return [r[name] for r in rows if (r["host"], r["subject"], r["index"]) == wanted]

    assert column("node", 0, "time_s") == list(series.times_s)
    # Rates are of the time since the sample before: none at first, and none over a pause.
    rates = column("node", 0, "cpu_utilisation")
    assert [rate is None for rate in rates] == [True, False, True, False]
    assert rates[1] == pytest.approx(0.5 / 8.0)
    assert column("rank", 1, "cores_busy")[3] == pytest.approx(9.0)
    assert column("rank", 1, "rss_bytes") == [9_000_000_000] * 4
    assert column("rank", 1, "power_w") == [None] * 4
    assert column("device", 0, "power_w") == [90.0, 90.0, None, 90.0]
    assert column("device", 0, "throttle_reasons_bits") == [0x40] * 4
    assert column("device", 0, "uuid") == ["GPU-0"] * 4
    assert column("device", 0, "cpu_utilisation") == [None] * 4


def test_columns_that_nobody_has_are_not_in_the_table() -> None:
    table = telemetry.table([node()])
    assert table.column_names == [
        *("host", "subject", "index", "time_s", "segment"),
        *("cpu_utilisation", "cores_busy", "rss_bytes"),
    ]


def test_a_series_can_be_sent_to_another_rank() -> None:
    series = node(gpus=1)
    copy = pickle.loads(pickle.dumps(series))
    assert copy.host == series.host
    assert np.array_equal(
        copy.devices[0].columns["energy_j"], series.devices[0].columns["energy_j"]
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Sampla'"):
        telemetry.Sampla  # noqa: B018


def test_a_window_of_fewer_than_two_samples_has_no_means() -> None:
    (told,) = telemetry.summarise([(node(), START_S, START_S + 0.05)], samples=10).nodes
    assert told.samples < 2
    assert told.cpu_utilisation_mean is None
    assert set(told.rank_cpu_mean) == {None}
