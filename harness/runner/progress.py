"""What a sweep says of itself while it runs: a bar on a terminal, lines elsewhere, on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Protocol, TextIO, cast

from harness.record import RunRecord, Training

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Report(Protocol):
    """Who is told how a sweep goes on."""

    def begin(self, name: str, total: int, done: int) -> None:
        """Learn how many launches there are, and how many are done already."""

    def launching(self, label: str) -> None:
        """Learn what starts now."""

    def finished(self, label: str, record: RunRecord, wall_s: float) -> None:
        """Learn what became of it, and how long it took with start and end."""

    def note(self, text: str) -> None:
        """Take a line for the user."""


class _Count:
    """Launches done, and from their times how long the rest takes."""

    def __init__(self) -> None:
        self.total = 0
        self.done = 0
        self._wall_s = 0.0  # of all that were added
        self._added = 0

    def add(self, wall_s: float) -> None:
        self.done += 1
        self._wall_s += wall_s
        self._added += 1

    @property
    def left(self) -> str:
        if not self._added:
            return ""
        mean_s = self._wall_s / self._added
        return f"about {duration(mean_s * (self.total - self.done))} left"


class _Forgiving:
    """A stream that may be full or gone: nobody can read it, which is no reason to end a sweep.

    A terminal is gone when its window was closed and its hang-up was ignored.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def _forgiving(stream: TextIO) -> IO[str]:
    return cast("IO[str]", _Forgiving(stream))


class PlainReport:
    """One line a launch."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = _forgiving(stream)
        self._count = _Count()

    def begin(self, name: str, total: int, done: int) -> None:
        """See ``Report``."""
        self._count.total, self._count.done = total, done
        self.note(f"{name}: {total} {'launch' if total == 1 else 'launches'}, {done} done already")

    def launching(self, label: str) -> None:
        """See ``Report``."""

    def finished(self, label: str, record: RunRecord, wall_s: float) -> None:
        """See ``Report``."""
        self._count.add(wall_s)
        count = self._count
        tail = f" [{duration(wall_s)}, {count.left}]" if count.done < count.total else ""
        self.note(f"[{count.done}/{count.total}] {outcome(label, record)}{tail}")

    def note(self, text: str) -> None:
        """See ``Report``."""
        print(text, file=self._stream, flush=True)


class BarReport:
    """A bar with the present point, redrawn only between launches.

    Nothing ticks while a launch runs: on a machine whose every core has a rank, a redraw would take
    time from a window.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._count = _Count()
        self._task: TaskID | None = None
        self._point = ""

    def begin(self, name: str, total: int, done: int) -> None:
        """See ``Report``."""
        self._count.total, self._count.done = total, done
        if self._task is None:
            self._task = self._progress.add_task(name, total=total, point="", left="")
        self._redraw()

    def launching(self, label: str) -> None:
        """See ``Report``."""
        self._point = label
        self._redraw()

    def finished(self, label: str, record: RunRecord, wall_s: float) -> None:
        """See ``Report``."""
        self._count.add(wall_s)
        if record.status != "ok":
            self.note(outcome(label, record))
        self._point = ""
        self._redraw()

    def note(self, text: str) -> None:
        """See ``Report``."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _redraw(self) -> None:
        assert self._task is not None  # begin comes first
        self._progress.update(
            self._task,
            total=self._count.total,
            completed=self._count.done,
            left=self._count.left,
            point=self._point,
        )
        self._progress.refresh()


@contextmanager
def reporter(stream: TextIO | None = None) -> Iterator[Report]:
    """Give a bar where ``stream`` (stderr) is a terminal that can show one, else plain lines."""
    out = stream if stream is not None else sys.stderr
    if not out.isatty() or os.environ.get("TERM") == "dumb":
        yield PlainReport(out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn("{task.fields[point]}", markup=False),
        console=Console(file=_forgiving(out)),  # rich itself keeps to NO_COLOR
        auto_refresh=False,
    ) as progress:
        yield BarReport(progress)


def outcome(label: str, record: RunRecord) -> str:
    """Return one line about a launch that ended."""
    if record.window is not None:
        return f"{label}: {record.window.throughput_samples_per_s:,.0f} samples/s"
    if record.training is not None:
        return f"{label}: {trained(record.training)}"
    if record.error is not None:
        return f"{label}: {record.status}: {record.error.cause}"
    return f"{label}: {record.status}"


def trained(found: Training) -> str:
    """Return what a training came to: ``mse 0.0019 after 3 epochs, 41 s; target 0.002 reached``."""
    value = found.evaluations[-1].metrics[found.metric]
    text = (
        f"{found.metric} {value:.4g} after {found.epochs:.3g} epochs, {duration(found.train_s)} "
        "of training"
    )
    if found.target is None:
        return text
    return f"{text}; target {found.target:g} {'reached' if found.reached else 'not reached'}"


def duration(seconds: float) -> str:
    """Return a time in words: ``8 s``, ``4 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
