"""A step whose end is left to the beginning of the next one, and finished before anything else.

Where the host has to wait for an all-reduce, it brings the next batch meanwhile: the wait, and the
update after it, come when the next step begins. The device does the same work in the same order,
and a window, which ends with the device synchronised, has all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from typing_extensions import override

from harness.engines.torch_step import TorchStep
from workloads.api import Samples


class UnfinishedStep(TorchStep):
    """What reads or changes the state of training finishes the step that is under way first."""

    _unfinished: Callable[[], None] | None = None  # the update of a step whose all-reduce goes on

    def _finish(self) -> None:
        """Wait for an all-reduce that goes on, and update."""
        if self._unfinished is not None:
            update, self._unfinished = self._unfinished, None
            self._wait_reduced()
            update()

    def _reduce(self, sync: bool) -> None:
        """All-reduce what a step has collected, and wait for it; nothing where nothing starts."""
        if self._start_reduce(sync):
            self._wait_reduced()

    def _start_reduce(self, sync: bool) -> bool:
        """Start the all-reduce of a step whose end can be left to the next; say whether it was."""
        return False

    def _wait_reduced(self) -> None:
        """Wait, or have the device wait, for what ``_start_reduce`` has started."""
        raise NotImplementedError

    @override
    def device_synchronise(self) -> None:
        self._finish()
        super().device_synchronise()

    @override
    def snapshot(self) -> Any:
        self._finish()
        return super().snapshot()

    @override
    def start_epoch(self) -> None:
        self._finish()
        super().start_epoch()

    @override
    def gradient(self, batch: tuple[Any, ...]) -> torch.Tensor:
        self._finish()
        return super().gradient(batch)

    @override
    def evaluate(self, samples: Samples) -> dict[str, float]:
        self._finish()
        return super().evaluate(samples)

    @override
    def weights(self) -> dict[str, NDArray[Any]]:
        self._finish()
        return super().weights()

    @override
    def checksum(self) -> str:
        self._finish()
        return super().checksum()
