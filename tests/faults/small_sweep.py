"""The sweep that faults are injected into: small points of two ranks, a batch size each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.requirements import require_modules, require_mpi

ROOT = Path(__file__).parents[2]
#: What makes ranks fail, as a folder on the PYTHONPATH.
INJECT = Path(__file__).with_name("inject")
#: Launcher → engine and backend that are tried under it.
ENGINES = {
    "mpirun": ("horovod", "mpi"),
    "horovodrun": ("horovod", "gloo"),
    "torchrun": ("ddp", "gloo"),
}
_SWEEP = """\
name: {name}
workload: {{name: stress_strain, samples: 2000}}
engine: {engine}
backend: {backend}
launcher: {launcher}
placement: 1x2
cores_per_rank: 1
batch_size: {batches}
base: null
measure: {{warmup_steps: 2, window_s: 0.2, min_steps: 3, blocks: {blocks}, timeout_s: {timeout_s},
           instruments: []}}
{more}"""


def require_launcher(launcher: str) -> None:
    """Require what ranks under ``launcher`` are made of."""
    engine, backend = ENGINES[launcher]
    require_modules("torch", *(["horovod"] if engine == "horovod" else []))
    if backend == "mpi":
        require_mpi()


def sweep_text(
    name: str,
    launcher: str,
    batches: Iterable[int],
    *,
    blocks: int = 1,
    timeout_s: float,
    more: str = "",
) -> str:
    """Return the sweep's YAML, with ``more`` lines of it."""
    engine, backend = ENGINES[launcher]
    return _SWEEP.format(
        name=name,
        engine=engine,
        backend=backend,
        launcher=launcher,
        batches=list(batches),
        blocks=blocks,
        timeout_s=timeout_s,
        more=more,
    )


def run_command(sweep: Path, results: Path) -> list[str]:
    """Return the words of ``hvdscale run``, on a host that takes two ranks."""
    options = ["--results", str(results), "--slots", "2"]
    return [sys.executable, "-m", "harness", "run", str(sweep), *options]


def environment(
    data_dir: Path, faults: Mapping[int, str], *, inject: Path = INJECT
) -> dict[str, str]:
    """Return what the environment has more where launches have ``faults`` by batch size."""
    return {
        "PYTHONPATH": os.pathsep.join([str(inject), str(ROOT)]),
        "HVDSCALE_DATA_DIR": str(data_dir),
        "HVDSCALE_TEST_FAULTS": ",".join(f"{batch}={how}" for batch, how in faults.items()),
    }
