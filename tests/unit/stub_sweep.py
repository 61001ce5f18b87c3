"""Sweeps whose launches are ``stub_launch.py``; as a program, a runner that a test can kill."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import processes
from harness.config import RunConfig, Sweep, parse_sweep
from harness.detect import Host, Machine
from harness.launch import Command
from harness.runner import Summary, point, run_sweep
from harness.runner.progress import PlainReport

STUB = Path(__file__).with_name("stub_launch.py")
ROOT = Path(__file__).parents[2]

Behaviour = Callable[[RunConfig], str]

MACHINE = Machine(
    hosts=(Host("stub", 8, 8),),
    device="cpu",
    launchers={name: f"/bin/{name}" for name in ("mpirun", "horovodrun", "torchrun")},
    modules=frozenset({"torch", "horovod", "mpi4py"}),
)


def make_sweep(
    batches: tuple[int, ...] = (75,), blocks: int = 1, timeout_s: float = 240.0, **measure: Any
) -> Sweep:
    """Return a sweep of one-rank points, one a batch, without a base."""
    return parse_sweep(
        {
            "name": "stub",
            "workload": {"name": "stress_strain", "samples": 400},
            "engine": "none",
            "batch_size": list(batches),
            "base": None,
            "cores_per_rank": 1,
            "measure": {"blocks": blocks, "timeout_s": timeout_s, "window_s": 0.5, **measure},
        }
    )


def long_sweep(points: int, name: str = "stub") -> Sweep:
    """Return a sweep of so many one-rank points, one a seed, without a base."""
    return parse_sweep(
        {
            "name": name,
            "workload": {"name": "stress_strain", "samples": 400},
            "engine": "none",
            "batch_size": 75,
            "seed": list(range(1, points + 1)),
            "base": None,
            "cores_per_rank": 1,
            "measure": {"blocks": 1},
        }
    )


def fake_build(behaviour: Behaviour) -> Callable[..., Command]:
    """Return a ``build`` whose commands start the stub."""

    def build(config: RunConfig, machine: Machine, run_file: str, *_: Any, **__: Any) -> Command:
        argv = (sys.executable, str(STUB), behaviour(config), run_file)
        return Command(argv, {"PYTHONPATH": str(ROOT)})

    return build


def run(sweep: Sweep, results: Path) -> Summary:
    """Run a sweep; what it says goes to stderr."""
    return run_sweep(sweep, MACHINE, results, report=PlainReport(sys.stderr), data_dir=results)


if __name__ == "__main__":
    how, folder, blocks = sys.argv[1:4]
    if how == "hang-deaf":  # only who is told to hurry ends before that
        processes.end_launch.__defaults__ = (None, 300.0, lambda: False)
    point.build = fake_build(lambda config: how)
    sys.exit(run(make_sweep((75, 100, 125), int(blocks)), Path(folder)).exit_code)
