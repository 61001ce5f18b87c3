"""Which rank a process is, from the variables that each launcher really sets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.ranks import RankPlace, find_place
from harness.runner.interrupts import interrupts
from harness.runner.launcher import Guard, run_launch

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
HOROVODRUN = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "12",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
}
#: A batch script's environment: a task in name, but no step.
BATCH = {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
#: What Slurm's pmi2 plug-in adds for each rank of an MPICH program.
PMI2 = {"PMI_FD": "15", "PMI_JOBID": "12.0", "PMI_RANK": "4", "PMI_SIZE": "5"}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        (TORCHRUN, RankPlace("torchrun", 5, 8, 1, 4)),
        (HOROVODRUN, RankPlace("horovodrun", 3, 4, 1, 2)),
        (OPENMPI, RankPlace("mpirun", 2, 6, 2, 3)),
        (MPICH, RankPlace("mpirun", 1, 2, 1, 2)),
        (SRUN, RankPlace("srun", 4, 5, 0, 1)),
        ({}, None),
        (BATCH, None),
        ({"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, None),
        ({"HOROVOD_RANK": "", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}, None),
    ],
)
def test_each_launcher(environ: dict[str, str], place: RankPlace | None) -> None:
    assert find_place(environ) == place


def test_slurms_local_rank_is_not_believed_under_mpirun() -> None:
    """mpirun starts its ranks in one task a node, so SLURM_LOCALID is 0 on all of them."""
    environ = {**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", **OPENMPI}
    assert find_place(environ) == RankPlace("mpirun", 2, 6, 2, 3)


@pytest.mark.parametrize(
    ("inner", "launcher"), [(OPENMPI, "mpirun"), (MPICH, "mpirun"), (TORCHRUN, "torchrun")]
)
def test_inside_a_job_step_the_inner_launcher_wins(inner: dict[str, str], launcher: str) -> None:
    found = find_place({**SRUN, **inner})
    assert found is not None
    assert found == find_place(inner)
    assert found.launcher == launcher


def test_srun_with_pmi2_is_srun_and_has_local_ranks() -> None:
    """PMI_RANK is there too, and taken for mpirun's it would put all ranks on the same cores."""
    assert find_place({**SRUN, **PMI2}) == RankPlace("srun", 4, 5, 0, 1)


@pytest.mark.parametrize(
    ("counts", "node", "size"),
    [
        ("4", "0", 4),
        ("2(x3)", "2", 2),
        ("3,1", "1", 1),
        ("3,1", "2", 0),
        ("3,1", "", 0),
        ("", "0", 0),
    ],
)
def test_local_size_under_srun(counts: str, node: str, size: int) -> None:
    place = find_place({**SRUN, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": node})
    assert place is not None
    assert place.local_size == size


def test_local_size_is_zero_where_nobody_tells() -> None:
    place = find_place({k: v for k, v in OPENMPI.items() if k != "OMPI_COMM_WORLD_LOCAL_SIZE"})
    assert place == RankPlace("mpirun", 2, 6, 2, 0)


@pytest.mark.parametrize("outer", [TORCHRUN, HOROVODRUN, OPENMPI])
def test_a_launch_has_no_place_from_outside(
    outer: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All ranks would take it for theirs: many a job's script exports RANK and LOCAL_RANK."""
    for name, value in {**outer, "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    program = (sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    log = tmp_path / "launcher.log"
    with Guard() as guard, interrupts() as stop:
        ending = run_launch(program, MPICH, "a1", log, 60.0, guard, stop)
    assert ending.exit_code == 0
    found = json.loads(log.read_text())
    assert find_place(found) == find_place(MPICH)
    assert found["SLURM_PROCID"] == "0"


@pytest.mark.parametrize("environ", [TORCHRUN, SRUN])
def test_ddp_takes_the_launchers_that_it_has(environ: dict[str, str]) -> None:
    pytest.importorskip("torch")
    from harness.engines.ddp import _place

    assert _place(environ) == find_place(environ)


@pytest.mark.parametrize("environ", [{}, BATCH, OPENMPI, HOROVODRUN])
def test_ddp_refuses_the_others(environ: dict[str, str]) -> None:
    pytest.importorskip("torch")
    from harness.engines.ddp import _place
    from harness.errors import LaunchError

    with pytest.raises(LaunchError, match="start it with torchrun or srun"):
        _place(environ)
