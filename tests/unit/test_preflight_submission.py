"""A preflight as a batch job: sbatch's options, the script, and who is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import slurm
from harness.config import parse_sweep
from harness.errors import ConfigError
from harness.submit.preflight.submission import Job, submit_preflight
from harness.submit.script import _UNSET
from harness.submit.site import Site
from workloads.api import WorkloadError

SITE = Site.model_validate(
    {
        "name": "alpha",
        "nodes": 8,
        "cpus_per_node": 48,
        "gpus_per_node": 8,
        "partition": "alpha",
        "account": "p_scale",
        "launcher": "srun",
        "interface": "ib0",
        "setup": ["module load CUDA"],
        "environment": {"NCCL_IB_HCA": "mlx5 0"},
        "options": ["--reservation=bench"],
    }
)


def test_the_job_has_whole_nodes_and_runs_the_command_there() -> None:
    job = Job(
        site=SITE,
        nodes=4,
        results=Path("/work/100% mine"),
        sweep="/home/me/a sweep.yaml",
        sweep_name="weak",
        data_dir=Path("/data"),
        python="/opt/venv/bin/python",
    )
    assert job.options() == [
        "--job-name=hvdscale-preflight",
        "--nodes=4",
        "--ntasks-per-node=8",
        "--cpus-per-task=6",
        "--gres=gpu:8",
        "--exclusive",
        "--mem=0",
        "--time=0:18:00",
        "--partition=alpha",
        "--account=p_scale",
        "--output=/work/100%% mine/weak/preflight/%x-%j.out",
        "--chdir=/work/100% mine",
        "--no-requeue",
        "--export=ALL",
        "--reservation=bench",
    ]
    lines = job.script().splitlines()
    assert lines[2:] == [
        "set -e",
        *_UNSET,
        "module load CUDA",
        "set -uo pipefail",
        "export HVDSCALE_DATA_DIR=/data",
        "export HVDSCALE_LAUNCHER=srun",
        "export HVDSCALE_INTERFACE=ib0",
        "export NCCL_IB_HCA='mlx5 0'",
        "exec /opt/venv/bin/python -P -m harness preflight '/home/me/a sweep.yaml' "
        "--results '/work/100% mine'",
    ]
    done = subprocess.run(["bash", "-n"], input=job.script(), text=True, capture_output=True)
    assert done.stderr == ""


def test_a_limit_of_the_partition_is_kept() -> None:
    short = SITE.model_copy(update={"max_time": 600})
    assert Job(site=short, nodes=2, results=Path("/r")).time_limit_s == 600


def test_what_the_site_or_the_job_would_refuse_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="--nodes 9: a job of site alpha has 1 to 8"):
        submit_preflight(SITE, 9, tmp_path)
    with pytest.raises(WorkloadError, match="unknown workload 'resnett'"):
        submit_preflight(SITE, 2, tmp_path, workload="resnett")
    assert list(tmp_path.iterdir()) == []


def test_the_script_is_written_then_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "is_here", lambda: True)
    monkeypatch.setattr(slurm, "submit", lambda options, script: f"7{len(script.read_text()) > 99}")
    sweep = parse_sweep({"name": "s", "workload": "stress_strain", "batch_size": 75})
    job_id, log = submit_preflight(SITE, 2, tmp_path, source="stress_strain_weak", sweep=sweep)
    assert job_id == "7True"
    assert log == tmp_path / "s" / "preflight" / "hvdscale-preflight-7True.out"
    (script,) = (tmp_path / "s" / "preflight").glob("*.sh")
    assert "harness preflight stress_strain_weak --results" in script.read_text()
