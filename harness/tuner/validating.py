"""The validation: default, winner and Horovod's autotuner in interleaved blocks of their own sweep.

Nothing that the search has measured is used: the best of many is too good to be true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.config.models import HorovodTuning
from harness.detect import Machine
from harness.launch.environment import AUTOTUNE_FILE
from harness.record import RunRecord
from harness.runner.progress import Report
from harness.runner.running import Launch
from harness.runner.schedule import Work, planned
from harness.runner.sweep import Summary, run_sweep
from harness.stats import geometric_interval
from harness.store import Store
from harness.tuner.autotune_log import Chosen, read_log
from harness.tuner.outcome import Arm
from harness.tuner.request import Request, validation_sweep
from harness.tuner.verdict import Gain, judge


@dataclass(frozen=True)
class Setup:
    """What is validated, how and where."""

    request: Request
    base: RunConfig
    winner: HorovodTuning
    blocks: int
    autotune: bool
    timeout_s: float
    machine: Machine
    results: Path
    data_dir: Path


@dataclass(frozen=True)
class Validated:
    """What the validation came to, as far as it went."""

    ended: Summary  # of what ran last, the validation or the search before it
    folder: Path | None = None  # None where there was nothing to validate, or no time yet
    failed: int = 0  # launches
    arms: tuple[Arm, ...] = ()
    over_default: Gain | None = None
    over_autotune: Gain | None = None
    chosen: Chosen | None = None
    searching_still: int = 0
    device: str = ""
    date: str = ""


def validate(
    setup: Setup, *, report: Report, launch: Launch, spend: Callable[..., None]
) -> Validated:
    """Run what is missing of the validation, and judge it; ``spend`` notes the time it took."""
    sweep = validation_sweep(
        setup.request,
        setup.winner,
        setup.blocks,
        autotune=setup.autotune,
        timeout_s=setup.timeout_s,
    )
    done = run_sweep(
        sweep,
        setup.machine,
        setup.results,
        report=report,
        data_dir=setup.data_dir,
        launch=launch,
    )
    spend(spending=done.ok + done.failed > 0)
    return _judged(planned(sweep, setup.machine, setup.results), done, setup)


def _judged(work: Work, done: Summary, setup: Setup) -> Validated:
    store = Store.open(work.folder)
    names = {
        point_id(config): _arm(config.horovod, setup.base.horovod) for config in work.plan.points
    }
    found: dict[str, list[RunRecord]] = {name: [] for name in names.values()}
    for config in work.plan.points:
        for repeat in range(work.blocks):
            name = run_id(config, repeat)
            if store.is_done(name):
                found[names[point_id(config)]].append(store.read(name))
    every = [record for records in found.values() for record in records]
    rates = {name: _rates(records) for name, records in found.items()}
    logs = [
        read_log(store.logs / record.run_id / str(record.attempt) / AUTOTUNE_FILE)
        for record in found.get("autotune", [])
    ]
    still = sum(log is None for log in logs)
    winner = rates.get("winner", rates["default"])
    return Validated(
        ended=done,
        folder=done.folder,
        failed=done.failed,
        arms=tuple(
            Arm(name, geometric_interval(rate) if rate else None, len(rate))
            for name, rate in rates.items()
        ),
        over_default=judge(winner, rates["default"], "default") if "winner" in rates else None,
        over_autotune=judge(winner, rates["autotune"], "autotune") if "autotune" in rates else None,
        chosen=next((log for log in logs if log is not None), None),
        searching_still=still,
        device=_device(every),
        date=_date(every),
    )


def nothing_to_compare(done: Summary, record: RunRecord) -> Validated:
    """Return the validation of a search whose best is the default, without an autotuner."""
    return Validated(done, device=_device([record]), date=_date([record]))


def _arm(tuning: HorovodTuning, default: HorovodTuning) -> str:
    if tuning.autotune:
        return "autotune"
    return "default" if tuning == default else "winner"


def _rates(records: list[RunRecord]) -> dict[tuple[str, int], float]:
    return {
        (record.block.allocation, record.block.repeat): record.window.throughput_samples_per_s
        for record in records
        if record.window is not None
    }


def _date(records: list[RunRecord]) -> str:
    return max((record.ended_at[:10] for record in records), default="")


def _device(records: list[RunRecord]) -> str:
    """Return the model of the devices, the CPU's where there is no GPU; "" if nothing tells."""
    for record in records:
        gpu: dict[str, Any] = record.provenance.get("gpu") or {}
        if model := gpu.get("model") or record.provenance.get("cpu_model"):
            return str(model)
    return ""
