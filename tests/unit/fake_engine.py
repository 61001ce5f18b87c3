"""An engine and a step without a framework: what they do is what the test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.engines.api import BOUNDARIES, Engine, Reduced, Step
from harness.record import BackendProof


class FakeStep(Step):
    """Counts its steps, reduces ``gradient_bytes`` in each; ``before`` may make time pass."""

    gradient_bytes = 400
    gradient_allreduce = True

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.calls: list[str] = []
        self.batches: list[Any] = []
        self._before = before
        self._steps = 0
        self._marks: list[list[float]] = []

    def run(self, batch: tuple[Any, ...], *, sync: bool = True) -> Any:
        self._before()
        self.calls.append("run")
        self.batches.append(batch)
        self._steps += int(sync)
        return 1.0 / len(self.batches)

    def run_marked(self, next_batch: Any, *, sync: bool = True) -> Any:
        loss = self.run(next_batch(), sync=sync)
        self.calls[-1] = "marked"
        # Step k starts at 10k and its boundaries are 1, 2, 3 ... seconds apart.
        start = 10.0 * len(self._marks)
        self._marks.append([start + k * (k + 1) / 2 for k in range(len(BOUNDARIES))])
        return loss

    def take_marks(self) -> NDArray[np.float64]:
        marks, self._marks = self._marks, []
        return np.array(marks)

    def snapshot(self) -> Any:
        self.calls.append("snapshot")
        return "snapshot"

    def restore(self, snapshot: Any) -> None:
        assert snapshot == "snapshot"
        self.calls.append("restore")

    def set_learning_rate(self, rate: float) -> None:
        self.calls.append(f"rate {rate:g}")

    def start_epoch(self) -> None:
        self.calls.append("epoch")

    def gradient(self, batch: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def evaluate(self, samples: Any) -> dict[str, float]:
        raise NotImplementedError

    def weights(self) -> dict[str, NDArray[Any]]:
        return {}

    def reduced(self) -> Reduced:
        return Reduced(self._steps, self._steps * self.gradient_bytes)

    def losses(self, values: Sequence[Any]) -> NDArray[np.float64]:
        return np.array(values, dtype=np.float64)

    def checksum(self) -> str:
        return "c0ffee"

    def device_synchronise(self) -> None:
        self.calls.append("synchronise")


class FakeEngine(Engine):
    """One of ``others + 1`` ranks; what the others say to a gather is given beforehand."""

    name = "fake"
    framework = "none"

    def __init__(self, calls: list[str] | None = None, others: Sequence[Any] = ()) -> None:
        self.calls = calls if calls is not None else []
        self._others = list(others)
        self.sums: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda buffer: buffer
        self.reduced_buffers = 0

    def start(self) -> Any:
        raise NotImplementedError

    def build(self, parts: Any, learning_rate: float) -> Step:
        raise NotImplementedError

    def feed(self, kind: str, samples: Any, shard: Any) -> Any:
        raise NotImplementedError

    def make_buffer(self, count_bytes: int) -> Any:
        assert count_bytes % 4 == 0
        return np.zeros(count_bytes // 4, dtype=np.float32)

    def fill(self, buffer: Any, value: float) -> None:
        buffer[:] = value

    def allreduce(self, buffer: Any) -> None:
        self.reduced_buffers += 1
        buffer[:] = self.sums(buffer)

    def to_host(self, buffer: Any) -> NDArray[np.float32]:
        values: NDArray[np.float32] = buffer
        return values

    def gather(self, value: Any) -> list[Any]:
        return [value, *self._others]

    def barrier(self) -> None:
        self.calls.append("barrier")

    def proof(self) -> BackendProof:
        return BackendProof(requested=None, proven=None, controller=None, evidence={})

    def device_uuid(self) -> str | None:
        return None

    def versions(self) -> Mapping[str, str]:
        return {}

    def stop(self) -> None:
        self.calls.append("stop")
