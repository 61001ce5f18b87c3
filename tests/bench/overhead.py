"""Steps a second under ``hvdscale bench`` against a bare Horovod loop, in interleaved launches."""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config import RunConfig, run_id
from harness.detect import Machine, detect_machine
from harness.launch import build
from harness.legal import resolve
from harness.processes import MARKER, end_launch
from harness.spec import BlockRef, RunSpec
from harness.stats import geometric_interval
from harness.store import Store

BARE = Path(__file__).with_name("bare.py")
ROOT = Path(__file__).parents[2]
SAMPLES, BATCH, WARMUP_STEPS = 20_000, 75, 20
WINDOW_S = 3.0
TIMEOUT_S = 120.0
BUDGET = 0.98


@dataclass(frozen=True)
class Ratios:
    """Steps a second under bench over the bare loop's, by pair of neighbouring launches."""

    backend: str
    pairs: tuple[float, ...]
    bare_steps_per_s: float  # geometric mean

    @property
    def mean(self) -> float:
        """Return the geometric mean."""
        return math.exp(sum(map(math.log, self.pairs)) / len(self.pairs))

    def __str__(self) -> str:
        found = geometric_interval({("pair", i): ratio for i, ratio in enumerate(self.pairs)})
        interval = f"{found.low:.3f} to {found.high:.3f}" if len(self.pairs) > 1 else "none"
        return (
            f"{self.mean:.3f} of {self.bare_steps_per_s:.1f} steps/s "
            f"(pairs {min(self.pairs):.3f} to {max(self.pairs):.3f}, n = {len(self.pairs)}; "
            f"95 % interval {interval})"
        )


def measure(backend: str, pairs: int, limit_s: float, folder: Path) -> Ratios:
    """Launch bare, bench, bench, bare, … with two ranks: ``pairs`` of each, after one to settle.

    Neighbours make a pair; their order alternates, so that a drift of the machine favours neither.
    After ``limit_s`` no further pair is begun.
    """
    deadline = time.monotonic() + limit_s
    machine = detect_machine(slots=2)
    store = Store.open(folder / backend, create=True)
    # The first launch makes the data and tells how many steps fill the window.
    steps = math.ceil(WINDOW_S * _bench(backend, 50, 0, machine, store))
    ratios, bare_rates = [], []
    for number in range(pairs):
        if ratios and time.monotonic() > deadline:
            break
        rates = {}
        for kind in ("bare", "bench") if number % 2 == 0 else ("bench", "bare"):
            if kind == "bare":
                rates[kind] = _bare(backend, steps, machine, store)
            else:
                rates[kind] = _bench(backend, steps, number + 1, machine, store)
        ratios.append(rates["bench"] / rates["bare"])
        bare_rates.append(math.log(rates["bare"]))
    return Ratios(backend, tuple(ratios), math.exp(sum(bare_rates) / len(ratios)))


def _config(backend: str, steps: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "workload": {"name": "stress_strain", "samples": SAMPLES},
            "engine": "horovod",
            "backend": backend,
            "placement": "1x2",
            "batch_size": BATCH,
            "cores_per_rank": 1,
            "measure": {
                "warmup_steps": WARMUP_STEPS,
                "window_s": 1e-3,  # the number of steps alone decides
                "min_steps": steps,
                "instruments": [],
            },
        }
    )


def _bench(backend: str, steps: int, repeat: int, machine: Machine, store: Store) -> float:
    """Launch ``hvdscale bench --run`` as a sweep does; return steps a second of its record."""
    config = _config(backend, steps)
    identity = run_id(config, repeat)
    attempt, log_dir = store.claim_attempt(identity)
    resolved = resolve(config, machine)
    run_file = log_dir / "run.json"
    RunSpec(
        run_id=identity,
        attempt=attempt,
        sweep=store.name,
        config=config,
        resolved=resolved,
        block=BlockRef(repeat=repeat, allocation="local:here"),
        results=store.path,
        log_dir=log_dir,
        data_dir=_data_dir(store),
        timeout_s=TIMEOUT_S,
    ).write(run_file)
    command = build(config, machine, str(run_file), resolved, timeout_s=TIMEOUT_S)
    _launch(command.argv, command.env, log_dir)
    window = store.read(identity).window
    assert window is not None  # an ok record has one
    assert window.steps == steps
    return window.steps / window.wall_s


def _bare(backend: str, steps: int, machine: Machine, store: Store) -> float:
    """Launch the bare loop by the same launcher in the same environment."""
    out = store.path / "bare.json"
    program = (
        *(str(BARE), "--data-dir", str(_data_dir(store)), "--samples", str(SAMPLES)),
        *("--batch-size", str(BATCH), "--warmup-steps", str(WARMUP_STEPS)),
        *("--steps", str(steps), "--out", str(out)),
    )
    command = build(
        _config(backend, steps), machine, "unused", timeout_s=TIMEOUT_S, program=program
    )
    _launch(command.argv, command.env, store.path)
    rate = json.loads(out.read_text())["steps_per_s"]
    out.unlink()
    return float(rate)


def _launch(argv: tuple[str, ...], env: Mapping[str, str], logs: Path) -> None:
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
        said = [*_tails(logs), done.stdout[-2000:], done.stderr[-2000:]]
        raise RuntimeError("\n".join([f"exit code {done.returncode}: {' '.join(argv)}", *said]))


def _tails(logs: Path) -> Iterator[str]:
    for log in sorted(logs.glob("rank-*.log")):
        yield f"{log.name}: {log.read_text(errors='replace')[-2000:]}"


def _data_dir(store: Store) -> Path:
    return store.path.parent / "data"
