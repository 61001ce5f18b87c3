"""Steps a second of ``hvdscale bench``'s loop against a bare Horovod loop, in one launch."""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config import RunConfig
from harness.detect import detect_machine
from harness.launch import build
from harness.legal import resolve
from harness.processes import MARKER, end_launch
from harness.spec import BlockRef, RunSpec
from harness.stats import geometric_interval

BARE = Path(__file__).with_name("bare.py")
ROOT = Path(__file__).parents[2]
BLOCK_S = 1.5
TIMEOUT_S = 400.0
BUDGET = 0.98


@dataclass(frozen=True)
class Ratios:
    """Steps a second of bench over the bare loop's, by ABBA quad of blocks."""

    backend: str
    quads: tuple[float, ...]
    bare_steps_per_s: float  # geometric mean

    @property
    def mean(self) -> float:
        """Return the geometric mean."""
        return math.exp(sum(map(math.log, self.quads)) / len(self.quads))

    def __str__(self) -> str:
        found = geometric_interval({("quad", i): ratio for i, ratio in enumerate(self.quads)})
        interval = f"{found.low:.3f} to {found.high:.3f}" if len(self.quads) > 1 else "none"
        return (
            f"{self.mean:.3f} of {self.bare_steps_per_s:.1f} steps/s "
            f"(ABBA quads {min(self.quads):.3f} to {max(self.quads):.3f}, n = {len(self.quads)}; "
            f"95 % interval {interval})"
        )


def measure(backend: str, quads: int, folder: Path) -> Ratios:
    """Launch two ranks that run both loops in turns, ``quads`` times bare, bench, bench, bare."""
    folder = folder / backend
    folder.mkdir(parents=True)
    config, machine = _config(backend), detect_machine(slots=2)
    resolved = resolve(config, machine)
    run_file, out = folder / "run.json", folder / "found.json"
    spec = RunSpec(
        run_id="overhead",
        attempt=1,
        sweep="overhead",
        config=config,
        resolved=resolved,
        block=BlockRef(repeat=0, allocation="local:here"),
        results=folder,
        log_dir=folder,
        data_dir=folder.parent / "data",
        timeout_s=TIMEOUT_S,
    )
    run_file.write_bytes(spec.text())
    program = (str(BARE), str(run_file), str(out), str(quads), str(BLOCK_S))
    command = build(config, machine, str(run_file), resolved, timeout_s=TIMEOUT_S, program=program)
    _launch(command.argv, command.env)
    found = json.loads(out.read_text())
    bare = [math.log(one["bare"]) for one in found]
    ratios = tuple(one["bench"] / one["bare"] for one in found)
    return Ratios(backend, ratios, math.exp(sum(bare) / len(bare)))


def _config(backend: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "workload": {"name": "stress_strain", "samples": 20_000},
            "engine": "horovod",
            "backend": backend,
            "placement": "1x2",
            "batch_size": 75,
            "cores_per_rank": 1,
        }
    )


def _launch(argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    launch_id = secrets.token_hex(16)
    added = {**env, "PYTHONPATH": path, MARKER: launch_id}
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **added},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        end_launch(launch_id)
    if done.returncode:
        said = [done.stdout[-2000:], done.stderr[-2000:]]
        raise RuntimeError("\n".join([f"exit code {done.returncode}: {' '.join(argv)}", *said]))
