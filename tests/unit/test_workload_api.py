"""The workload contract: options checked in one line, names found, no framework imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workloads import registry
from workloads.api import Option, OptionValue, WorkloadError, WorkloadInfo, resolve_options

INFO = WorkloadInfo(
    name="toy",
    title="Toy",
    frameworks=("torch",),
    parameters=1,
    target_metric="mse",
    learning_rate=0.1,
    learning_rate_batch=1,
    options={
        "count": Option(10, "how many", minimum=1, maximum=100),
        "noise": Option(0.5, "how noisy", minimum=0.0),
        "kind": Option("soft", "which", choices=("soft", "hard")),
        "fast": Option(False, "whether"),
    },
)


def test_defaults_fill_what_is_not_given() -> None:
    assert resolve_options(INFO, {"count": 3}) == {
        "count": 3,
        "noise": 0.5,
        "kind": "soft",
        "fast": False,
    }


def test_a_whole_number_is_taken_where_a_float_is_meant() -> None:
    noise = resolve_options(INFO, {"noise": 2})["noise"]
    assert noise == 2.0
    assert type(noise) is float


def test_a_whole_float_is_taken_where_an_int_is_meant() -> None:
    count = resolve_options(INFO, {"count": 1e2})["count"]
    assert count == 100
    assert type(count) is int


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuont": 3}, "workload toy has no option 'cuont' (it has: count, fast, kind, noise)"),
        ({"count": 2.5}, "workload toy, option count: expected int, got 2.5"),
        ({"count": True}, "workload toy, option count: expected int, got True"),
        ({"count": "3"}, "workload toy, option count: expected int, got '3'"),
        ({"count": float("inf")}, "workload toy, option count: inf is not a finite number"),
        ({"count": 10**25}, f"workload toy, option count: {10**25} is above the maximum of 100"),
        ({"count": 1e25}, f"workload toy, option count: {int(1e25)} is above the maximum of 100"),
        ({"count": 10**400}, "workload toy, option count: a number of 401 digits is too large"),
        ({"noise": -(10**400)}, "workload toy, option noise: a number of 402 digits is too large"),
        ({"fast": 1}, "workload toy, option fast: expected bool, got 1"),
        ({"noise": False}, "workload toy, option noise: expected float, got False"),
        ({"noise": float("nan")}, "workload toy, option noise: nan is not a finite number"),
        ({"noise": float("inf")}, "workload toy, option noise: inf is not a finite number"),
        ({"noise": -1}, "workload toy, option noise: -1.0 is below the minimum of 0"),
        ({"count": 0}, "workload toy, option count: 0 is below the minimum of 1"),
        ({"count": 101}, "workload toy, option count: 101 is above the maximum of 100"),
        ({"kind": "loud"}, "workload toy, option kind: 'loud' is not one of ['soft', 'hard']"),
    ],
)
def test_a_bad_option_is_one_line(given: dict[str, OptionValue], message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        resolve_options(INFO, given)
    assert str(caught.value) == message


def test_an_unknown_workload_gets_the_near_name() -> None:
    with pytest.raises(WorkloadError, match="unknown workload 'stres_strain'") as caught:
        registry.find("stres_strain")
    assert "did you mean 'stress_strain'?" in str(caught.value)


def test_every_registered_workload_is_found_by_the_name_it_gives_itself(tmp_path: Path) -> None:
    assert "stress_strain" in registry.names()
    for name in registry.names():
        info = registry.info(name)
        assert info.name == name
        assert info.frameworks
        workload = registry.create(name, {}, tmp_path)
        assert workload.options == {key: option.default for key, option in info.options.items()}
        assert workload.train_size() > 0
    assert list(tmp_path.iterdir()) == [], "making a workload makes no data"


def test_options_are_checked_when_a_workload_is_created(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="option samples: 0 is below the minimum of 4"):
        registry.create("stress_strain", {"samples": 0}, tmp_path)


def test_knowing_the_workloads_imports_no_framework() -> None:
    code = (
        "import sys; from workloads import registry\n"
        "for name in registry.names(): registry.info(name)\n"
        "heavy = {'torch', 'tensorflow', 'horovod', 'pandas', 'matplotlib', 'pydantic'}\n"
        "print(sorted((heavy | {'harness'}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"
