"""One launch: from a planned point to a record, whatever happens meanwhile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.clock import utc_now
from harness.config import RunConfig
from harness.config.instruments import is_timeline
from harness.config.training import is_training
from harness.detect import Machine
from harness.errors import HarnessError, StoreError, ValidationError
from harness.launch import Command, build
from harness.provenance.slurm import slurm_facts
from harness.record import Kind, RunError, RunRecord
from harness.runner.diagnose import INTERRUPTED, Verdict, diagnose
from harness.runner.ended_by import ended_by
from harness.runner.interrupts import Interrupts
from harness.runner.launcher import Ending, Guard, new_launch_id, run_launch
from harness.runner.logs import Logs, read_logs
from harness.runner.schedule import Planned
from harness.scratch import asked_for
from harness.spec import RunSpec
from harness.store import Store, write_atomic
from harness.store.files import named_errors
from harness.watchdog import RUNNER_PID

#: How long a signal of Slurm's may take from the first process of a job to the last.
_SIGNALLED_S = 1.0


@dataclass(frozen=True)
class Place:
    """Where and how launches of a sweep run: what all of them share."""

    machine: Machine
    store: Store
    data_dir: Path
    timeout_s: float


@dataclass(frozen=True)
class Done:
    """A launch that is over, and its record."""

    record: RunRecord
    wall_s: float
    elsewhere: bool = False  # a runner on another host was faster: the record is its, not ours


def command(launch: Planned, place: Place, run_file: Path) -> Command:
    """Return what starts a launch; pure, so a dry run prints what a run starts."""
    return build(
        launch.config,
        place.machine,
        str(run_file),
        launch.resolved,
        timeout_s=place.timeout_s,
    )


def runner_environment(launch: Planned) -> dict[str, str]:
    """Return what lets the ranks see that this process is gone; for one host only.

    On another host this pid is nobody, or somebody else.
    """
    return {RUNNER_PID: str(os.getpid())} if len(launch.resolved.placement) == 1 else {}


def launch_point(launch: Planned, place: Place, guard: Guard, interrupts: Interrupts) -> Done:
    """Run a launch to its end; return its record, ok or not, which is in the store by then."""
    attempt, log_dir = place.store.claim_attempt(launch.run_id)
    launch_id = new_launch_id()
    spec = _spec(launch, place, attempt, log_dir, launch_id)
    run_file = log_dir / "run.json"
    started_at = utc_now()
    argv: tuple[str, ...] = ()
    try:
        if launch.problem:
            raise ValidationError(launch.problem)
        made = command(launch, place, run_file)
    except HarnessError as error:
        ending = Ending(exit_code=None, wall_s=0.0, start_error=str(error))
    else:
        argv = made.argv
        _write(spec.model_copy(update={"argv": argv}), run_file)
        ending = run_launch(
            made.argv,
            {**made.env, **runner_environment(launch)},
            launch_id,
            log_dir / "launcher.log",
            place.timeout_s,
            guard,
            interrupts,
            signalled_s=_SIGNALLED_S if place.machine.slurm is not None else 0.0,
        )
    record = _committed(place.store, spec)
    if record is not None and record.attempt != attempt:
        return Done(record, ending.wall_s, elsewhere=True)  # our ranks were late, not at fault
    # What was measured before the user interrupted stays, though its ranks had no time to leave.
    if record is not None and (ending.exit_code == 0 or ending.interrupted):
        return Done(record, ending.wall_s)
    why = ended_by(ending.signal, place.machine) if ending.interrupted else INTERRUPTED
    failed = _failure(spec, ending, log_dir, argv, started_at, why)
    if record is not None:
        place.store.retract(spec.run_id, f"attempt {attempt}: {_cause(failed)}")
    return Done(place.store.add_failure(failed), ending.wall_s)


def _spec(launch: Planned, place: Place, attempt: int, log_dir: Path, launch_id: str) -> RunSpec:
    return RunSpec(
        run_id=launch.run_id,
        attempt=attempt,
        sweep=place.store.name,
        config=launch.config,
        resolved=launch.resolved,
        block=launch.block,
        results=place.store.path,
        log_dir=log_dir,
        data_dir=place.data_dir,
        scratch=asked_for(os.environ),
        timeout_s=place.timeout_s,
        launch_id=launch_id,
    )


def _write(spec: RunSpec, run_file: Path) -> None:
    with named_errors(run_file, "written"):
        write_atomic(run_file, spec.text())


def _committed(store: Store, spec: RunSpec) -> RunRecord | None:
    """Return the record that is committed by now, by this attempt or by another runner's."""
    return store.read(spec.run_id) if spec.run_id in store.verify([spec.run_id]) else None


def _failure(
    spec: RunSpec,
    ending: Ending,
    log_dir: Path,
    argv: tuple[str, ...],
    started_at: str,
    interrupted: Verdict,
) -> RunRecord:
    logs = read_logs(log_dir)
    verdict = diagnose(ending, logs, spec.timeout_s, spec.resolved.world_size, interrupted)
    return RunRecord(
        kind=kind_of(spec.config),
        run_id=spec.run_id,
        attempt=spec.attempt,
        status=verdict.status,
        sweep=spec.sweep,
        block=spec.block,
        config=spec.config,
        resolved=spec.resolved,
        started_at=started_at,
        ended_at=utc_now(),
        argv=argv,
        slurm=slurm_facts(os.environ),
        error=_error(verdict, ending, logs),
    )


def kind_of(config: RunConfig) -> Kind:
    """Return what a launch of ``config`` is for."""
    if is_training(config):
        return "train"
    return "timeline" if is_timeline(config) else "bench"


def _error(verdict: Verdict, ending: Ending, logs: Logs) -> RunError:
    return RunError(
        cause=verdict.cause,
        exit_code=ending.exit_code,
        rank_tails=logs.rank_tails(),
        launcher_tail=logs.launcher_tail(),
    )


def _cause(record: RunRecord) -> str:
    if record.error is None:
        raise StoreError(f"{record.run_id}: a failed record without a cause")
    return record.error.cause
