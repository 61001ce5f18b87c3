"""What captures work of a GPU as CUDA graphs, and what orders streams around them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

Replay = Callable[[], None]


class Recorder(Protocol):
    """What captures work of the device; a test without a GPU plays it."""

    def record(self, body: Callable[[], None]) -> Replay:
        """Capture what ``body`` would queue, without running it; return what runs it."""

    def eager(self) -> AbstractContextManager[None]:
        """Make a scope in which the same work runs at once."""

    def event(self) -> Event:
        """Return what can be recorded in a graph, and waited for outside it."""

    def after(self, event: Event) -> AbstractContextManager[None]:
        """Make a scope whose work waits for ``event`` and not for what was queued after it."""


class Event(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> None:
        """Put it behind what is queued on the current stream, or captured by it."""


class CudaRecorder:
    """CUDA graphs of one device, which share their memory: only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        make_stream: Any = torch.cuda.Stream  # untyped in torch
        self._stream = make_stream(device)
        self._side = make_stream(device)
        self._pool: Any = torch.cuda.graph_pool_handle()

    def record(self, body: Callable[[], None]) -> Replay:
        """Capture what ``body`` would queue; replays go to the stream that is current then."""
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            body()
        replay: Replay = graph.replay
        return replay

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run on the stream that captures: what autograd ties to a stream is tied to this one."""
        current: Any = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def event(self) -> Event:
        """Return an event that stays one where it is captured, and is recorded by each replay."""
        make: Any = torch.cuda.Event
        made: Event = make(external=True)
        return made

    @contextmanager
    def after(self, event: Event) -> Iterator[None]:
        """Queue on a stream of its own, behind ``event``."""
        self._side.wait_event(event)
        with torch.cuda.stream(self._side):
            yield
