"""The sampler's loop, in this process: its pace, its pauses, its answers, its end."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from harness.telemetry import __main__ as program
from harness.telemetry import place
from harness.telemetry.loop import Loop


class Counting:
    """Stands in for a collector: numbers its samples, and is as slow as it is told to be."""

    devices = ()
    width = 2

    def __init__(self) -> None:
        self.samples = 0
        self.slow_s = 0.0

    def read(self, fresh: bool) -> list[float]:
        time.sleep(self.slow_s)
        self.samples += 1
        return [float(self.samples), float(fresh)]


class Talk:
    """The two pipes, from the rank's side."""

    def __init__(self, interval_s: float, parent: int) -> None:
        self.collector = Counting()
        commands, self.write = os.pipe()
        read, replies = os.pipe()
        self.read = io.open(read, "rb", buffering=0)  # noqa: UP020, SIM115
        loop = Loop(self.collector, interval_s, parent, commands, replies)  # type: ignore[arg-type]
        self.code: int | None = None

        def run() -> None:
            self.code = loop.run()
            os.close(replies)
            os.close(commands)

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def say(self, command: str) -> bytes:
        os.write(self.write, command.encode() + b"\n")
        return self.read.readline()

    def end(self) -> None:
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def stop(self) -> tuple[dict[str, Any], np.ndarray]:
        header = json.loads(self.say("stop"))
        data = b"".join(iter(lambda: self.read.read(1 << 16), b""))
        return header, np.frombuffer(data).reshape(header["width"], header["samples"])


def wait_for(one: Talk, samples: int) -> None:
    """Wait until it has taken so many samples, which a busy machine may delay."""
    deadline = time.monotonic() + 120
    while one.collector.samples < samples:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    talks: list[Talk] = []

    def start(interval_s: float = 0.02, parent: int | None = None) -> Talk:
        talks.append(Talk(interval_s, os.getppid() if parent is None else parent))
        assert talks[-1].read.readline() == b"ready\n"
        return talks[-1]

    yield start
    for each in talks:
        each.end()
        each.thread.join(120)
        each.read.close()
        assert not each.thread.is_alive()


def test_it_samples_at_its_pace_and_brings_everything_home(talk: Callable[..., Talk]) -> None:
    before_s = time.time()
    one = talk(0.05)
    wait_for(one, 8)
    header, columns = one.stop()
    times_s, segment, numbers, fresh = columns
    assert header["samples"] >= 8
    # What was due was taken, or counted; what is taken late counts as one.
    due = (times_s[-1] - times_s[0]) / 0.05
    assert int(due) <= header["samples"] + header["missed"]
    assert header["samples"] <= due + 2
    assert before_s - 0.01 <= times_s[0] <= times_s[-1] <= time.time() + 0.01
    assert (np.diff(times_s) > 0).all()
    assert list(numbers) == list(range(1, header["samples"] + 1))
    assert not segment.any()
    assert list(fresh) == [1.0] + [0.0] * (header["samples"] - 1)
    assert header["byteorder"] == sys.byteorder
    one.thread.join(120)
    assert one.code == 0


def test_paused_it_takes_no_sample_and_begins_anew(talk: Callable[..., Talk]) -> None:
    one = talk()
    time.sleep(0.1)
    assert one.say("pause") == b"pause\n"
    resting = one.collector.samples
    assert one.say("pause") == b"pause\n"
    time.sleep(0.2)
    assert one.collector.samples == resting
    assert one.say("resume") == b"resume\n"
    told_s = time.time()
    assert one.collector.samples > resting
    assert one.say("resume") == b"resume\n"  # goes on as it was
    wait_for(one, resting + 4)
    _, (times_s, segment, _, fresh) = one.stop()
    assert sorted(set(segment)) == [0.0, 1.0]
    (gap,) = np.flatnonzero(np.diff(segment))
    assert times_s[gap + 1] - times_s[gap] >= 0.2
    assert times_s[gap + 1] <= told_s + 0.01  # at once: before it said that it had resumed
    assert fresh[gap + 1] == 1.0
    assert fresh.sum() == 2.0


def test_samples_it_could_not_take_are_counted_and_not_made_up(talk: Callable[..., Talk]) -> None:
    one = talk(0.02)
    one.collector.slow_s = 0.1
    time.sleep(0.6)
    one.collector.slow_s = 0.0
    wait_for(one, one.collector.samples + 3)
    header, (times_s, *_) = one.stop()
    assert header["missed"] >= 8
    # No burst to make up for them: never more than were due by now.
    due = (time.time() - times_s[0]) / 0.02 + 1
    assert header["samples"] + header["missed"] <= due + 1


def test_it_ends_with_its_commands(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.end()
    one.thread.join(120)
    assert one.code == 1


def test_it_ends_when_nobody_reads(talk: Callable[..., Talk]) -> None:
    one = talk()
    one.read.close()
    os.write(one.write, b"pause\n")
    one.thread.join(120)
    assert one.code == 1


def test_another_parent_means_that_the_rank_is_gone() -> None:
    one = Talk(0.02, parent=os.getppid() + 1)
    one.thread.join(120)
    assert one.code == 1
    one.end()
    one.read.close()


def test_a_person_is_told_of_the_self_test(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program.main([])
    assert caught.value.code == 2
    assert "--self-test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("launcher", "owner", "wanted"),
    [
        ({0, 1, 2, 3}, 1000, {2, 3}),  # cores without a rank
        ({0, 1}, 1000, {0, 1}),  # none: shared with the ranks
        ({0, 1, 2, 3}, 0, {0, 1}),  # another user's launcher says nothing of this job
    ],
)
def test_where_the_sampler_runs(
    monkeypatch: pytest.MonkeyPatch, launcher: set[int], owner: int, wanted: set[int]
) -> None:
    cores = {11: {0}, 12: {1}, 10: launcher}
    moved: list[set[int]] = []
    monkeypatch.setattr(place, "read_process", lambda pid: {11: _Child(10)}[pid])
    with monkeypatch.context() as patch:  # of ``os``, and so of everybody
        patch.setattr(place.os, "sched_getaffinity", lambda pid: cores[pid])
        patch.setattr(place.os, "sched_setaffinity", lambda pid, to: moved.append(to))
        patch.setattr(place.os, "getuid", lambda: 1000)
        patch.setattr(place.os, "stat", lambda path: _Owned(owner))
        place.leave_the_ranks_cores(11, (11, 12))
    assert moved == [wanted]


class _Child:
    def __init__(self, parent: int) -> None:
        self.parent = parent


class _Owned:
    def __init__(self, uid: int) -> None:
        self.st_uid = uid
