"""The launchers really start ranks, with what was decided in the environment of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.config import RunConfig
from harness.detect import Machine, Mpi, detect_machine, inspect_mpi
from harness.launch import Command, build
from harness.store import Store
from tests.integration import ranks
from tests.requirements import require_modules, require_mpi

PROBE = Path(__file__).parent / "programs" / "launch_probe.py"
ROOT = Path(__file__).parents[2]
ARGUMENTS = ("a b", "c;d", "it's", '"$HOME"', "--x=*")


def here(slots: int = 2) -> Machine:
    return detect_machine(slots=slots)


def point(**keys: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"workload": "stress_strain", "batch_size": 1, "cores_per_rank": 1, **keys}
    )


def traps(folder: Path) -> Path:
    """Return a working folder whose files have the names of what the ranks import."""
    (folder / "harness").mkdir(parents=True)
    for name in ("harness/__init__.py", "random.py", "torch.py", "horovod.py", "pydantic.py"):
        (folder / name).write_text(f"raise RuntimeError('{name} of the working folder')\n")
    return folder


def start(
    config: RunConfig, machine: Machine, folder: Path, engine: str, **environment: str
) -> list[dict[str, Any]]:
    """Run the probe from a folder with a space in its name; return each rank's answer."""
    place = folder / "with space"
    place.mkdir()
    program = str(shutil.copy(PROBE, place))
    command: Command = build(
        config,
        machine,
        str(place / "run.json"),
        timeout_s=600,
        program=(program, str(place), engine, *ARGUMENTS),
    )
    done = subprocess.run(
        command.argv,
        env={**os.environ, **command.env, **environment},
        cwd=traps(folder / "work"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    answers = [json.loads(path.read_text()) for path in sorted(place.glob("rank-*.json"))]
    assert [a["rank"] for a in answers] == list(range(config.world_size)), said
    for answer in answers:
        assert answer["size"] == config.world_size
        assert answer["arguments"] == list(ARGUMENTS)
        for name, value in command.env.items():
            assert answer["environment"].get(name) == value, name
    return answers


def test_inline(tmp_path: Path) -> None:
    answers = start(point(engine="none"), here(), tmp_path, "none")
    assert answers[0]["environment"]["OMP_NUM_THREADS"] == "1"


def test_a_rank_imports_nothing_from_the_working_folder(tmp_path: Path, data_dir: Path) -> None:
    require_modules("torch")
    config = ranks.point("none", None, 1)
    spec = ranks.spec_of(config, tmp_path, here(), data_dir)
    (tmp_path / "run.json").write_bytes(spec.text())
    Store.open(tmp_path, create=True)
    command = build(config, here(), str(tmp_path / "run.json"))
    done = subprocess.run(
        command.argv,
        env={**os.environ, **command.env, "PYTHONPATH": str(ROOT)},
        cwd=traps(tmp_path / "work"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "rank-0.log").read_text()
    assert Store.open(tmp_path).is_done("test")


# horovodrun must find its mpirun also where the environment is not activated.
BARE_PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("launcher", "backend"), [("mpirun", "mpi"), ("horovodrun", "mpi"), ("horovodrun", "gloo")]
)
def test_horovod(tmp_path: Path, launcher: str, backend: str) -> None:
    require_modules("torch", "horovod")
    machine = here()
    if backend == "mpi":
        require_mpi(machine)
    config = point(placement="1x2", launcher=launcher, backend=backend)
    answers = start(config, machine, tmp_path, "horovod", PATH=BARE_PATH)
    for answer in answers:
        assert answer["sum"] == 3.0
        assert (answer["mpi"], answer["gloo"]) == (backend == "mpi", backend == "gloo")
        assert answer["cores"] == sorted(os.sched_getaffinity(0))  # a launcher binds nothing


def test_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_modules("torch")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    answers = start(point(engine="ddp", placement="1x2"), here(), tmp_path, "ddp")
    assert not list(tmp_path.glob("torchelastic*"))
    assert [answer["sum"] for answer in answers] == [3.0, 3.0]
    assert {answer["environment"]["LOCAL_RANK"] for answer in answers} == {"0", "1"}


def mpis() -> list[Mpi | None]:
    """Return this machine's MPI (or None) and those of HVDSCALE_TEST_MPIRUNS (paths, with colons).

    None is a case as well: an empty list of cases would say nothing of a missing MPI.
    """
    named = filter(None, os.environ.get("HVDSCALE_TEST_MPIRUNS", "").split(":"))
    found = [inspect_mpi(Path(path), "system", Path(path).parents[1]) for path in named]
    return [here().mpi, *found]


@pytest.mark.parametrize(
    "mpi", mpis(), ids=lambda mpi: f"{mpi.flavour}-{mpi.version}" if mpi else "none"
)
@pytest.mark.parametrize("count", [2, 4])
def test_every_mpi_takes_its_syntax_also_for_more_ranks_than_cores(
    tmp_path: Path, mpi: Mpi | None, count: int
) -> None:
    if mpi is None:
        require_mpi(here())
    host = here(slots=4).hosts[0]
    machine = replace(here(), mpi=mpi, hosts=(replace(host, cores=2),))
    config = point(placement=f"1x{count}", launcher="mpirun", backend="mpi")
    answers = start(config, machine, tmp_path, "plain")
    assert len(answers) == count
