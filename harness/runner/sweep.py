"""A sweep on this machine or allocation: block by block, only what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from harness.config import Sweep, sweep_to_yaml
from harness.config.identity import point_id
from harness.detect import Machine
from harness.errors import StoreError
from harness.paths import default_data_dir
from harness.runner import schedule
from harness.runner.alone import alone
from harness.runner.data import prepare_data
from harness.runner.interrupts import Interrupts, interrupts
from harness.runner.labels import launch_labels
from harness.runner.launcher import Guard
from harness.runner.listing import write_points
from harness.runner.point import Done, Place, command, launch_point
from harness.runner.progress import Report
from harness.runner.schedule import Planned, Work
from harness.runner.stale import stale_check
from harness.store import Store

INTERRUPTED = 130

#: What runs one launch; tests put their own in.
Launch = Callable[[Planned, Place, Guard, Interrupts], Done]


class StoppedError(StoreError):
    """The results could not be kept any longer, after launches had begun."""

    exit_code = 1  # not 2, which promises that nothing was written


@dataclass(frozen=True)
class Summary:
    """What a run of a sweep did."""

    folder: Path
    ok: int  # measured now
    skipped: int  # done before, or meanwhile by a runner on another host
    failed: int  # launches of this run that gave no measurement
    left_out: int  # combinations that are not legal
    interrupted: bool = False
    causes: tuple[tuple[str, int], ...] = ()  # of the failed ones, most frequent first

    @property
    def exit_code(self) -> int:
        """Return 130 where the user interrupted, 1 where a launch failed, else 0."""
        return INTERRUPTED if self.interrupted else int(self.failed > 0)

    def text(self) -> str:
        """Return what is told at the end, a line or a few."""
        parts = [f"{self.ok} measured", f"{self.skipped} done before"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.left_out} combinations left out"] if self.left_out else []
        parts += ["interrupted; run it again for the rest"] if self.interrupted else []
        lines = [f"{self.folder}: {', '.join(parts)}"]
        lines += [f"  {count} x {cause}" for cause, count in self.causes]
        return "\n".join(lines)


def run_sweep(
    sweep: Sweep,
    machine: Machine,
    results: Path,
    *,
    report: Report,
    data_dir: Path | None = None,
    launch: Launch = launch_point,
    training: bool = False,
) -> Summary:
    """Run what is missing of ``sweep`` below ``results``: windows, or with ``training`` trainings.

    Everything is checked before anything is written or started; what fails then is a HarnessError.
    Data that is missing is made before the first launch; WorkloadError where it cannot be. What
    fails later is a record, and the sweep goes on. SIGINT, SIGTERM or SIGHUP end the present launch
    with all its processes; what is done is kept. A second runner of the same folder on the same
    host is refused (``alone``).
    """
    work = schedule.planned(sweep, machine, results, training=training)
    data_dir = data_dir or default_data_dir()
    store = Store.open(work.folder, create=True)
    with alone(store.path):
        place = Place(machine, store, data_dir, sweep.measure.timeout_s)
        run = _Run(work, place, report, launch)
        run.look_at(schedule.run_ids(work, work.max_blocks))
        store.save_config(sweep_to_yaml(sweep))
        return run.run()


class _Run:
    """The state of one ``run_sweep``."""

    def __init__(self, work: Work, place: Place, report: Report, launch: Launch) -> None:
        self._work = work
        self._place = place
        self._report = report
        self._launch = launch
        self._names = launch_labels(work.plan.launches, work.plan.timelines)
        self._stale_check = stale_check(work.plan, work.folder)
        self._done: set[str] = set()
        self._ok = 0
        self._skipped = 0
        self._causes: Counter[str] = Counter()

    def look_at(self, run_ids: Iterable[str]) -> None:
        """Find out what is done; StoreError where it was measured otherwise than it would be."""
        self._done |= self._place.store.verify(
            run_ids, lambda broken: self._report.note(str(broken)), self._stale_check
        )

    def run(self) -> Summary:
        """Launch what is missing."""
        missing = filter(self._is_missing, self._launches())
        first = next(missing, None)
        interrupted = False
        if first is not None:
            # Before the signals are caught: while data is made, Ctrl-C is still an exception.
            prepare_data(self._work.plan.launches, self._place.data_dir, self._report)
            with self._stopping(), interrupts() as stop, Guard() as guard:
                for planned in chain([first], missing):
                    if stop.asked:
                        break
                    self._run_one(planned, guard, stop)
                interrupted = stop.asked
        return Summary(
            folder=self._work.folder,
            ok=self._ok,
            skipped=self._skipped,
            failed=sum(self._causes.values()),
            left_out=len(self._work.plan.left_out),
            interrupted=interrupted,
            causes=tuple(self._causes.most_common()),
        )

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Tell, of what the results folder refuses now, that something was done before."""
        try:
            yield
        except StoreError as error:
            raise StoppedError(
                f"{error}; the sweep stopped here, after {self._ok} measured and "
                f"{sum(self._causes.values())} failed in this run, which are kept"
            ) from error

    def _is_missing(self, planned: Planned) -> bool:
        name = planned.run_id
        # Another runner may have measured it since this one began.
        if name not in self._done and self._place.store.is_done(name):
            self.look_at([name])
        self._skipped += name in self._done
        return name not in self._done

    def _run_one(self, planned: Planned, guard: Guard, stop: Interrupts) -> None:
        name = self._names[point_id(planned.config)]
        self._report.launching(name)
        ended = self._launch(planned, self._place, guard, stop)
        record = ended.record
        if ended.elsewhere:
            self.look_at([planned.run_id])  # it may have been decided otherwise there
            self._skipped += 1
        elif record.status == "ok":
            self._done.add(planned.run_id)
            self._ok += 1
        elif record.status != "cancelled":
            self._causes[record.error.cause if record.error is not None else record.status] += 1
        self._report.finished(name, record, ended.wall_s)

    def _launches(self) -> Iterator[Planned]:
        """Yield the blocks asked for, then more of them while an interval is too wide."""
        work, target = self._work, self._work.ci_target
        self._begin(work.blocks)
        for repeat in range(work.blocks):
            yield from schedule.block_launches(work, repeat)
        if target is None:
            return
        for repeat in range(work.blocks, work.max_blocks):
            if not schedule.is_wide(work, self._place.store, self._done, repeat, target):
                return
            self._report.note(f"block {repeat + 1}: an interval is still wider than {target:g}")
            self._begin(repeat + 1)
            yield from schedule.block_launches(work, repeat)

    def _begin(self, blocks: int) -> None:
        write_points(self._work, self._place.store, self._names, blocks)
        ids = schedule.run_ids(self._work, blocks)
        done = sum(1 for name in ids if name in self._done)
        self._report.begin(self._work.sweep.name, len(ids), done)


def commands(
    sweep: Sweep, machine: Machine, results: Path, *, training: bool = False
) -> Iterator[str]:
    """Yield the lines of a dry run: each missing launch as a comment and a shell command."""
    work = schedule.planned(sweep, machine, results, training=training)
    names = launch_labels(work.plan.launches, work.plan.timelines)
    # Nothing may be written, so the store is not opened: it only names paths here.
    place = Place(machine, Store(work.folder), default_data_dir(), sweep.measure.timeout_s)
    for planned in schedule.missing(work):
        attempt = place.store.next_attempt(planned.run_id)
        run_file = place.store.logs / planned.run_id / str(attempt) / "run.json"
        yield f"# block {planned.block.repeat + 1}: {names[point_id(planned.config)]}"
        yield str(command(planned, place, run_file))
