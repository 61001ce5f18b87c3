"""A sweep on this machine or allocation: block by block, only what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.config import Sweep, sweep_to_yaml
from harness.config.identity import point_id
from harness.detect import Machine
from harness.paths import default_data_dir
from harness.runner import schedule
from harness.runner.alone import alone
from harness.runner.labels import launch_labels
from harness.runner.listing import write_points
from harness.runner.point import Place, command, launch_point
from harness.runner.progress import Report
from harness.runner.running import Launch, Running
from harness.runner.schedule import Planned, Work
from harness.runner.stale import stale_check
from harness.store import Store

INTERRUPTED = 130


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
    time_was_near: bool = False  # that of the job
    starts_again: bool = False  # the job, by itself: Slurm took its nodes back and requeued it

    @property
    def exit_code(self) -> int:
        """Return 130 where the user interrupted, 1 where a launch failed, else 0."""
        return INTERRUPTED if self.interrupted else int(self.failed > 0 or self.time_was_near)

    def text(self) -> str:
        """Return what is told at the end, a line or a few."""
        parts = [f"{self.ok} measured", f"{self.skipped} done before"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{self.left_out} combinations left out"] if self.left_out else []
        again = "Slurm starts the job again" if self.starts_again else "run it again"
        parts += [f"interrupted; {again} for the rest"] if self.interrupted else []
        parts += ["the job's time was over; run it again for the rest"] * self.time_was_near
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
    fails later is a record, and the sweep goes on. SIGINT, SIGTERM, SIGHUP or SIGUSR1 (a job's time
    is near) end the present launch with all its processes; what is done is kept. A second runner of
    the same folder on the same host is refused (``alone``).
    """
    work = schedule.planned(sweep, machine, results, training=training)
    data_dir = data_dir or default_data_dir()
    store = Store.open(work.folder, create=True)
    with alone(store.path):
        place = Place(machine, store, data_dir, sweep.measure.timeout_s)
        names = launch_labels(work.plan.launches, work.plan.timelines)
        running = Running(place, report, launch, names, stale_check(work.plan, work.folder))
        running.look_at(schedule.run_ids(work, work.max_blocks))
        store.save_config(sweep_to_yaml(sweep))
        running.run(_launches(work, running, store, report, names), prepared(work))
        return summary(work.folder, running, left_out=len(work.plan.left_out))


def prepared(work: Work) -> Iterator[Planned]:
    """Yield the launches of the first block, which need all data that any block needs."""
    return schedule.block_launches(work, 0)


def summary(folder: Path, running: Running, left_out: int = 0) -> Summary:
    """Return what was done, and what became of the rest."""
    return Summary(
        folder=folder,
        ok=running.ok,
        skipped=running.skipped,
        failed=running.failed,
        left_out=left_out,
        interrupted=running.ended_by_user,
        causes=tuple(running.causes.most_common()),
        time_was_near=running.time_was_near,
        starts_again=running.starts_again,
    )


def _launches(
    work: Work, running: Running, store: Store, report: Report, names: dict[str, str]
) -> Iterator[Planned]:
    """Yield the blocks asked for, then more of them while an interval is too wide."""

    def begin(blocks: int) -> None:
        write_points(work, store, names, blocks)
        ids = schedule.run_ids(work, blocks)
        report.begin(work.sweep.name, len(ids), sum(1 for name in ids if name in running.done))

    target, known = work.ci_target, schedule.allocations(store)
    begin(work.blocks)
    for repeat in range(work.blocks):
        yield from schedule.launches_here(work, repeat, running.done, known)
    if target is None:
        return
    for repeat in range(work.blocks, work.max_blocks):
        if not schedule.is_wide(work, store, running.done, repeat, target):
            return
        report.note(f"block {repeat + 1}: an interval is still wider than {target:g}")
        begin(repeat + 1)
        yield from schedule.launches_here(work, repeat, running.done, known)


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
