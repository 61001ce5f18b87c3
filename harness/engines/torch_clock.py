"""Marks on the training stream: CUDA events on a GPU, the monotonic clock on a CPU."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from harness.engines.api import BOUNDARIES


class TorchClock:
    """Collects one row of marks a step; reading them back waits for the device once."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._rows: list[list[Any]] = []

    def start_step(self) -> None:
        """Begin a row, with its first mark."""
        self._rows.append([])
        self.mark()

    def mark(self) -> None:
        """Put the next boundary of ``BOUNDARIES`` here."""
        if self._cuda:
            make: Any = torch.cuda.Event  # untyped in torch
            event = make(enable_timing=True)
            event.record()
            self._rows[-1].append(event)
        else:
            self._rows[-1].append(time.perf_counter())

    def take(self) -> NDArray[np.float64]:
        """Return the marks as (steps, boundaries) seconds since the first, and forget them."""
        rows, self._rows = self._rows, []
        marks: NDArray[np.float64] = np.zeros((len(rows), len(BOUNDARIES)))
        if not rows:
            return marks
        if not self._cuda:
            marks[:] = rows
            marks -= marks[0, 0]
            return marks
        torch.cuda.synchronize()
        first = rows[0][0]
        for step, row in enumerate(rows):
            # Differences to a near event keep float32 milliseconds exact enough over a long block.
            marks[step] = [row[0].elapsed_time(event) for event in row]
            marks[step] += first.elapsed_time(row[0])
        marks /= 1e3  # elapsed_time is in milliseconds
        return marks
