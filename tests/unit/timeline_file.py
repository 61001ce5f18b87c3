"""Timelines as Horovod 0.28.1's ``timeline.cc`` writes them, character by character."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.timeline import Summary, read_summary

HEAD = (
    '[\n{"name": "process_name", "ph": "M", "pid": 0, "args": '
    '{"start_time_since_epoch_in_micros":1795830745516069}},\n'
    '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},\n'
)


class TimelineFile:
    """Events of tensors 1, 2, 3 …; times in whole microseconds."""

    def __init__(self) -> None:
        self._events: list[str] = []
        self._named: set[int] = set()

    def begin(self, name: str, time_us: int, *tensors: int) -> None:
        """One after the other, as ``ActivityStartAll`` does: a microsecond later each."""
        for n, tensor in enumerate(tensors):
            head = self._metadata(tensor)
            event = f'{{"ph": "B", "name": "{name}", "ts": {time_us + n}, "pid": {tensor}}}'
            self._events.append(head + event)

    def end(self, time_us: int, *tensors: int) -> None:
        for n, tensor in enumerate(tensors):
            self._events.append(f'{{"ph": "E", "ts": {time_us + n}, "pid": {tensor}}}')

    def cycle(self, time_us: int) -> None:
        self._events.append(f'{{"ph": "i", "name": "CYCLE_START", "ts": {time_us}, "s": "g"}}')

    def text(self) -> str:
        return HEAD + ",".join(self._events) + "]"

    def _metadata(self, tensor: int) -> str:
        if tensor in self._named:
            return ""
        self._named.add(tensor)
        return (
            f'{{"name": "process_name", "ph": "M", "pid": {tensor}, '
            f'"args": {{"name": "allreduce.layer{tensor}"}}}},\n'
            f'{{"name": "process_sort_index", "ph": "M", "pid": {tensor}, '
            f'"args": {{"sort_index": {tensor}}}}},\n'
        )


@contextmanager
def file_of(content: str | bytes) -> Iterator[Path]:
    """Give a file with ``content``; not a fixture, so that hypothesis can make many."""
    data = content.encode() if isinstance(content, str) else content
    descriptor, name = tempfile.mkstemp(suffix=".json")
    try:
        os.write(descriptor, data)
        os.close(descriptor)
        yield Path(name)
    finally:
        os.unlink(name)


def summary_of(content: str | bytes, steps: int | None = None) -> Summary:
    """Return what is read of a file with ``content``."""
    with file_of(content) as path:
        return read_summary(path, steps)
