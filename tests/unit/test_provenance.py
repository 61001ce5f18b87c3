"""What is kept of where a measurement was made, and what must never be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import provenance
from harness.provenance import container, git, load
from harness.provenance.notes import Notes, UnknownError

KEPT = {
    "NCCL_DEBUG": "INFO",
    "NCCL_SOCKET_IFNAME": "lo",
    "HOROVOD_CYCLE_TIME": "0.1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "UCX_TLS": "tcp",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_accelerator": "null",
    "OMPI_MCA_op": "^avx",
    "OMPI_MCA_osc_rdma_priority": "10",
    "OMPI_MCA_smsc": "cma",
    "OMPI_MCA_smsc_base_verbose": "9",
    "OMPI_MCA_topo": "basic",
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
    # What mpirun gives its ranks, of Open MPI 4 (orte, ess, pmix, shmem) and 5.
    "OMPI_MCA_orte_hnp_uri": "planted-19",
    "OMPI_MCA_ess_base_jobid": "planted-20",
    "OMPI_MCA_pmix": "planted-21",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint": "planted-22",
    "OMPI_MCA_PREFIXES": "planted-23",
    "OMPI_MCA_initial_wdir": "planted-24",
    "OMPI_MCA_operator": "planted-25",
}


def test_only_the_allow_list_enters() -> None:
    assert provenance.environment({**PLANTED, **KEPT, "HOME": "/home/x"}) == KEPT


def test_settings_are_what_changes_a_measurement_and_is_in_no_config() -> None:
    kept = {**KEPT, "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_coll": "^han"}
    assert provenance.settings(kept) == {
        "OMPI_MCA_accelerator": "null",
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_op": "^avx",
        "OMPI_MCA_osc_rdma_priority": "10",
        "OMPI_MCA_smsc": "cma",
        "OMPI_MCA_topo": "basic",
        "UCX_TLS": "tcp",
    }


def test_no_secret_is_anywhere_in_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**PLANTED, **KEPT}.items():
        monkeypatch.setenv(name, value)
    facts = [provenance.of_rank((0,), 1, started=provenance.at_start())]
    assert "planted" not in json.dumps(facts)
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
    assert "notes" not in found
    json.dumps(found)  # plain data


def test_unlike_nodes_in_one_launch_are_seen_in_whatever_order() -> None:
    nodes = [{"host": "a", "cpu_model": "A", "node_cores": 8}]
    nodes += [{"host": "b", "cpu_model": "B", "node_cores": 8}]
    for order in (nodes, nodes[::-1]):
        assert provenance.collect(order, {})["cpu_model"] == "A / B"


def test_of_rank() -> None:
    mine = tuple(sorted(os.sched_getaffinity(0)))
    found = provenance.of_rank(mine, 2, engine={"torch_threads": 1})
    assert found["node_cores"] == os.cpu_count()
    assert found["cpu_model"]
    assert (found["cores"], found["threads"], found["pid"]) == (mine, 2, os.getpid())
    assert found["engine"] == {"torch_threads": 1}
    assert found["binding"]["os_threads"] >= 1
    assert found["node"]["memory_bytes"] > 1 << 20


def test_of_a_rank_there_is_nothing_that_it_does_not_use() -> None:
    # In a process of its own: in this one another test may have loaded an MPI.
    code = "from harness import provenance; print(*provenance.of_rank((0,), 1))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "cpu_model" in said.split()
    assert not {"gpu", "nccl", "mpi"} & set(said.split())


def test_a_thread_moved_off_its_cores_is_told() -> None:
    mine = os.sched_getaffinity(0)
    found = provenance.of_rank((max(mine) + 1,), 1)
    (note,) = found["notes"]
    assert note.startswith(f"binding: bound to {max(mine) + 1}, and now on ")


def test_facts_of_a_node_are_said_once_and_so_is_a_note() -> None:
    ranks = [
        {"host": host, "node": {"sockets": 2, "n": rank}, "notes": ["gpu: none"]}
        for rank, host in enumerate(["a", "a", "b"])
    ]
    found = provenance.collect(ranks, {})
    assert found["nodes"] == {"a": {"sockets": 2, "n": 0}, "b": {"sockets": 2, "n": 2}}
    assert found["ranks"] == [{"host": "a"}, {"host": "a"}, {"host": "b"}]
    assert found["notes"] == ["gpu: none (rank 0, a)"]


def test_what_all_ranks_share_is_of_the_launch_and_what_they_do_not_is_noted() -> None:
    nccl = {"version": "2.28.9", "path": "/a"}
    ranks: list[dict[str, Any]] = [
        {"host": "a", "nccl": nccl, "settings": {"NCCL_ALGO": "Ring"}},
        {"host": "a", "nccl": nccl, "settings": {"NCCL_ALGO": "Ring"}},
        {"host": "b", "nccl": {"version": "2.27.7", "path": "/b"}},
    ]
    found = provenance.collect(ranks, {})
    assert found["nccl"] == nccl
    assert [rank.get("nccl") for rank in found["ranks"]] == [None, None, ranks[2]["nccl"]]
    assert found["notes"] == [
        "environment: NCCL_ALGO is unset on rank 2, Ring on rank 0",
        "nccl: rank 2's is not that of rank 0",
    ]


def test_devices_have_a_model_in_common_and_an_id_of_their_own() -> None:
    ranks = [
        {"host": "a", "gpu": {"model": model, "uuid": f"GPU-{model}", "driver": "580"}}
        for model in ("H200", "H100")
    ]
    found = provenance.collect(ranks, {})
    assert found["gpu"] == {"model": "H100 / H200", "driver": "580"}
    assert [rank["gpu"]["uuid"] for rank in found["ranks"]] == ["GPU-H200", "GPU-H100"]


def test_no_collector_takes_a_run_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, Any]:
        raise RuntimeError("no such\nthing")

    for name in ("binding", "gpu", "nccl", "mpi", "horovod_facts", "host", "load"):
        monkeypatch.setattr(getattr(provenance, name), "collect", broken)
    for name in ("git", "packages", "container"):
        monkeypatch.setattr(getattr(provenance, name), "collect", broken)
    monkeypatch.setattr(provenance.host, "cpu_model", broken)
    found = provenance.of_rank((0,), 1, started=provenance.at_start())
    assert sorted(line.split(":")[0] for line in found["notes"]) == [
        "binding", "cpu", "gpu", "horovod", "host", "load", "mpi", "nccl",
    ]  # fmt: skip
    assert "mpi: RuntimeError: no such thing" in found["notes"]
    launch = provenance.collect([found], {})
    assert "git: RuntimeError: no such thing" in launch["notes"]
    assert launch["harness"] == {"version": harness.__version__}


def test_a_reason_is_kept_without_its_class() -> None:
    def cannot() -> dict[str, Any]:
        raise UnknownError("not here")

    notes = Notes()
    assert notes.take("x", cannot) == {}
    assert notes.take("y", lambda: {"a": 1}) == {"a": 1}
    assert notes.lines == ["x: not here"]


def test_the_load_before_the_ranks_is_a_fact_of_the_node(tmp_path: Path) -> None:
    started = provenance.at_start()
    assert started["load_at_start"]["load_1min"] >= 0
    found = provenance.of_rank((0,), 1, started=started)
    assert found["node"]["load_at_start"] == started["load_at_start"]
    file = tmp_path / "loadavg"
    file.write_text("12.50 3.25 1.00 7/1234 4711\n")
    assert load.collect(file) == {
        "load_1min": 12.5, "load_5min": 3.25, "load_15min": 1.0, "running_threads": 7,
    }  # fmt: skip


def test_containers(tmp_path: Path) -> None:
    assert container.collect({}, tmp_path) == {}
    (tmp_path / ".dockerenv").touch()
    assert container.collect({}, tmp_path) == {"kind": "docker"}
    inside = {"SINGULARITY_NAME": "t.sif", "APPTAINER_NAME": "t.sif"}
    assert container.collect(inside, tmp_path) == {"kind": "apptainer", "name": "t.sif"}
    assert container.collect({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == {
        "kind": "kubernetes"
    }


def test_a_rank_starts_without_slow_imports() -> None:
    code = (
        "import sys; from harness import provenance; provenance.of_rank((0,), 1);"
        "print(sorted({'pandas', 'pyarrow', 'torch', 'tensorflow', 'scipy', 'matplotlib',"
        " 'pynvml'} & set(sys.modules)))"
    )
    root = Path(harness.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    package = tmp_path / "harness"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    return package


def test_the_commit_is_known_and_so_is_a_change(repository: Path) -> None:
    clean = git.collect(repository)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (repository / "__init__.py").write_text("x = 2\n")
    assert git.collect(repository) == {"commit": clean["commit"], "dirty": True}


def test_a_package_below_another_repository_has_no_commit(repository: Path) -> None:
    installed = repository / ".venv" / "harness"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git.collect(installed) == {}


def test_without_a_repository_there_is_no_commit_and_without_git_a_reason(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    monkeypatch.setenv("PATH", str(outside))
    with pytest.raises(UnknownError, match="git is not installed"):
        git.collect(repository)
    shutil.rmtree(tmp_path / ".git")
    assert git.collect(repository) == {}


def test_a_repository_that_git_will_not_read_is_a_reason(repository: Path) -> None:
    (repository.parent / ".git" / "HEAD").write_text("nonsense")
    with pytest.raises(UnknownError, match="not a git repository"):
        git.collect(repository)
