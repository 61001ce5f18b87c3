"""The time as records and results folders write it, and a word to who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

NOTE_AFTER_S = 1.0  # what is there already takes less, and then there is nothing to tell


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def told_if_slow(tell: Callable[[str], object], text: str) -> Iterator[None]:
    """Call ``tell(text)`` once where the body takes longer than ``NOTE_AFTER_S``."""
    timer = threading.Timer(NOTE_AFTER_S, tell, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a line that is being written is written whole, before what comes next
