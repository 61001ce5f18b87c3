"""``hvdscale workloads``, and a workload that comes from a package of a user's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from harness.cli.workloads import command_workloads
from workloads import registry
from workloads.api import WorkloadError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "own_workload"
PRINTED = "import sys; from harness.cli import main; main(['workloads', '--json']); "
RUN = "import sys; from harness.cli import main; sys.exit(main())"
LOADED = "print(sorted({'torch', 'tensorflow', 'keras'} & set(sys.modules)), file=sys.stderr)"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Give a list that stands for the entry points of installed packages."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints(points))
    registry._targets.cache_clear()
    yield points
    registry._targets.cache_clear()


def test_the_list_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_workloads(as_json=False) == 0
    printed = capsys.readouterr().out
    for name in registry.names():
        info = registry.info(name)
        assert f"{name}: {info.title}\n" in printed
        assert f"{info.parameters:,} parameters, {4 * info.parameters:,} bytes" in printed
    assert "samples = 1000000: curves in the data set" in printed


def test_json_has_every_number_and_no_framework_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINTED + LOADED], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    by_name = {one["name"]: one for one in json.loads(done.stdout)}
    assert list(by_name) == list(registry.names())
    found = by_name["stress_strain"]
    assert (found["parameters"], found["gradient_bytes"]) == (153_441, 613_764)
    assert found["flops_per_sample"] == 5_862_972
    assert found["options"]["samples"]["default"] == 1_000_000
    assert found["target_metric"] == "mse"


def entry(name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target, registry.GROUP)


def test_a_package_adds_a_workload(registered: list[EntryPoint]) -> None:
    registered.append(entry("mine", "workloads.stress_strain:StressStrain"))
    assert "mine" in registry.names()
    assert registry.info("mine").name == "stress_strain"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.at_all:Thing", r"'mine' \(nowhere.at_all:Thing\) cannot be loaded: No module"),
        ("workloads.api:Missing", "cannot be loaded: .*Missing"),
        ("workloads.api:Option", "is no class of workloads.api.Workload"),
        ("workloads.api:math", "is no class of workloads.api.Workload"),
    ],
)
def test_a_bad_entry_point_is_one_line(
    target: str, message: str, registered: list[EntryPoint]
) -> None:
    registered.append(entry("mine", target))
    with pytest.raises(WorkloadError, match=message) as raised:
        registry.find("mine")
    assert "\n" not in str(raised.value)


def test_two_workloads_of_one_name_are_refused(registered: list[EntryPoint]) -> None:
    registered.append(entry("stress_strain", "elsewhere:Other"))
    with pytest.raises(WorkloadError, match=r"'stress_strain' is both .* and elsewhere:Other"):
        registry.names()


def test_the_example_is_under_40_lines_of_code() -> None:
    text = (EXAMPLE / "two_moons.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) < 40


def test_the_example_is_installed_listed_and_trained(tmp_path: Path) -> None:
    """As docs/own_workload/README.md says, into a folder of its own."""
    pytest.importorskip("torch")
    shutil.copytree(EXAMPLE, tmp_path / "source")
    packages = tmp_path / "packages"
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", packages, tmp_path / "source"],
        check=True,
    )
    path = os.pathsep.join([str(packages), str(ROOT)])
    environ = {**os.environ, "PYTHONPATH": path, "HVDSCALE_DATA_DIR": str(tmp_path / "data")}

    def hvdscale(*arguments: str) -> str:
        argv = [sys.executable, "-c", RUN, *arguments]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "two_moons: Two half moons, told apart\n  1,218 parameters" in hvdscale("workloads")
    quick = ("--set", "measure.window_s=0.2", "--set", "measure.min_steps=200")
    hvdscale("bench", "two_moons", "--batch-size", "64", *quick)
    (file,) = (tmp_path / "results" / "bench" / "runs").glob("*.json")
    record = json.loads(file.read_text())
    assert record["workload"]["parameters"] == 1_218
    assert record["window"]["last_loss"] < 0.3  # untrained: log 2
