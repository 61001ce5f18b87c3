"""What the readers of detection make of real tools' output."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness import detect
from harness.detect import (
    Gpu,
    Host,
    detect_machine,
    detect_mpi,
    inspect_mpi,
    parse_counts,
    parse_cuda_support,
    parse_gpus,
    parse_mpi_plugins,
    parse_mpi_version,
    torch_cuda_version,
    which_outside,
)
from harness.errors import ConfigError
from harness.provenance.slurm import slurm_facts

GPUS = """\
0, GPU-aaaa, NVIDIA H100 80GB HBM3, 81559, 9.0, 580.65
1, GPU-bbbb, NVIDIA H100 80GB HBM3, 81559, 9.0, 580.65
2, GPU-cccc, NVIDIA H100 80GB HBM3, 81559, 9.0, 580.65
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", ("openmpi", "5.0.11")),
        ("mpirun (Open MPI) 4.1.4\n", ("openmpi", "4.1.4")),
        ("HYDRA build details:\n    Version:                    5.0.2\n", ("mpich", "5.0.2")),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307",
            ("intel", "2021.9"),
        ),
        ("slurm-wlm 23.11", ("unknown", "")),
        ("", ("unknown", "")),
    ],
)
def test_mpi_versions(text: str, expected: tuple[str, str]) -> None:
    assert parse_mpi_version(text) == expected


def test_cuda_support_is_what_was_built_in_not_what_is_switched_on() -> None:
    assert parse_cuda_support("mca:mpi:base:param:mpi_built_with_cuda_support:value:true\n")
    assert parse_cuda_support("mca:opal:base:param:opal_built_with_cuda_support:value:true\n")
    assert not parse_cuda_support("mca:opal:base:param:opal_built_with_cuda_support:value:false\n")
    assert not parse_cuda_support("mca:opal:base:param:opal_cuda_support:value:true\n")


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-bbbb", [1]),
        ("0,7,1", [0]),  # CUDA stops at the first device that is not there
        ("-1", []),
    ],
)
def test_visible_gpus(visible: str | None, indices: list[int]) -> None:
    gpus = parse_gpus(GPUS, visible)
    assert [gpu.index for gpu in gpus] == indices
    if indices == [1]:
        assert gpus == (Gpu(1, "NVIDIA H100 80GB HBM3", 81559, "9.0", "580.65"),)


def test_a_driver_that_fails_is_no_gpu() -> None:
    assert parse_gpus("Failed to initialize NVML: Driver/library version mismatch", None) == ()


def test_slurm_counts() -> None:
    assert parse_counts("48(x2),24") == (48, 48, 24)
    assert parse_counts("2") == (2,)
    assert parse_counts("") == ()
    assert parse_counts("two") == ()


def test_mpi_plugins_of_srun() -> None:
    text = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n"
    text += "specific pmix plugin versions available: pmix_v4\n"
    assert parse_mpi_plugins(text) == ("none", "pmi2", "pmix", "pmix_v4")


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ("cuda: Optional[str] = None", ""),
        ("cuda = '12.8'", "12.8"),
        ("cudnn = '9.1'", ""),
    ],
)
def test_torch_tells_its_cuda_without_being_imported(
    line: str, version: str, tmp_path: Path
) -> None:
    (tmp_path / "version.py").write_text(f"debug = False\n{line}\nhip = None\n")
    assert torch_cuda_version(tmp_path) == version


def script(place: Path, text: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return place


@pytest.fixture
def both_mpis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An environment with Open MPI 5 and a system with Open MPI 4, both on the PATH."""
    environment, system = tmp_path / "env", tmp_path / "system"
    script(environment / "bin" / "mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
    script(system / "bin" / "mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    monkeypatch.setenv("PATH", f"{environment}/bin:{system}/bin")
    monkeypatch.setattr(detect, "read_build_marker", dict)
    return environment, system


def test_mpi_by_source(both_mpis: tuple[Path, Path]) -> None:
    environment, system = both_mpis
    wheel = detect_mpi("wheel", environment)
    assert wheel is not None
    assert (wheel.version, wheel.source, wheel.major) == ("5.0.11", "wheel", 5)
    found = detect_mpi("system", environment)
    assert found is not None
    assert (found.version, found.mpirun) == ("4.1.4", str(system / "bin" / "mpirun"))


def test_auto_takes_what_horovod_was_built_for(
    both_mpis: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, system = both_mpis
    assert version_of_auto(environment) == "5.0.11"  # the system's cannot compile
    script(system / "bin" / "mpicc", "true")
    assert version_of_auto(environment) == "4.1.4"
    monkeypatch.setattr(detect, "read_build_marker", lambda: {"mpi": {"source": "wheel"}})
    assert version_of_auto(environment) == "5.0.11"
    monkeypatch.setattr(detect, "read_build_marker", lambda: {"mpi": None})  # --mpi none
    assert version_of_auto(environment) == "4.1.4"


def version_of_auto(environment: Path) -> str:
    mpi = detect_mpi("auto", environment)
    assert mpi is not None
    return mpi.version


def test_cuda_awareness_is_asked_of_the_ompi_info_beside_mpirun(tmp_path: Path) -> None:
    mpirun = script(tmp_path / "bin" / "mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
    mpi = inspect_mpi(mpirun, "wheel", tmp_path)
    assert mpi is not None
    assert not mpi.cuda_aware
    line = "mca:opal:base:param:opal_built_with_cuda_support:value:true"
    script(tmp_path / "bin" / "ompi_info", f'[ "$OPAL_PREFIX" = {tmp_path} ] && echo {line}')
    mpi = inspect_mpi(mpirun, "wheel", tmp_path)
    assert mpi is not None
    assert mpi.cuda_aware


def test_an_mpirun_that_does_not_run_is_none(tmp_path: Path) -> None:
    assert inspect_mpi(script(tmp_path / "mpirun", "exit 1"), "system", tmp_path) is None


def test_outside_means_outside_also_through_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "env" / "bin" / "mpicc", "true")
    (tmp_path / "link").symlink_to(tmp_path / "env" / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/link:{tmp_path}/env/bin")
    assert which_outside(tmp_path / "env", "mpicc") is None


def test_the_systems_python_shares_its_folder_with_the_systems_mpi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpicc = script(tmp_path / "bin" / "mpicc", "true")
    script(tmp_path / "bin" / "mpirun", "echo 'mpirun (Open MPI) 4.1.6'")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.setattr(detect, "SYSTEM_PREFIXES", (tmp_path,))
    monkeypatch.setattr(detect, "read_build_marker", dict)
    monkeypatch.setattr(detect, "_has_mpi_wheel", lambda: False)
    assert which_outside(tmp_path, "mpicc") == mpicc
    assert detect_mpi("wheel", tmp_path) is None
    mpi = detect_mpi("auto", tmp_path)
    assert mpi is not None
    assert (mpi.version, mpi.source) == ("4.1.6", "system")
    monkeypatch.setattr(detect, "_has_mpi_wheel", lambda: True)
    mpi = detect_mpi("auto", tmp_path)
    assert mpi is not None
    assert mpi.source == "wheel"


def test_the_marker_of_another_build_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect, "package_folder", lambda name: tmp_path)
    assert detect.read_build_marker() == {}
    (tmp_path / detect.BUILD_MARKER).write_text("[1]")
    assert detect.read_build_marker() == {}
    (tmp_path / detect.BUILD_MARKER).write_text(json.dumps({"digest": "abc"}))
    assert detect.read_build_marker() == {"digest": "abc"}


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    machine = detect_machine(slots=7)
    assert machine.slots == 7
    assert len(machine.hosts) == 1
    assert machine.hosts[0].cores >= 1
    assert "lo" not in machine.interfaces


def test_an_allocation_of_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NODELIST": "n[01-02]",
        "SLURM_JOB_CPUS_PER_NODE": "48,24",
        "SLURM_JOB_PARTITION": "alpha",
        "HVDSCALE_PYTHON_MPI_HOST": "/staged/bin/python",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    machine = detect_machine()
    assert machine.slurm is not None
    assert (machine.slurm.job_id, machine.slurm.partition) == ("42", "alpha")
    assert machine.hosts == (Host("n01", 48, 48), Host("n02", 24, 24))
    assert machine.python_by_backend == {"mpi-host": "/staged/bin/python"}
    assert [host.slots for host in detect_machine(slots=2).hosts] == [2, 2]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_NODELIST", "n[1-99999999]"),
        ("SLURM_JOB_NODELIST", "n[1-"),
        ("SLURM_JOB_ID", "../../elsewhere"),
        ("SLURM_JOB_ID", "4\n2"),
        ("SLURM_JOB_ID", "9" * 5000),
    ],
)
def test_what_no_slurm_sets_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    for one, given in {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n1", name: value}.items():
        monkeypatch.setenv(one, given)
    with pytest.raises(ConfigError, match=rf"^{name}=.*unset the SLURM_ variables") as found:
        detect_machine()
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(("step", "inside"), [("0", True), ("4294967290", False), ("", False)])
def test_a_shell_under_srun_is_told_from_one_of_salloc(
    monkeypatch: pytest.MonkeyPatch, step: str, inside: bool
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_STEP_ID", step)
    found = detect.detect_slurm()
    assert found is not None
    assert found.in_step is inside


def test_a_count_of_restarts_that_is_none_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "9" * 5000)
    found = detect.detect_slurm()
    assert found is not None
    assert found.restart_count == 0
    assert (slurm_facts(os.environ) or {})["restart_count"] == 0


def test_an_allocation_of_one_node_has_slurms_name(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {
        "SLURM_JOB_ID": "42",
        "SLURM_JOB_NODELIST": "n7",
        "SLURM_JOB_CPUS_PER_NODE": "6",
        "CUDA_VISIBLE_DEVICES": "",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert detect_machine().hosts == (Host("n7", 6, 6),)


def test_a_login_node_is_none_of_its_allocations_nodes() -> None:
    """Slurm says where it started a process; else names tell, short or long."""
    nodes = (Host("n1", 4, 4), Host("n2.cluster", 4, 4))
    assert detect.is_outside({}, "login", nodes)
    assert not detect.is_outside({}, "n1.cluster", nodes)
    assert not detect.is_outside({}, "n2", nodes)
    assert not detect.is_outside({"SLURMD_NODENAME": "n1"}, "a-name-of-its-own", nodes)


def test_what_a_shell_says_to_ranks_is_for_other_hosts_too() -> None:
    """Not what is right on this host only, nor what an MPI hands on itself, nor anything else."""
    names = [
        *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "XDG_CACHE_HOME"),
        *("HVDSCALE_DATA_DIR", "HVDSCALE_PYTHON_MPI_HOST", "NCCL_IB_HCA", "UCX_TLS", "FI_PROVIDER"),
        *("PYTHONPATH", "PYTHONUTF8", "OMP_PROC_BIND", "MKL_NUM_THREADS", "CUDA_HOME", "GLOO_X"),
        *("TF_CPP_MIN_LOG_LEVEL", "TORCH_LOGS", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
    ]
    others = [
        *("HOME", "USER", "SLURM_JOB_ID", "TMPDIR", "PATHS", "AWS_SECRET_ACCESS_KEY", "OLDPWD"),
        *("CUDA_VISIBLE_DEVICES", "HVDSCALE_RUNNER_PID", "HOROVOD_RANK", "HOROVOD_LOCAL_SIZE"),
        *("OMPI_MCA_btl", "PRTE_MCA_plm", "PMIX_RANK", "BASH_FUNC_module%%", "MYPYTHONPATH"),
    ]
    environ = dict.fromkeys([*reversed(names), *others], "x")
    assert detect.exported_names(environ) == tuple(sorted(names))
    assert detect.exported_names({}) == ()


def test_the_machine_knows_what_to_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert {"PATH", "UCX_TLS"} <= set(detect_machine().exported)
