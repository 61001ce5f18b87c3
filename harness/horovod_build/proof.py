"""Self-proof of an installed Horovod: two ranks all-reduce, for each framework and controller."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from harness.detect import Mpi, detect_gpus, usable_cores
from harness.errors import BuildError
from harness.horovod_build.options import BuildOptions
from harness.horovod_build.process import run_for

PROOF_TIMEOUT_S = 180.0  # importing TensorFlow twice on two busy cores takes half a minute
PROGRAM = Path(__file__).with_name("proof_program.py")
#: What horovodrun begins with once a rank has failed; its own traceback follows.
_LAUNCHERS_OWN = re.compile(r"^Process \d+ exit with status code|Horovod detected that one or more")


@dataclass(frozen=True)
class Proof:
    """One two-rank run."""

    framework: str
    controller: str
    device: str  # "cpu" | "cuda"
    argv: tuple[str, ...]
    env: Mapping[str, str]

    def __str__(self) -> str:
        """Return what is proven."""
        return f"{self.framework} over {self.controller} on {self.device}"


def plan_proofs(
    options: BuildOptions, mpi: Mpi | None, gpus: int, cores: int, euid: int
) -> tuple[Proof, ...]:
    """Return the runs that prove a build; pure.

    NCCL refuses two ranks on one GPU, so with fewer than two GPUs an NCCL build is proven on the
    CPU; a staged or an MPI build needs one.
    """
    enough = gpus >= (2 if options.gpu == "nccl" else 1)
    device = "cuda" if options.gpu != "none" and enough else "cpu"
    controllers = (["mpi"] if mpi else []) + ([] if options.gpu == "mpi-cuda" else ["gloo"])
    return tuple(
        _plan(framework, controller, device, mpi, cores, euid)
        for framework in options.frameworks
        for controller in controllers
    )


def _plan(
    framework: str, controller: str, device: str, mpi: Mpi | None, cores: int, euid: int
) -> Proof:
    program = (sys.executable, str(PROGRAM), framework, controller, device)
    env = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    if controller == "gloo" or mpi is None:
        launcher = (str(Path(sys.prefix) / "bin" / "horovodrun"), "--gloo", "-np", "2")
        return Proof(framework, controller, device, launcher + program, env)
    env |= {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
    return Proof(
        framework,
        controller,
        device,
        (*mpi_launcher(mpi, cores), *program),
        env | root_variables(mpi, euid),
    )


def mpi_launcher(mpi: Mpi, cores: int) -> tuple[str, ...]:
    """Return the start of a two-rank command line on this host."""
    if mpi.flavour != "openmpi":
        return (mpi.mpirun, "-n", "2")
    # `slot:OVERSUBSCRIBE` is understood by Open MPI 4 and 5; only where there are too few cores.
    mapping = "slot:OVERSUBSCRIBE" if cores < 2 else "slot"
    return (mpi.mpirun, "-np", "2", "--bind-to", "none", "--map-by", mapping)


def root_variables(mpi: Mpi, euid: int) -> dict[str, str]:
    """Return what Open MPI asks of root; nothing for anybody else."""
    if euid != 0 or mpi.flavour != "openmpi":
        return {}
    return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def run_proof(proof: Proof) -> None:
    """Run one proof; ``BuildError`` unless both ranks report it."""
    env = {**os.environ, **proof.env}
    status, output = run_for(list(proof.argv), env, PROOF_TIMEOUT_S)
    proven = [rank for rank in (0, 1) if f"PROVEN {rank} of 2" in output]
    if status == 0 and proven == [0, 1]:
        return
    how = (
        f"did not end within {PROOF_TIMEOUT_S:.0f} s" if status is None else f"ended with {status}"
    )
    raise BuildError(
        f"Horovod is installed but its self-proof ({proof}) {how}: {_telling_line(output)}"
    )


def _telling_line(output: str) -> str:
    said = [line.strip() for line in output.splitlines() if line.strip()]
    # What follows are the launcher's words of how a rank ended; the rank's own say why.
    lines = list(takewhile(lambda line: not _LAUNCHERS_OWN.search(line), said)) or said
    for mark in ("WRONG", "Error", "error", "not found"):
        for line in lines:
            if mark in line:
                return line
    return lines[-1] if lines else "it printed nothing"


def prove(options: BuildOptions, mpi: Mpi | None, report: Callable[[str], None]) -> tuple[str, ...]:
    """Prove the installed Horovod; return what was proven, one text a run."""
    gpus = len(detect_gpus()) if options.gpu != "none" else 0
    proofs = plan_proofs(options, mpi, gpus, usable_cores(), os.geteuid())
    for proof in proofs:
        run_proof(proof)
        report(f"proven: a 2-rank all-reduce with {proof}")
    if options.gpu != "none" and proofs and proofs[0].device == "cpu":
        report(
            f"not proven: --gpu {options.gpu} itself, as {gpus} GPUs are too few here for 2 ranks"
        )
    return tuple(str(proof) for proof in proofs)
