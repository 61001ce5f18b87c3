"""Marks of a device on the host's clock: fake events, on a device whose clock goes its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from harness.engines.api import BOUNDARIES  # noqa: E402
from harness.engines.torch_clock import TorchClock  # noqa: E402

SYNCHRONISE_S = 8e-6
RECORD_S = 2e-6


class Machine:
    """A host and a device in true time; the device comes to an event ``lag_s`` after it is put."""

    def __init__(self, drift: float = 0.0, lag_s: float = 3e-6) -> None:
        self.now_s = 1000.0
        self.drift = drift
        self.lag_s = lag_s
        self.synchronised = 0
        self.events: list[FakeEvent] = []
        self.clock = TorchClock(
            torch.device("cuda"),
            make_event=lambda: FakeEvent(self),
            synchronise=self.synchronise,
            clock=lambda: self.now_s,
        )

    def synchronise(self) -> None:
        self.synchronised += 1

    def run_step(self, phase_s: float, between_s: float = 0.0) -> list[float]:
        """Run a step of equal phases; return when the device comes to each boundary."""
        self.clock.start_step()
        for _ in BOUNDARIES[1:]:
            self.now_s += phase_s
            self.clock.mark()
        found = [event.true_s for event in self.events[-len(BOUNDARIES) :]]
        self.now_s += between_s
        return found


class FakeEvent:
    """``torch.cuda.Event``'s interface, with its float32 milliseconds."""

    made = 0

    def __init__(self, machine: Machine) -> None:
        FakeEvent.made += 1
        self.machine = machine

    def record(self) -> None:
        self.machine.now_s += RECORD_S
        self.true_s = self.machine.now_s + self.machine.lag_s
        self.machine.events.append(self)

    def synchronize(self) -> None:
        self.machine.now_s = max(self.machine.now_s, self.true_s) + SYNCHRONISE_S

    def elapsed_time(self, end: Any) -> float:
        device_s = (end.true_s - self.true_s) * (1.0 + self.machine.drift)
        return float(np.float32(device_s * 1e3))


@pytest.mark.parametrize("drift", [0.0, 5e-5, -5e-5, 1e-3])
def test_events_are_mapped_to_the_hosts_clock(drift: float) -> None:
    machine = Machine(drift)
    true = [machine.run_step(0.002, between_s=0.01) for _ in range(200)]  # 4 s: 200 µs of drift
    marks = machine.clock.take()
    assert marks.shape == (200, len(BOUNDARIES))
    # As an anchor's own width allows: 13 µs, of which half is the most it can be wrong by.
    np.testing.assert_allclose(marks, true, rtol=0, atol=7e-6)
    assert machine.clock.take().shape == (0, len(BOUNDARIES))


def test_a_long_block_stays_exact() -> None:
    """Two hours in float32 milliseconds are half a millisecond coarse; a phase of 10 µs is not."""
    machine = Machine(2e-5)
    true = np.array([machine.run_step(1e-5, between_s=7.2) for _ in range(1000)])
    marks = machine.clock.take()
    np.testing.assert_allclose(np.diff(marks, axis=1), np.diff(true, axis=1), rtol=1e-4)
    np.testing.assert_allclose(np.diff(marks[:, 0]), np.diff(true[:, 0]), rtol=0, atol=1e-6)
    np.testing.assert_allclose(marks, true, rtol=0, atol=2e-5)


def test_a_short_block_is_not_stretched_by_what_its_anchors_cannot_tell() -> None:
    machine = Machine(lag_s=3e-6)
    machine.clock.start_step()
    machine.lag_s = 11e-6  # the second anchor comes later than the first one
    machine.now_s += 1e-4
    for _ in BOUNDARIES[1:]:
        machine.clock.mark()
        machine.now_s += 1e-4
    true = [event.true_s for event in machine.events[-len(BOUNDARIES) :]]
    marks = machine.clock.take()
    np.testing.assert_allclose(np.diff(marks[0]), np.diff(true), rtol=1e-6)


def test_the_narrowest_anchor_counts() -> None:
    machine = Machine()
    disturbed: list[float] = []
    plain = FakeEvent.synchronize

    def interrupted(event: FakeEvent) -> None:
        plain(event)
        disturbed.append(0.0 if len(disturbed) % 4 == 2 else 0.005)
        machine.now_s += disturbed[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeEvent, "synchronize", interrupted)
        true = [machine.run_step(0.002) for _ in range(20)]
        marks = machine.clock.take()
    assert 0.005 in disturbed
    np.testing.assert_allclose(marks, true, rtol=0, atol=7e-6)


def test_anchors_cost_nothing_within_the_steps() -> None:
    """The device is waited for before the first mark and after the last one, and never between."""
    machine = Machine()
    machine.run_step(0.002)
    after_first = (machine.synchronised, len(machine.events))
    machine.run_step(0.002)
    assert (machine.synchronised, len(machine.events)) == (
        after_first[0],
        after_first[1] + len(BOUNDARIES),
    )
    machine.clock.take()
    machine.run_step(0.002)
    machine.clock.take()
    assert machine.synchronised == 4  # two a block: a block's start is not the last one's end


def test_no_step_makes_an_event_that_was_to_be_expected() -> None:
    machine = Machine()
    machine.clock.expect(3)
    for block in range(2):  # the second reuses those of the first
        before = FakeEvent.made
        true = [machine.run_step(0.002)]
        anchors = FakeEvent.made - before
        true += [machine.run_step(0.002) for _ in range(2)]
        assert FakeEvent.made - before == anchors, block
        np.testing.assert_allclose(machine.clock.take(), true, rtol=0, atol=7e-6)


def test_a_cpu_is_on_the_hosts_clock_already() -> None:
    now_s = iter(np.arange(12.0))
    clock = TorchClock(torch.device("cpu"), clock=lambda: float(next(now_s)))
    for _ in range(2):
        clock.start_step()
        for _ in BOUNDARIES[1:]:
            clock.mark()
    assert clock.take().tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert clock.take().shape == (0, len(BOUNDARIES))
