"""Ctrl-C and its relatives, as a flag that is asked for instead of an exception anywhere."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: A batch system sends SIGUSR1 some time before a job's time limit (``sbatch --signal=B:USR1@60``).
TIME_NEAR = signal.SIGUSR1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, TIME_NEAR)
_POLL_S = 0.02  # where the kernel has no pidfd
_LONGEST_S = 3600.0  # of one sleep: poll takes its time in milliseconds, as an int of C


class Interrupts:
    """Counts the signals that ask the sweep to end: the first ends it, the second hurries."""

    def __init__(self) -> None:
        self.count = 0
        self.first: signal.Signals | None = None
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def asked(self) -> bool:
        """Say whether the sweep was asked to end."""
        return self.count > 0

    @property
    def hurry(self) -> bool:
        """Say whether it was asked twice."""
        return self.count > 1

    def notice(self, number: int, frame: FrameType | None = None) -> None:
        """Count a signal, and wake whoever waits in ``wait_for``."""
        self.count += 1
        self.first = self.first or signal.Signals(number)
        with suppress(BlockingIOError):  # full: then whoever waits is awake
            os.write(self._writer, b".")

    def wait_for(self, pid: int, timeout_s: float) -> None:
        """Wait until a child ends, a signal asks, or ``timeout_s`` is over; sleep meanwhile.

        It may return before: whoever waits looks at the clock.
        """
        waiting = select.poll()  # select would fail on descriptors above 1023
        waiting.register(self._reader, select.POLLIN)
        try:
            child = os.pidfd_open(pid)
        except OSError:
            waiting.poll(min(timeout_s, _POLL_S) * 1000)
            return
        try:
            waiting.register(child, select.POLLIN)
            waiting.poll(min(timeout_s, _LONGEST_S) * 1000)
        finally:
            os.close(child)

    def linger(self, timeout_s: float) -> None:
        """Wait for a signal that may be on its way to this process, at most ``timeout_s``."""
        waiting = select.poll()
        waiting.register(self._reader, select.POLLIN)
        if not self.asked:
            waiting.poll(timeout_s * 1000)

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._reader)
        os.close(self._writer)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Catch the signals while inside; outside the main thread there is nothing to catch."""
    state = Interrupts()
    main = threading.current_thread() is threading.main_thread()
    # A signal that was ignored from the start (nohup) stays ignored.
    caught = [s for s in SIGNALS if main and signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, state.notice) for number in caught}
    try:
        yield state
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        state.close()
