"""Launches one after the other: only those that are missing, whatever happens to any of them."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from types import FrameType

from harness.config.identity import point_id
from harness.errors import StoreError
from harness.record import RunRecord
from harness.runner.data import prepare_data
from harness.runner.ended_by import STARTS_AGAIN, ended_by
from harness.runner.interrupts import SIGNALS, TIME_NEAR, Interrupts, interrupts
from harness.runner.launcher import Guard
from harness.runner.point import Done, Place
from harness.runner.progress import Report
from harness.runner.schedule import Planned
from harness.store.reading import Decided

#: What runs one launch; tests put their own in.
Launch = Callable[[Planned, Place, Guard, Interrupts], Done]


class StoppedError(StoreError):
    """The results could not be kept any longer, after launches had begun."""

    exit_code = 1  # not 2, which promises that nothing was written


class _AskedToEndError(BaseException):
    """A signal asks to end while no launch runs; what is being made tidies up on its way."""


class Running:
    """The state of a runner: what is done, and what became of the rest."""

    def __init__(
        self,
        place: Place,
        report: Report,
        launch: Launch,
        names: Mapping[str, str],
        stale_check: Callable[[Decided], None],
    ) -> None:
        """``names`` are labels by point id; ``stale_check`` as of ``runner.stale``."""
        self.done: set[str] = set()
        self.ok = 0
        self.skipped = 0
        self.causes: Counter[str] = Counter()
        self.ended_by_user = False
        self.time_was_near = False
        self.starts_again = False  # the job, by itself: it was requeued
        self._ended: RunRecord | None = None  # the launch that a signal ended
        self._place = place
        self._report = report
        self._launch = launch
        self._names = names
        self._stale_check = stale_check

    @property
    def failed(self) -> int:
        """Return how many launches gave no measurement."""
        return sum(self.causes.values())

    def look_at(self, run_ids: Iterable[str]) -> None:
        """Find out what is done; StoreError where it was measured otherwise than it would be."""
        self.done |= self._place.store.verify(
            run_ids, lambda broken: self._report.note(str(broken)), self._stale_check
        )

    def run(self, launches: Iterable[Planned], prepare: Iterable[Planned]) -> None:
        """Launch what is missing of ``launches``, after the data of ``prepare`` were made.

        Without anything missing no data is made. A signal that asks to end ends the making of data,
        or the present launch with all its processes, and no other begins.
        """
        missing = filter(self._is_missing, launches)
        first = next(missing, None)
        if first is None:
            return
        with interrupts() as stop:
            self._make_data(prepare, stop)
            if not stop.asked:
                self._launch_all(chain([first], missing), stop)
            self.time_was_near = stop.first == TIME_NEAR
            self.ended_by_user = stop.asked and not self.time_was_near
            self.starts_again = self.ended_by_user and self._job_starts_again(stop)

    def _make_data(self, prepare: Iterable[Planned], stop: Interrupts) -> None:
        """Make the data, or stop at it where a signal asks to; Ctrl-C is an exception here."""
        with suppress(_AskedToEndError), _raised(stop):
            prepare_data((one.config for one in prepare), self._place.data_dir, self._report)

    def _launch_all(self, launches: Iterable[Planned], stop: Interrupts) -> None:
        with self._stopping(), Guard() as guard:
            for planned in launches:
                if stop.asked:
                    break
                self._run_one(planned, guard, stop)

    def _job_starts_again(self, stop: Interrupts) -> bool:
        if self._ended is None or self._ended.error is None:  # no launch ran: nobody has asked yet
            return ended_by(stop.first, self._place.machine) == STARTS_AGAIN
        return self._ended.error.cause.startswith(STARTS_AGAIN.cause)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Tell, of what the results folder refuses now, that something was done before."""
        try:
            yield
        except StoreError as error:
            raise StoppedError(
                f"{error}; the sweep stopped here, after {self.ok} measured and "
                f"{self.failed} failed in this run, which are kept"
            ) from error

    def _is_missing(self, planned: Planned) -> bool:
        name = planned.run_id
        # Another runner may have measured it since this one began.
        if name not in self.done and self._place.store.is_done(name):
            self.look_at([name])
        self.skipped += name in self.done
        return name not in self.done

    def _run_one(self, planned: Planned, guard: Guard, stop: Interrupts) -> None:
        name = self._names[point_id(planned.config)]
        self._report.launching(name)
        ended = self._launch(planned, self._place, guard, stop)
        record = ended.record
        if stop.asked and not ended.elsewhere:
            self._ended = record
        if ended.elsewhere:
            self.look_at([planned.run_id])  # it may have been decided otherwise there
            self.skipped += 1
        elif record.status == "ok":
            self.done.add(planned.run_id)
            self.ok += 1
        elif record.status != "cancelled":
            self.causes[record.error.cause if record.error is not None else record.status] += 1
        self._report.finished(name, record, ended.wall_s)


@contextmanager
def _raised(stop: Interrupts) -> Iterator[None]:
    """Inside ``interrupts()``, turn the first signal into an exception, too: nobody polls here."""

    def ask(number: int, frame: FrameType | None) -> None:
        first = not stop.asked
        stop.notice(number)
        if first:  # a second one would break off the tidying up after the first
            raise _AskedToEndError

    main = threading.current_thread() is threading.main_thread()
    caught = [one for one in SIGNALS if main and signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.getsignal(one) for one in caught}
    try:
        for number in caught:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else ask)
        if stop.asked:  # just before
            raise _AskedToEndError
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
