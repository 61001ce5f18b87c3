"""What is kept of where a measurement was made, and what must never be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import harness
from harness import provenance

KEPT = {
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "lo",
    "HOROVOD_CYCLE_TIME": "0.1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "UCX_TLS": "tcp",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "GLOO_SOCKET_IFNAME": "lo",
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1-2]",
}
#: Each value is to be found nowhere in a record.
PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-0",
    "HF_TOKEN": "planted-1",
    "WANDB_API_KEY": "planted-2",
    "PASSWORD": "planted-3",
    "_HOROVOD_SECRET_KEY": "planted-4",
    "HOROVOD_SECRET_KEY": "planted-5",
    "NCCL_AUTH": "planted-6",
    "UCX_TOKEN": "planted-7",
    "HOROVOD_TASK_PASSWD": "planted-8",
    "OMPI_MCA_orte_precondition_transports": "planted-9",
    "OMPI_MCA_btl_secret": "planted-10",
    "SLURM_JWT": "planted-11",
    "SLURM_JOB_ACCOUNT": "planted-12",
    "SLURM_JOB_USER": "planted-13",
    "MY_NCCL_DEBUG": "planted-14",
    "DATABASE_URL": "planted-15",
    "SSH_AUTH_SOCK": "planted-16",
    "nccl_debug": "planted-17",
    "NCCL_DEBUG\nX": "planted-18",
}


def test_only_the_allow_list_enters() -> None:
    assert provenance.environment({**PLANTED, **KEPT, "HOME": "/home/x"}) == KEPT


def test_no_secret_is_anywhere_in_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**PLANTED, **KEPT}.items():
        monkeypatch.setenv(name, value)
    facts = [provenance.of_rank((0,), 1)]
    text = json.dumps(provenance.collect(facts, {"torch": "2.13.0"}))
    assert "planted" not in text
    assert "tcp,self" in text


def test_what_is_collected() -> None:
    like = {"cpu_model": "A", "node_cores": 8}
    facts = [{"host": "b", "pid": 1} | like, {"host": "a", "pid": 2} | like, {"host": "a"} | like]
    found = provenance.collect(facts, {"torch": "2.13.0"})
    assert found["hosts"] == ["a", "b"]
    assert found["ranks"] == facts
    assert found["versions"] == {"torch": "2.13.0"}
    assert found["harness"]["version"] == harness.__version__
    assert (found["cpu_model"], found["cores"]) == ("A", 8)
    assert found["packages"]["numpy"]
    json.dumps(found)  # plain data


def test_unlike_nodes_in_one_launch_are_seen() -> None:
    nodes = [{"host": "a", "cpu_model": "A", "node_cores": 8}]
    nodes += [{"host": "b", "cpu_model": "B", "node_cores": 8}]
    assert provenance.collect(nodes, {})["cpu_model"] == "A / B"


def test_of_rank() -> None:
    found = provenance.of_rank((2, 3), 2)
    assert found["node_cores"] == os.cpu_count()
    assert found["cpu_model"]
    assert (found["cores"], found["threads"], found["pid"]) == ((2, 3), 2, os.getpid())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    (tmp_path / "provenance.py").write_text("x = 1\n")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    return tmp_path


def test_the_commit_is_known_and_so_is_a_change(repository: Path) -> None:
    clean = provenance._git(repository)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (repository / "provenance.py").write_text("x = 2\n")
    assert provenance._git(repository) == {"commit": clean["commit"], "dirty": True}


def test_a_package_below_another_repository_has_no_commit(repository: Path) -> None:
    installed = repository / ".venv" / "harness"
    installed.mkdir(parents=True)
    (installed / "provenance.py").write_text("")
    assert provenance._git(installed) == {}


def test_without_git_or_a_repository_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert provenance._git(tmp_path) == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance._git(Path(provenance.__file__).parent) == {}
