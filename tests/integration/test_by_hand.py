"""``hvdscale bench`` typed behind a launcher, as a person does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.detect import detect_machine, usable_cores
from harness.record import RunRecord
from harness.store import Store
from tests.requirements import require_modules, require_mpi

BIN = Path(sys.executable).parent
SHORT = [
    *("--set", "workload.samples=2000", "--set", "measure.window_s=0.2"),
    *("--set", "measure.min_steps=3", "--set", "measure.warmup_steps=2"),
]
DDP = ["--engine", "ddp"]
GOOD = ["hvdscale", "bench", "stress_strain", "--batch-size", "75", *SHORT]


def _horovodrun_writes_one_dash() -> bool:
    """Say whether ``horovodrun`` starts its ranks with -bind-to, which Open MPI 5 does not know."""
    found = importlib.util.find_spec("horovod")
    mpi = detect_machine().mpi
    if found is None or found.origin is None or mpi is None:
        return False
    text = (Path(found.origin).parent / "runner" / "mpi_run.py").read_text()
    return mpi.flavour == "openmpi" and mpi.major >= 5 and "'-bind-to none'" in text


LAUNCHERS = {
    "horovodrun": ["horovodrun", "-np", "2"],
    "horovodrun --gloo": ["horovodrun", "--gloo", "-np", "2"],
    "mpirun": ["mpirun", "-np", "2"],
    "torchrun": ["torchrun", "--nproc-per-node", "2", "--no-python"],
    "nothing": [],
}
PROVEN = {
    "horovodrun": ("horovod", "mpi", "mpi", 2),
    "horovodrun --gloo": ("horovod", "gloo", "gloo", 2),
    "mpirun": ("horovod", "mpi", "mpi", 2),
    "torchrun": ("ddp", "gloo", None, 2),
    "nothing": ("none", None, None, 1),
}
ONE_DASH = pytest.mark.xfail(
    _horovodrun_writes_one_dash(),
    reason="this Horovod's horovodrun writes -bind-to, which Open MPI 5 takes for the program",
    strict=True,
)


@dataclass(frozen=True)
class Typed:
    """What a person sees of a command, and what it left."""

    code: int
    out: str
    err: str
    results: Path

    @property
    def said(self) -> str:
        return self.out + self.err


def typed(launcher: str, argv: list[str], folder: Path, data_dir: Path, **environ: str) -> Typed:
    """Type ``LAUNCHER hvdscale bench …`` in an empty folder."""
    start = LAUNCHERS[launcher]
    if start[:1] not in (["torchrun"], []):
        require_modules("horovod")
    if launcher == "mpirun":
        mpi = require_mpi()
        openmpi = mpi.flavour == "openmpi"
        extra = ["--allow-run-as-root"] if openmpi and os.geteuid() == 0 else []
        extra += ["--oversubscribe"] if openmpi and usable_cores() < 2 else []
        start = [mpi.mpirun, *extra, *start[1:]]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD", "OMPI", "SLURM"))}
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [*start, *argv],
        cwd=folder,
        env={
            **clean,
            "PATH": path,
            "OMP_NUM_THREADS": "1",
            "HVDSCALE_DATA_DIR": str(data_dir),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return Typed(done.returncode, done.stdout, done.stderr, folder / "results")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("horovodrun", marks=ONE_DASH),
        "horovodrun --gloo",
        "mpirun",
        "torchrun",
        "nothing",
    ],
)
def test_a_summary_is_printed_once_and_a_record_written(
    launcher: str, tmp_path: Path, data_dir: Path
) -> None:
    require_modules("torch")
    seen = typed(launcher, GOOD, tmp_path, data_dir)
    assert seen.code == 0, seen.said
    store = Store.open(seen.results / "bench")
    (record,) = store.records()
    assert_is_point(record, launcher)
    assert seen.out.count("stress_strain (torch)") == 1
    assert seen.out.count(" samples/s ") == 1
    assert seen.out.count(f"results/bench/runs/{record.run_id}.json") == 1
    assert f"batch size 75 a rank, {75 * record.config.world_size} in all (weak)" in seen.out
    steps = store.read_steps(record.run_id)
    assert set(steps["rank"].to_pylist()) == set(range(record.config.world_size))


def assert_is_point(record: RunRecord, launcher: str) -> None:
    engine, backend, controller, ranks = PROVEN[launcher]
    assert (record.status, record.sweep) == ("ok", "bench")
    assert record.config.engine == engine
    assert record.config.world_size == record.resolved.world_size == ranks
    assert record.config.batch_size == 75
    assert record.backend is not None
    assert (record.backend.proven, record.backend.controller) == (backend, controller)
    assert record.resolved.hosts == (os.uname().nodename,)
    assert record.window is not None
    assert record.window.steps >= 3
    assert record.phases is not None
    assert (record.phases.exposed_sync_s is not None) == (ranks > 1)
    assert (record.allreduce is not None) == (ranks > 1)


def test_tensorflow_says_no_more_than_torch(tmp_path: Path, data_dir: Path) -> None:
    """What its libraries print when they start is kept out of the summary."""
    require_modules("tensorflow")
    seen = typed("mpirun", [*GOOD, "--framework", "tensorflow"], tmp_path, data_dir)
    assert seen.code == 0, seen.said
    (record,) = Store.open(seen.results / "bench").records()
    assert_is_point(record, "mpirun")
    assert record.config.workload.framework == "tensorflow"
    assert record.provenance["versions"].keys() == {"tensorflow", "keras", "horovod"}
    assert record.phases is not None
    assert None not in (record.phases.forward_s, record.phases.backward_s, record.phases.update_s)
    assert seen.out.startswith("stress_strain (tensorflow), horovod, backend mpi")
    assert not [line for line in seen.err.splitlines() if "tensorflow" in line.lower()]


def test_a_second_time_is_another_repeat_of_the_same_point(tmp_path: Path, data_dir: Path) -> None:
    require_modules("torch")
    for _ in range(2):
        seen = typed("nothing", GOOD, tmp_path, data_dir)
        assert seen.code == 0, seen.said
    records = list(Store.open(seen.results / "bench").records())
    assert sorted(record.block.repeat for record in records) == [0, 1]
    assert records[0].config == records[1].config
    assert records[0].run_id != records[1].run_id


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["stress_strian", "--batch-size", "75"], "did you mean 'stress_strain'?"),
        (["stress_strain"], "--batch-size"),
        (["stress_strain", "--batch-size", "0"], "batch_size"),
        (["stress_strain", "--batch-size", "75", "--engine", "hovorod"], "engine"),
        (["stress_strain", "--batch-size", "75", "--backend", "gloo", "--engine", "ddp"], "launch"),
        (["stress_strain", "--batch-size", "75", "--set", "placement=2"], "placement"),
        (["stress_strain", "--batch-size", "75", "--set", "bacth_size=2"], "batch_size"),
        (["stress_strain", "--batch-size", "2000", *SHORT], "1500 training samples"),
        (
            [*("stress_strain", "--batch-size", "7", "--framework", "tensorflow"), *DDP],
            "engine ddp cannot train in tensorflow; set workload.framework to one of: torch",
        ),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_bad_flags_are_one_line_and_exit_code_2(
    argv: list[str], said: str, tmp_path: Path, data_dir: Path
) -> None:
    seen = typed("nothing", ["hvdscale", "bench", *argv], tmp_path, data_dir)
    assert seen.code == 2, seen.said
    assert seen.out == ""
    (line,) = seen.err.splitlines()
    assert line.startswith("hvdscale: error: ")
    assert said in line
    assert not seen.results.exists()


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"OMP_NUM_THREADS": "4096"}, "OMP_NUM_THREADS=4096"),
        ({"HOROVOD_AUTOTUNE": "1"}, "HOROVOD_AUTOTUNE=1"),
        ({"HOROVOD_CYCLE_TIME": "fast"}, "HOROVOD_CYCLE_TIME='fast'"),
    ],
)
def test_so_is_an_environment_that_cannot_be_measured(
    environ: dict[str, str], said: str, tmp_path: Path, data_dir: Path
) -> None:
    argv = [*GOOD, "--engine", "horovod"]
    seen = typed("nothing", argv, tmp_path, data_dir, **environ)
    assert seen.code == 2, seen.said
    (line,) = seen.err.splitlines()
    assert said in line
    assert not seen.results.exists()


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun --gloo", "torchrun"])
def test_behind_a_launcher_one_mistake_is_said_once(
    launcher: str, tmp_path: Path, data_dir: Path
) -> None:
    """What the launcher adds is its own, and so is its exit code: not 0."""
    argv = ["hvdscale", "bench", "stress_strain", "--batch-size", "75", "--set", "window_s=1"]
    seen = typed(launcher, argv, tmp_path, data_dir)
    assert seen.code != 0
    if launcher == "mpirun":
        assert seen.code == 2  # mpirun ends as its first rank did
    assert seen.said.count("hvdscale: error: ") == 1, seen.said
    assert "window_s" in seen.said
    assert not seen.results.exists()


def test_the_other_ranks_wait_before_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A launcher ends all ranks with the first: rank 0 must have spoken by then."""
    from harness import byhand

    waited: list[float] = []
    monkeypatch.setattr(byhand.time, "sleep", waited.append)
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        byhand.by_hand(
            "stress_strian",
            flags={"batch_size": 75},
            overrides=(),
            results=tmp_path / "results",
            data_dir=tmp_path,
        )
    assert ended.value.code == 2
    assert waited == [byhand.PATIENCE_S]
    assert capfd.readouterr() == ("", "")
