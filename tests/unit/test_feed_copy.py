"""Copies beside the training stream: never read too early, never written over too early.

The device is played: it does nothing that it is not waited for, as late as a real one may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from harness.config.models import Loader
from harness.feed.shard import Shard
from workloads.api import ArraySamples, Batch

torch = pytest.importorskip("torch")
COUNT, BATCH = 23, 4


class LateEvent:
    """Done only when somebody waits for it."""

    def __init__(self, device: LateDevice, copies: list[tuple[Any, Any]]) -> None:
        self._device = device
        self.copies = copies
        self.done = False

    def synchronize(self) -> None:
        self._device.log.append("host waits")
        self._device.run_until(self)


class LateDevice:
    """A GPU whose side stream moves only as far as it is waited for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.queue: list[LateEvent] = []
        self.pinned: list[Any] = []
        self.owned: list[int] = []  # tensors that the training stream was given, by id

    def pinned_empty(self, shape: Sequence[int], dtype: Any) -> Any:
        self.pinned.append(torch.full(tuple(shape), -1, dtype=dtype))
        return self.pinned[-1]

    def pin(self, array: np.ndarray) -> Any:
        return torch.from_numpy(array.copy())

    def copy(self, pinned: Sequence[Any]) -> tuple[Sequence[Any], LateEvent]:
        self.log.append("copy")
        tensors = [torch.full_like(one, -2) for one in pinned]
        event = LateEvent(self, list(zip(pinned, tensors, strict=True)))
        self.queue.append(event)
        return tensors, event

    def hand_over(self, tensors: Sequence[Any], copied: LateEvent) -> None:
        self.log.append("hand over")  # the training stream is as late, so nothing happens now
        assert [id(target) for _, target in copied.copies] == [id(tensor) for tensor in tensors]
        self.owned += map(id, tensors)

    def idle(self) -> None:
        self.log.append("idle")
        self.finish()

    def finish(self) -> None:
        """Do all that was queued."""
        if self.queue:
            self.run_until(self.queue[-1])

    def run_until(self, event: LateEvent) -> None:
        """Do the copies up to ``event``; what is in pinned memory now is what arrives."""
        while not event.done:
            first = self.queue.pop(0)
            for source, target in first.copies:
                target.copy_(source)
            first.done = True


def numbered() -> ArraySamples:
    index = np.arange(COUNT, dtype=np.float32)
    return ArraySamples(np.repeat(index[:, None], 3, axis=1), 100 + np.arange(COUNT))


@contextmanager
def feeding(kind: str, samples: Any = None, workers: int = 2) -> Iterator[tuple[Any, LateDevice]]:
    from harness.feed.torch_feed import copied_feed

    device = LateDevice()
    loader = Loader(workers=workers, prefetch=1)
    feed = copied_feed(kind, samples or numbered(), shard(), device, loader)
    try:
        yield feed, device
    finally:
        feed.close()


def shard() -> Shard:
    return Shard(COUNT, BATCH, 1, 2, seed=3)


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_late_copies_bring_the_right_batches(kind: str) -> None:
    """All batches are kept: one that was written over, or read too early, would differ."""
    with feeding(kind) as (feed, device):
        batches = [feed.next() for _ in range(8)]
        device.finish()
        for step, (inputs, targets) in enumerate(batches):
            assert targets.tolist() == (100 + shard().at(step)).tolist()
            assert inputs[:, 2].tolist() == shard().at(step).tolist()
        handed = [id(tensor) for batch in batches for tensor in batch]
        assert device.owned == handed  # record_stream of each, once


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_the_next_copy_is_begun_before_a_batch_is_handed_back(kind: str) -> None:
    with feeding(kind) as (feed, device):
        feed.next()
        assert device.log == ["copy", "hand over", "copy"]
        assert not any(event.done for event in device.queue)  # the host has waited for nothing
        device.log.clear()
        feed.next()
        waits = ["host waits"] if kind == "host" else []  # for the copy from the slot to be filled
        assert device.log == ["hand over", *waits, "copy"]


def test_the_ring_is_as_long_as_it_says_and_used_in_turn() -> None:
    from harness.feed.torch_copy import SLOTS

    with feeding("host") as (feed, device):
        for _ in range(7):
            feed.next()
        assert len(device.pinned) == 2 * SLOTS  # inputs and targets


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_going_elsewhere_forgets_the_copy_that_was_begun(kind: str) -> None:
    with feeding(kind) as (feed, device):
        for to in (0, 5, 5, 2, 9):
            feed.seek(to)
            assert feed.position == to
            batches = [feed.next(), feed.next()]
            device.finish()
            for step, batch in enumerate(batches, to):
                assert batch[1].tolist() == (100 + shard().at(step)).tolist()
        assert feed.position == 11


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_is_raised_by_next_of_its_batch_not_of_the_one_before(workers: int) -> None:
    bad = shard().at(3)

    class Broken:
        broken = True

        def __len__(self) -> int:
            return COUNT

        def gather(self, indices: np.ndarray) -> Batch:
            if self.broken and np.array_equal(indices, bad):
                raise OSError("unreadable")
            return numbered().gather(indices)

    samples = Broken()
    with feeding("disk", samples, workers) as (feed, device):
        for _ in range(3):
            feed.next()
        for _ in range(2):
            with pytest.raises(OSError, match="unreadable"):
                feed.next()
            assert feed.position == 3
        samples.broken = False
        targets = feed.next()[1]
        device.finish()
        assert targets.tolist() == (100 + bad).tolist()


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_closing_waits_for_the_copies(kind: str) -> None:
    with feeding(kind) as (feed, device):
        feed.next()
        feed.close()
        assert device.log[-1] == "idle"
        assert device.queue == []


class Recorder:
    """Stands for ``torch.cuda``, and writes down what it is asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def Stream(self, device: Any) -> Recorder:
        return self

    def Event(self) -> Any:
        class Event:
            def record(self, stream: Any) -> None:
                log.append("record on side" if stream is side else "record elsewhere")

        log, side = self.log, self
        return Event()

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append("enter side" if stream is self else "enter other")
        yield
        self.log.append("leave")

    def current_stream(self, device: Any) -> Any:
        class Training:
            def wait_event(self, event: Any) -> None:
                log.append("training waits")

        log = self.log
        return Training()


class Tensor:
    """A tensor in pinned memory, and then one on the device."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def to(self, device: Any, *, non_blocking: bool) -> Tensor:
        assert non_blocking
        self._log.append("copy")
        return self

    def record_stream(self, stream: Any) -> None:
        assert type(stream).__name__ == "Training"
        self._log.append("training has it")


def test_what_cuda_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.feed.torch_copy import Cuda

    cuda = Recorder()
    for name in ("Stream", "Event", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    device = Cuda(torch.device("cuda", 0))
    tensors, copied = device.copy([Tensor(cuda.log), Tensor(cuda.log)])
    assert cuda.log == ["enter side", "copy", "copy", "record on side", "leave"]
    cuda.log.clear()
    device.hand_over(tensors, copied)
    assert cuda.log == ["training waits", "training has it", "training has it"]
