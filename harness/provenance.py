"""Where a measurement comes from: one collector a source, none of which may fail a run."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import harness

#: The only variables that enter a record; everything else in an environment may be a secret.
ENVIRONMENT = re.compile(
    r"(NCCL|HOROVOD|UCX|OMP|MKL|OPENBLAS|CUDA)_[A-Z0-9_]+"
    # What a user sets for Open MPI. Its mpirun sets others for its ranks: addresses, and a key.
    r"|OMPI_MCA_(btl|pml|mtl|coll|opal|hwloc|rmaps)(_[A-Za-z0-9_]+)?"
    r"|GLOO_SOCKET_IFNAME"
    r"|SLURM_(JOB_ID|ARRAY_JOB_ID|ARRAY_TASK_ID|JOB_PARTITION|JOB_NODELIST|NNODES|NTASKS)"
)
#: Allowed by the rule above, and still not to be kept.
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|PASSPHRASE|KEY|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)

_PACKAGES = ("hvdscale", "torch", "tensorflow", "keras", "horovod", "mpi4py", "numpy", "pyarrow")


def collect(
    rank_facts: list[Mapping[str, Any]], engine_versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return a launch's provenance as plain data; ``rank_facts`` is every rank's ``of_rank``."""
    return {
        "harness": {"version": harness.__version__, **_git(Path(__file__).parent)},
        "python": platform.python_version(),
        "packages": _packages(),
        "versions": dict(engine_versions),
        "kernel": platform.release(),
        "hosts": sorted({str(facts["host"]) for facts in rank_facts}),
        "cpu_model": _common(rank_facts, "cpu_model"),
        "cores": _common(rank_facts, "node_cores"),
        "ranks": [dict(facts) for facts in rank_facts],
        "environment": environment(os.environ),
        "executable": sys.executable,
    }


def of_rank(cores: tuple[int, ...], threads: int) -> dict[str, Any]:
    """Return what differs between ranks: host, process, the cores and threads it has."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cores": cores,
        "threads": threads,
        "cpu_model": _cpu_model(),
        "node_cores": os.cpu_count(),
    }


def _common(rank_facts: list[Mapping[str, Any]], key: str) -> Any:
    """Return what all ranks have, or all that they have where they differ."""
    found = list(dict.fromkeys(facts[key] for facts in rank_facts))
    return found[0] if len(found) == 1 else " / ".join(map(str, found))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the allow-listed part of an environment."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if ENVIRONMENT.fullmatch(name) and not _SECRET.search(name)
    }


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor()


def _git(folder: Path) -> dict[str, Any]:
    """Return commit and dirty flag where the harness runs from its repository."""
    commit = _run_git(folder, "rev-parse", "HEAD")
    # Installed into a folder below some other repository, that one's commit would be a lie.
    tracked = _run_git(folder, "ls-files", "--error-unmatch", "provenance.py")
    if commit is None or tracked is None:
        return {}
    return {"commit": commit, "dirty": bool(_run_git(folder, "status", "--porcelain", "-uno"))}


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
