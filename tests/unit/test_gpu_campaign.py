"""The scripts of a GPU campaign, as far as they go without GPUs: what they would run is sound."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from harness.config import load_sweep
from harness.config.models import Sweep
from harness.detect import Host, Machine, Mpi
from harness.validate import Plan, plan

ROOT = Path(__file__).parents[2]
CAMPAIGN = ROOT / "tools" / "gpu_campaign"
#: Writes what it is asked for, a JSON list a line, and does none of it.
STUB = """\
#!{python}
import json, os, sys
with open(os.environ["ASKED"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""
SWEEPS = ("graphs", "resnet", "resnet-graphs", "scaling", "backends", "batches", "lstm", "training")


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels", CAMPAIGN / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpus(count: int) -> Machine:
    return Machine(
        hosts=(Host("n1", 16 * count, count),),
        device="cuda",
        mpi=Mpi("openmpi", "4.1.6", "/usr/bin/mpirun"),
        launchers={"horovodrun": "/env/bin/horovodrun", "torchrun": "/env/bin/torchrun"},
        modules=frozenset({"torch", "horovod", "mpi4py"}),
        python_by_backend={"mpi-host": "/env-staged/bin/python"},
    )


def asked(folder: Path, devices: int, stage: str) -> list[list[str]]:
    """Return the commands of one stage, each a list of arguments."""
    for name in ("venv/bin/python", "path/mpirun"):
        stub = folder / name
        stub.parent.mkdir(parents=True)
        stub.write_text(STUB.format(python=sys.executable))
        stub.chmod(0o755)
    told = folder / "asked"
    told.touch()
    done = subprocess.run(
        [CAMPAIGN / "measure.sh", folder / "venv", folder / "out", str(devices), "900", stage],
        env={"PATH": f"{folder / 'path'}:/usr/bin:/bin", "ASKED": str(told), "BLOCKS": "4"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"== {stage}: exit code 0" in done.stdout
    return [json.loads(line) for line in told.read_text().splitlines()]


def planned(argv: Sequence[str], devices: int) -> tuple[Sweep, Plan]:
    """Return what ``harness run`` or ``harness train`` would do with so many GPUs."""
    sweep = load_sweep(argv[3], overrides(argv))
    return sweep, plan(sweep, gpus(devices), {}, training=argv[2] == "train")


def overrides(argv: Sequence[str]) -> list[str]:
    return [value for key, value in itertools.pairwise(argv) if key == "--set"]


# One device reduces nothing: that stage ends there with a sentence.
@pytest.mark.parametrize(
    ("stage", "devices"),
    [(stage, n) for stage in SWEEPS for n in (1, 4) if (stage, n) != ("backends", 1)],
)
def test_each_point_of_a_stage_can_run_on_so_many_gpus(
    tmp_path: Path, stage: str, devices: int
) -> None:
    commands = asked(tmp_path, devices, stage)
    assert commands
    predictions = [argv for argv in commands if argv[2] == "predict"]
    assert len(predictions) == (3 if (stage, devices) == ("scaling", 4) else 0)
    for argv in commands:
        if argv in predictions:
            assert argv[-2:] == ["--devices", str(devices)]
            continue
        assert argv[:3] in (["-m", "harness", "run"], ["-m", "harness", "train"])
        assert argv[argv.index("--results") + 1] == str(tmp_path / "out")
        sweep, found = planned(argv, devices)
        assert found.points
        most = max(sum(one.placement) for one in found.resolved.values())
        alone = stage == "batches" or sweep.name == "training"
        assert most == (1 if alone else devices)
        if stage != "training":
            assert sweep.measure.blocks == 4


def test_trainings_on_one_gpu_and_on_all_are_sweeps_of_their_own(tmp_path: Path) -> None:
    found = [planned(argv, 4) for argv in asked(tmp_path, 4, "training")]
    assert [sweep.name for sweep, _ in found] == ["training", "training-4"]
    engines = [{point.engine for point in each.points} for _, each in found]
    assert engines == [{"none"}, {"horovod"}]


@pytest.mark.parametrize(("devices", "groups"), [(1, {0, 2, 4}), (4, {0, 2})])
def test_on_one_gpu_the_cuts_of_the_compiled_model_are_measured(
    tmp_path: Path, devices: int, groups: set[int]
) -> None:
    (argv,) = asked(tmp_path, devices, "resnet-graphs")
    _, found = planned(argv, devices)
    assert {one.horovod.groups for one in found.points if one.engine == "horovod"} == groups


def test_other_stages_say_how_many_gpus(tmp_path: Path) -> None:
    (one, two) = asked(tmp_path / "allreduce", 4, "allreduce")
    for argv, tuning in ((one, "latency"), (two, "bandwidth")):
        assert argv[:2] == ["-np", "4"]
        assert argv[argv.index("--tuning") + 1] == tuning
    (tune,) = asked(tmp_path / "tune", 2, "tune")
    assert tune[2:4] == ["tune", "stress_strain"]
    assert tune[tune.index("--placement") + 1] == "1x2"
    assert tune[tune.index("--blocks") + 1] == "4"


def test_without_time_left_nothing_begins(tmp_path: Path) -> None:
    argv = [CAMPAIGN / "measure.sh", tmp_path / "venv", tmp_path / "out", "1", "10", "lstm"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 124
    assert "no time left for: " in done.stderr


def test_what_to_carry_is_what_the_machine_has_not(wheels: ModuleType) -> None:
    has = wheels.names_in(
        "# a comment\nTorch==2.11.0\nPyYAML\nruamel.yaml>=1 # why\n\nsetuptools\n"
    )
    assert has == {"torch", "pyyaml", "ruamel-yaml", "setuptools"}
    needs = {"optuna": "5.0.0", "pyyaml": "6.0", "setuptools": "80.10.2"}
    # Horovod's launcher imports what a newer setuptools no longer has.
    assert wheels.missing(needs, has) == {"optuna": "5.0.0", "setuptools": "80.10.2"}


def test_the_requirements_are_those_of_the_package(wheels: ModuleType) -> None:
    wanted = {next(iter(wheels.names_in(line))) for line in wheels.requirements(ROOT / "setup.cfg")}
    assert {"numpy", "pydantic", "optuna", "pandas", "setuptools", "pytest"} <= wanted
    assert not wanted & {"torch", "tensorflow-cpu", "mpi4py", "horovod", "ruff"}


def test_wheels_of_other_versions_go(
    wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(wheels, "pip", lambda *argv: calls.append(argv) or "")
    for name in ("optuna-4.0.0-py3-none-any.whl", "typing_inspection-0.4.5-py3-none-any.whl"):
        (tmp_path / name).touch()
    packages = {"optuna": "5.0.0", "typing-inspection": "0.4.5", "python-hostlist": "2.3.0"}
    wheels.fetch(tmp_path, packages, "3.12")
    assert [path.name for path in tmp_path.iterdir()] == [
        "typing_inspection-0.4.5-py3-none-any.whl"
    ]
    (download, made) = calls
    assert (download[0], download[-1]) == ("download", "optuna==5.0.0")
    assert "--python-version=3.12" in download
    assert (made[0], made[-1]) == ("wheel", "python-hostlist==2.3.0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("numpy\n", "has no torch: build Horovod where torch is"),
        (None, "No such file or directory"),
    ],
)
def test_a_list_that_cannot_be_used_is_a_sentence(
    wheels: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    said: str,
) -> None:
    has = tmp_path / "has"
    if text is not None:
        has.write_text(text)
    monkeypatch.setattr(sys, "argv", ["wheels.py", str(tmp_path / "wheels"), str(has)])
    assert wheels.main() == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "wheels").exists()
