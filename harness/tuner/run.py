"""A tuning from its request to its outcome: search, validation, preset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.config import RunConfig, parse_sweep
from harness.config.models import HorovodTuning
from harness.config.tuning_presets import load_tuning_preset, tuning_preset_names
from harness.detect import Machine
from harness.errors import ConfigError, HarnessError, LaunchError
from harness.paths import default_data_dir
from harness.runner.alone import alone
from harness.runner.point import Place, launch_point
from harness.runner.progress import Report
from harness.runner.running import Launch
from harness.spec import Resolved
from harness.stats import require_scipy
from harness.store import Store
from harness.tuner import validating
from harness.tuner.budget import Costs
from harness.tuner.outcome import Outcome
from harness.tuner.preset_text import check_place, preset_text, write_preset
from harness.tuner.propose import Candidate, require_optuna
from harness.tuner.request import WHERE, Request, base_of, can_autotune
from harness.tuner.searching import DEFAULT, Found, Search
from harness.tuner.space import Space, legal_space, turned, with_tuning
from harness.tuner.state import Memory
from harness.tuner.validating import Validated
from harness.tuning import check_free_to_choose
from harness.validate import check_point, plan, settled

PRESET = "tuned.yaml"


@dataclass(frozen=True)
class _Job:
    """A request that was checked, and where it runs."""

    request: Request
    machine: Machine
    results: Path
    data_dir: Path
    base: RunConfig
    resolved: Resolved
    space: Space
    first: tuple[Candidate, ...]
    no_autotune: str
    notes: tuple[str, ...]

    @property
    def timeout_s(self) -> float:
        return parse_sweep(self.request.data, WHERE).measure.timeout_s


def tune(
    request: Request,
    machine: Machine,
    results: Path,
    *,
    out: Path | None = None,
    report: Report,
    data_dir: Path | None = None,
    launch: Launch = launch_point,
    environ: Mapping[str, str] = os.environ,
) -> Outcome:
    """Search, validate, and write the preset to ``out`` (default: in the search's folder).

    Everything is checked before anything is written or started. Records that are there are used
    again, so that the same request goes on where it ended. Raises HarnessError: a request that
    cannot run, and LaunchError where not a single trial gave a measurement.
    """
    require_optuna()
    require_scipy("the interval of a gain")
    if out is not None:
        check_place(out)
    job = _job(request, machine, results, data_dir or default_data_dir(), environ)
    for note in job.notes:
        report.note(note)
    folder = (results / request.name).absolute()
    if (folder / "sweep.yaml").exists():  # trials would be among its points
        raise ConfigError(f"{WHERE}: {folder} has the results of a sweep; give another --name")
    store = Store.open(folder, create=True)
    with alone(store.path):
        memory = Memory(store.path, request.key)
        place = Place(machine, store, job.data_dir, job.timeout_s)
        search = Search(request, job.base, job.space, job.first, place, memory, report, launch)
        found = search.run()
        validated = _validated(job, found, search.costs(), memory, report, launch)
        return _outcome(job, found, validated, memory, out or store.path / PRESET)


def _job(
    request: Request,
    machine: Machine,
    results: Path,
    data_dir: Path,
    environ: Mapping[str, str],
) -> _Job:
    base = base_of(request)
    plan(parse_sweep(request.data, WHERE), machine, environ)
    resolved = check_point(base, machine)
    base = settled(base, resolved)
    no_autotune = can_autotune(request)
    if not no_autotune:
        check_free_to_choose(environ, "give --no-autotune")

    def check(config: RunConfig) -> Resolved:
        return check_point(config, machine)

    space, left_out = legal_space(base, check, request.fixed, allow_lossy=request.allow_lossy)
    first, unfit = _first(base, machine, request)
    notes = (*_searched(space), *left_out, *unfit)
    return _Job(
        request, machine, results, data_dir, base, resolved, space, first, no_autotune, notes
    )


def _searched(space: Space) -> tuple[str, ...]:
    if not space.knobs:
        return ("there is no knob to turn: all that are legal here are set",)
    return (f"searching {', '.join(knob.name for knob in space.knobs)}",)


def _first(
    base: RunConfig, machine: Machine, request: Request
) -> tuple[tuple[Candidate, ...], list[str]]:
    """Return the default and the named presets that can run here, and why others cannot."""
    first, notes = [Candidate(base.horovod, DEFAULT)], []
    for name in tuning_preset_names():
        fields = load_tuning_preset(name)
        kept = {key: value for key, value in fields.items() if key not in request.fixed}
        tuning = HorovodTuning(**{**base.horovod.model_dump(), **kept})
        try:
            check_point(with_tuning(base, tuning), machine)
        except HarnessError as error:
            notes.append(f"preset {name} is not tried: {error}")
        else:
            first.append(Candidate(tuning, f"preset {name}"))
    return tuple(first), notes


def _validated(
    job: _Job, found: Found, costs: Costs | None, memory: Memory, report: Report, launch: Launch
) -> Validated:
    """Run the validation, unless the search was ended by a signal or there is nothing to do."""
    ended = found.summary
    if ended.interrupted or ended.time_was_near:
        return Validated(ended)
    best, state = found.best, memory.state
    if best is None:
        memory.update(tried=None, ended_by="")  # given again, the command tries again
        causes = [trial.cause for trial in found.trials if trial.cause]
        raise LaunchError(
            f"tune: none of {len(found.trials)} trials gave a measurement; the first one: "
            f"{causes[0] if causes else 'no trial was started'} (records in {ended.folder})"
        )
    if best.tuning == job.base.horovod and not state.autotune:
        return validating.nothing_to_compare(ended, Store.open(ended.folder).read(best.run_id))
    # A launch that autotunes takes its time; the estimate of it may be wrong by some times.
    longest_s = 4 * costs.autotune_s if costs is not None and state.autotune else 0.0
    return validating.validate(
        validating.Setup(
            request=job.request,
            base=job.base,
            winner=best.tuning,
            blocks=state.blocks or job.request.blocks,
            autotune=state.autotune,
            timeout_s=max(job.timeout_s, longest_s),
            machine=job.machine,
            results=job.results,
            data_dir=job.data_dir,
        ),
        report=report,
        launch=launch,
        spend=memory.update,
    )


def _outcome(
    job: _Job, found: Found, validated: Validated, memory: Memory, preset: Path
) -> Outcome:
    best, state, base, ended = found.best, memory.state, job.base, validated.ended
    whole = not (ended.interrupted or ended.time_was_near)
    made = Outcome(
        name=job.request.name,
        workload=base.workload.name,
        placement=str(base.placement),
        world_size=base.world_size,
        backend=job.resolved.backend,
        batch_size=base.rank_batch,
        device=validated.device,
        date=validated.date,
        trials=tuple(found.trials),
        ended_by=state.ended_by,
        default=base.horovod,
        winner=best.tuning if best is not None else None,
        knobs=turned(best.tuning, base.horovod) if best is not None else {},
        arms=validated.arms,
        over_default=validated.over_default,
        over_autotune=validated.over_autotune,
        chosen=validated.chosen,
        searching_still=validated.searching_still,
        no_autotune=job.no_autotune or ("" if state.autotune else "the budget has no room for it"),
        notes=(state.note,) if state.note else (),
        launches_failed=len(found.failed) + validated.failed,
        spent_s=state.spent_s,
        budget_s=job.request.budget_s,
        validation=validated.folder,
        preset=preset if whole else None,
        interrupted=ended.interrupted,
        starts_again=ended.starts_again,
        time_was_near=ended.time_was_near,
    )
    if whole:
        write_preset(preset, preset_text(made))
    return made
