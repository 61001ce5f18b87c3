"""Real ranks in tests: a program started by the product's own launchers, its answers by rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.detect import Machine, detect_machine
from harness.launch import build
from harness.legal import resolve
from harness.spec import BlockRef, RunSpec

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


def machine() -> Machine:
    """Return this machine with room for two ranks, however few cores it has."""
    return detect_machine(slots=2)


def point(
    engine: str, backend: str | None, ranks: int, framework: str = "torch", **changes: Any
) -> RunConfig:
    """Return a small point of the regressor."""
    data: dict[str, Any] = {
        "workload": {"name": "stress_strain", "framework": framework, "samples": 4000},
        "engine": engine,
        "backend": backend,
        "placement": f"1x{ranks}",
        "batch_size": 20,
        "cores_per_rank": 1,
        "measure": {"warmup_steps": 2, "window_s": 0.2, "min_steps": 5},
    }
    return RunConfig.model_validate(data | changes)


def spec_of(config: RunConfig, folder: Path, here: Machine, data_dir: Path) -> RunSpec:
    """Return a RunSpec that puts everything under ``folder``."""
    return RunSpec(
        run_id="test",
        attempt=1,
        sweep="test",
        config=config,
        resolved=resolve(config, here),
        block=BlockRef(repeat=0, allocation="local:test"),
        results=folder,
        log_dir=folder,
        data_dir=data_dir,
        timeout_s=120,
    )


def run_program(
    name: str, config: RunConfig, folder: Path, data_dir: Path, *arguments: str
) -> list[Any]:
    """Run ``programs/NAME.py SPEC ARGUMENTS`` as the ranks of ``config``; return their answers.

    A program writes its answer as JSON to ``rank-K.json`` beside the spec.
    """
    here = machine()
    folder.mkdir(parents=True, exist_ok=True)
    spec_file = folder / "run.json"
    spec_file.write_bytes(spec_of(config, folder, here, data_dir).text())
    program = (str(PROGRAMS / f"{name}.py"), str(spec_file), *arguments)
    command = build(config, here, str(spec_file), timeout_s=600, program=program)
    # An empty entry would be the working folder.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        command.argv,
        env={**os.environ, **command.env, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    answers = [folder / f"rank-{rank}.json" for rank in range(config.world_size)]
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert all(answer.exists() for answer in answers), done.stderr[-3000:]
    return [json.loads(answer.read_text()) for answer in answers]


if __name__ == "__main__":
    print(machine(), file=sys.stderr)
