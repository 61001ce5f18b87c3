"""The sampler's process: samples at its pace, obeys its rank, and ends with it.

Commands come as lines on one pipe (``pause``, ``resume``, ``stop``) and are answered on another
once they are in force; ``stop`` is answered with the series. The end of the commands is the end of
this process. A process that the rank forked may hold the pipe open beyond the rank's own end, so
the parent's pid is looked at too.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from array import array
from typing import Any

from harness.telemetry.collector import Collector

ORPHAN_CHECK_S = 1.0  # while it does nothing else
_CHUNK_BYTES = 1 << 16


class Loop:
    """Samples, in memory: one array a column, beginning with the time and the segment."""

    def __init__(
        self, collector: Collector, interval_s: float, parent: int, commands: int, replies: int
    ) -> None:
        self._collector = collector
        self._interval_s = interval_s
        self._parent = parent
        self._commands, self._replies = commands, replies
        self._columns = [array("d") for _ in range(2 + collector.width)]
        # A pace that no change of the clock disturbs, told on the clock that windows are told on.
        self._epoch_s = time.time() - time.monotonic()
        self._due_s = 0.0
        self._segment = -1
        self._missed = 0
        self._paused = True
        self._pending = b""
        self._started_cpu_s = time.process_time()

    def run(self) -> int:
        """Sample until told to stop, or left alone; return the exit code."""
        os.set_blocking(self._replies, False)
        self._resume()
        said = self._send(b"ready\n")
        commands = select.poll()  # select() takes no descriptor above 1023
        commands.register(self._commands, select.POLLIN)
        while said:
            heard = commands.poll(self._rest_s() * 1000.0)
            if os.getppid() != self._parent:
                break
            if not heard:
                self._tick()
                continue
            if not (data := os.read(self._commands, 4096)):
                break
            *lines, self._pending = (self._pending + data).split(b"\n")
            for command in lines:
                said = said and self._obey(command)
                if command == b"stop":
                    return 0 if said else 1
        return 1

    def _rest_s(self) -> float:
        if self._paused:
            return ORPHAN_CHECK_S
        return max(0.0, self._due_s - time.monotonic())

    def _obey(self, command: bytes) -> bool:
        if command == b"stop":
            return self._send(json.dumps(self._header()).encode() + b"\n") and all(
                self._send(column.tobytes()) for column in self._columns
            )
        if command == b"pause":
            self._paused = True
        elif command == b"resume":
            self._resume()
        else:
            raise ValueError(f"unknown command {command!r}")
        return self._send(command + b"\n")

    def _resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        self._segment += 1
        self._due_s = time.monotonic() + self._interval_s
        self._sample(fresh=True)

    def _tick(self) -> None:
        if self._paused or time.monotonic() < self._due_s:
            return
        self._sample(fresh=False)
        late = max(0, int((time.monotonic() - self._due_s) / self._interval_s))
        self._missed += late
        self._due_s += (late + 1) * self._interval_s

    def _sample(self, fresh: bool) -> None:
        now_s = self._epoch_s + time.monotonic()
        values = [now_s, float(self._segment), *self._collector.read(fresh)]
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def _header(self) -> dict[str, Any]:
        devices = [
            {
                "index": device.index,
                "uuid": device.uuid,
                "name": device.name,
                "ranks": device.ranks,
                "columns": device.columns,
                "sources": device.sources,
                "absent": device.absent,
            }
            for device in self._collector.devices
        ]
        return {
            "samples": len(self._columns[0]),
            "width": len(self._columns),
            "byteorder": sys.byteorder,
            "missed": self._missed,
            "own_cpu_s": time.process_time() - self._started_cpu_s,
            "cores": sorted(os.sched_getaffinity(0)),
            "devices": devices,
        }

    def _send(self, data: bytes) -> bool:
        """Write everything; False where nobody is left to read it."""
        ready = select.poll()
        ready.register(self._replies, select.POLLOUT)
        rest = memoryview(data)
        while rest:
            if not ready.poll(ORPHAN_CHECK_S * 1000.0):
                if os.getppid() != self._parent:
                    return False
                continue
            try:
                rest = rest[os.write(self._replies, rest[:_CHUNK_BYTES]) :]
            except BlockingIOError:
                continue  # room, but less than an atomic write wants
            except BrokenPipeError:
                return False
        return True
