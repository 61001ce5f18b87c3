"""The search as launches: each trial is one launch of the runner, and a record.

A search is replayed from its records and goes on where they end: the optimiser proposes the same
from the same measurements. A launch that failed is a trial without a measurement. Of a search that
is not over it is started again when the command is, as in any sweep: its cause may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.config import RunConfig, run_id
from harness.config.identity import point_id
from harness.config.models import HorovodTuning
from harness.errors import HarnessError, StoreError
from harness.record import RunRecord
from harness.runner.interrupts import Interrupts
from harness.runner.launcher import Guard
from harness.runner.point import Done, Place, launch_point
from harness.runner.progress import Report, duration, outcome
from harness.runner.running import Launch, Running
from harness.runner.schedule import Planned
from harness.runner.stale import differences
from harness.runner.sweep import Summary, summary
from harness.spec import BlockRef
from harness.store.reading import Decided
from harness.tuner.budget import Costs, Division, Validation, divide
from harness.tuner.propose import Candidate, candidates
from harness.tuner.request import Request, can_autotune
from harness.tuner.space import Space, with_tuning, words
from harness.tuner.state import Memory
from harness.validate import check_point, settled

_FINAL = ("failed", "timeout", "stalled")  # another try would end alike
DEFAULT = "default"  # the origin of the first trial
_TIMES_THE_DEFAULT = 10  # a trial's time limit, where the user's is not shorter
_HOPELESS = 5  # failed launches, where none has run
_LEAST_LIMIT_S = 60.0
REPEAT = 0  # of every trial: the search measures each tuning once


@dataclass(frozen=True)
class Trial:
    """One tuning that was tried."""

    tuning: HorovodTuning
    origin: str  # "default", "preset latency", "search"
    run_id: str
    rate: float | None = None  # samples a second; None: no measurement
    wall_s: float | None = None  # of its launch from start to end; None: not known any more
    illegal: bool = False  # it cannot be started here, which is no launch that failed
    cause: str = ""  # why there is no measurement


@dataclass
class Found:
    """What the search came to, as far as it went."""

    summary: Summary
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        """Return the trial with the highest throughput."""
        measured = [trial for trial in self.trials if trial.rate is not None]
        return max(measured, key=lambda trial: trial.rate or 0.0, default=None)

    @property
    def failed(self) -> list[Trial]:
        """Return the trials whose launches failed."""
        return [trial for trial in self.trials if trial.rate is None and not trial.illegal]


class Search:
    """A search while it runs. Its folder is held by the caller (``runner.alone``)."""

    def __init__(
        self,
        request: Request,
        base: RunConfig,
        space: Space,
        first: Sequence[Candidate],
        place: Place,
        memory: Memory,
        report: Report,
        launch: Launch = launch_point,
    ) -> None:
        """``first`` are tried first; ``base`` is the point that is tuned, settled."""
        self._request = request
        self._base = base
        self._space = space
        self._first = first
        self._place = place
        self._memory = memory
        self._report = report
        self._trials: list[Trial] = []
        self._ended_now: set[str] = set()  # launches of this run of the command
        self._resolved = check_point(base, place.machine)
        self._names: dict[str, str] = {}
        told = _Told(report, self._finished)
        self._launch = launch
        self._running = Running(place, told, self._bounded, self._names, self._check_same)

    def run(self) -> Found:
        """Launch trials until time, number or space is at its end, or a signal asks to end."""
        self._running.run(self._launches(), [self._planned(self._first[0])])
        return Found(summary(self._place.store.path, self._running), self._trials)

    def costs(self) -> Costs | None:
        """Return what launches take, by the first one that was measured; None before that."""
        for trial in self._trials:
            if trial.rate is not None and trial.wall_s is not None:
                return Costs.measured(trial.wall_s, self._base.global_batch / trial.rate)
        return None

    def _bounded(
        self, planned: Planned, place: Place, guard: Guard, interrupts: Interrupts
    ) -> Done:
        """Launch with a limit that follows from the default's time: a hang is no use of a budget.

        What takes so many times longer is not the best, whatever it is.
        """
        costs = self.costs()
        if costs is not None:
            limit_s = max(_LEAST_LIMIT_S, _TIMES_THE_DEFAULT * costs.launch_s)
            place = replace(place, timeout_s=min(place.timeout_s, limit_s))
        return self._launch(planned, place, guard, interrupts)

    def _launches(self) -> Iterator[Planned]:
        """Yield the trials that are missing, one after the other: each knows those before it."""
        proposals = candidates(self._space, self._first, self._request.seed)
        candidate = next(proposals, None)
        while candidate is not None:
            if self._is_over():
                return
            planned = self._planned(candidate)
            trial = self._result(candidate, planned)
            if trial is None:
                if not self._has_time():
                    return self._end("its time")
                yield planned
                trial = self._result(candidate, planned)
            if trial is None:  # cancelled: a signal has asked to end
                return
            self._trials.append(trial)
            if self._is_hopeless():  # and not over: once the cause is mended, it goes on
                return self._report.note(f"none of {_HOPELESS} settings has run: {trial.cause}")
            self._divide()
            try:
                candidate = proposals.send(trial.rate)
            except StopIteration:
                candidate = None
        self._end("that every setting was tried")

    def _is_over(self) -> bool:
        tried, state = len(self._trials), self._memory.state
        if state.tried is not None:
            return tried >= state.tried
        if self._request.trials is not None and tried >= self._request.trials:
            self._end("the number of trials")
            return True
        return False

    def _end(self, why: str) -> None:
        if not self._memory.state.search_is_over:
            self._memory.update(tried=len(self._trials), ended_by=why)

    def _planned(self, candidate: Candidate) -> Planned:
        config = with_tuning(self._base, candidate.tuning)
        problem, resolved = "", self._resolved
        try:
            resolved = check_point(config, self._place.machine)
        except HarnessError as error:
            problem = str(error)
        config = settled(config, resolved)
        number = len(self._trials) + 1
        self._names[point_id(config)] = f"trial {number}, {self._label(candidate)}"
        block = BlockRef(repeat=REPEAT, allocation=self._place.machine.allocation, order=number - 1)
        return Planned(run_id(config, REPEAT), config, resolved, block, problem)

    def _label(self, candidate: Candidate) -> str:
        text = words(candidate.tuning, self._base.horovod)
        return text if candidate.origin in ("search", DEFAULT) else f"{candidate.origin}: {text}"

    def _result(self, candidate: Candidate, planned: Planned) -> Trial | None:
        """Return what a trial came to; None where it was not tried, or was cancelled."""
        name, store = planned.run_id, self._place.store
        trial = Trial(candidate.tuning, candidate.origin, name, illegal=bool(planned.problem))
        if name not in self._running.done and store.is_done(name):
            self._running.look_at([name])
        if name in self._running.done:
            window = store.read(name).window
            if window is None:
                raise StoreError(f"{store.path}: run {name} is done and has no window")
            wall_s = self._memory.state.wall_s.get(name)
            return replace(trial, rate=window.throughput_samples_per_s, wall_s=wall_s)
        again = not (planned.problem or self._memory.state.search_is_over)
        if again and name not in self._ended_now:
            return None
        for attempt in sorted((n for one, n in store.attempts() if one == name), reverse=True):
            record = store.read_failure(name, attempt)
            if record.status in _FINAL:
                return replace(trial, cause=_cause(record))
        return None

    def _is_hopeless(self) -> bool:
        """Say whether so many launches failed, and none ran, that another setting is no cure."""
        ran = any(trial.rate is not None for trial in self._trials)
        failed = sum(trial.rate is None and not trial.illegal for trial in self._trials)
        return not ran and failed >= _HOPELESS

    def _has_time(self) -> bool:
        """Say whether one more launch leaves the validation its time."""
        costs, state = self.costs(), self._memory.state
        if (
            costs is None or state.blocks is None
        ):  # nothing has run, so there is nothing to validate
            return self._memory.now_s < self._request.budget_s
        reserved_s = Validation(state.blocks, state.autotune).takes_s(costs)
        return self._memory.now_s + costs.launch_s + reserved_s <= self._request.budget_s

    def _divide(self) -> None:
        """Plan the validation as soon as it is known what launches take."""
        costs = self.costs()
        if self._memory.state.blocks is not None or costs is None:
            return
        plan = self._division(costs)
        blocks, autotune = plan.validation.blocks, plan.validation.autotune
        self._memory.update(blocks=blocks, autotune=autotune, note=plan.note)
        if plan.note:
            self._report.note(plan.note)

    def _division(self, costs: Costs) -> Division:
        request = self._request
        wanted = not can_autotune(request)
        return divide(request.budget_s, costs, request.blocks, autotune=wanted)

    def _finished(self, record: RunRecord, wall_s: float) -> None:
        self._ended_now.add(record.run_id)
        walls = {**self._memory.state.wall_s, record.run_id: wall_s}
        self._memory.update(wall_s=walls)

    def _check_same(self, record: Decided) -> None:
        """Raise StoreError for a record that this machine would measure otherwise now."""
        try:
            now = check_point(record.config, self._place.machine)
        except HarnessError:
            return  # of another request in the same folder
        for key, stored, wanted in differences(record.resolved, now):
            raise StoreError(
                f"run {record.run_id} in {self._place.store.path}: it was measured with {key} "
                f"{stored}, and would now be with {wanted}; give another --name or --results"
            )


class _Told:
    """A report of trials: how many there will be nobody knows, so each is a line."""

    def __init__(self, report: Report, finished: Callable[[RunRecord, float], None]) -> None:
        self._report = report
        self._finished = finished

    def begin(self, name: str, total: int, done: int) -> None:
        """See ``Report``."""

    def launching(self, label: str) -> None:
        """See ``Report``."""

    def finished(self, label: str, record: RunRecord, wall_s: float) -> None:
        """See ``Report``."""
        self._finished(record, wall_s)
        self._report.note(f"{outcome(label, record)} [{duration(wall_s)}]")

    def note(self, text: str) -> None:
        """See ``Report``."""
        self._report.note(text)


def _cause(record: RunRecord) -> str:
    return record.error.cause if record.error is not None else record.status
