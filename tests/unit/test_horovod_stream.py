"""Where a step of Horovod's must be queued, with made-up streams: there is no GPU here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import LaunchError
from tests.requirements import require_modules

require_modules("torch", "horovod")

import torch  # noqa: E402

from harness.engines.horovod_torch_graph import HorovodGraphStep  # noqa: E402
from harness.engines.horovod_torch_step import AdasumStep, HorovodStep  # noqa: E402


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Give the streams of a device, the default one being current."""
    made = SimpleNamespace(current="default")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    return made


def step(kind: type[Any], *, asynchronous: bool) -> Any:
    """Return a step of two ranks that has come to its all-reduce, with nothing in it."""
    made = kind.__new__(kind)
    made.device = torch.device("cuda", 0)
    made.gradient_allreduce = True
    made._asynchronous = asynchronous
    made._reduced_steps = made._reduced_bytes = 0
    made._pieces, made._flat, made._changes = (), torch.zeros(2), []
    made.optimiser = SimpleNamespace(
        synchronize=lambda: None, _requires_update=(), _handles={}, _compression=None
    )
    return made


@pytest.mark.parametrize("kind", [HorovodStep, AdasumStep])
def test_async_completion_on_another_stream_is_refused(
    kind: type[Any], streams: SimpleNamespace
) -> None:
    step(kind, asynchronous=True)._synchronise(True)
    streams.current = "another"
    with pytest.raises(LaunchError, match="async_completion: a step runs on another stream"):
        step(kind, asynchronous=True)._synchronise(True)
    waits_on_the_host = step(kind, asynchronous=False)
    waits_on_the_host._synchronise(True)
    assert waits_on_the_host._reduced_steps == 1


def test_a_captured_step_on_another_stream_is_refused(streams: SimpleNamespace) -> None:
    assert step(HorovodGraphStep, asynchronous=False)._start_reduce(True)
    streams.current = "another"
    with pytest.raises(LaunchError, match=r"execution\.graph: a step runs on another stream"):
        step(HorovodGraphStep, asynchronous=False)._start_reduce(True)
