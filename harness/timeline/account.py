"""What Horovod was doing, from the events of its timeline: time in each state, operations, cycles.

A tensor is a process of the trace (``pid``). Horovod writes, in the order of time, for each::

    B NEGOTIATE_ALLREDUCE … E     from the first rank's request until all ranks have asked
    B ALLREDUCE                   the operation, which may be of several tensors ("fused"):
      B WAIT_FOR_DATA … E           GPU: what is reduced is still being computed
      B QUEUE … E                   GPU: earlier work of Horovod's stream
      B MEMCPY_IN_FUSION_BUFFER … E
      B NCCL_ALLREDUCE … E          or MPI_, GLOO_; several, where the all-reduce is hierarchical
      B MEMCPY_OUT_FUSION_BUFFER … E
    E

Every tensor of a fused operation gets the operation's states, so sums over tensors count one copy
or transfer as often as it had tensors. The union does not: it is the time in which at least one
tensor was in that state.

What it cannot tell: how long a request lay before rank 0's next cycle saw it (up to a cycle, which
is why cycles are counted), and the exchange of requests itself. A tensor that all ranks ask for in
the same cycle has a negotiation of a microsecond or two. Queue is all that lies between a tensor's
agreement and its copy or transfer: the turn of other operations or of its group, and what Horovod
names (``WITHIN_QUEUE``). All is as rank 0 sees it: where another rank comes late to the transfer,
that wait is in the all-reduce.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeGuard

#: States of a tensor, in the order it goes through them.
PHASES = ("negotiation", "queue", "copy_in", "allreduce", "copy_out")
#: What the queue is spent on, where Horovod says so; the rest is the turn of other operations.
WITHIN_QUEUE = ("data", "stream", "setup")

_NEGOTIATE = "NEGOTIATE_"
_REDUCING = frozenset({"ALLREDUCE", "ADASUM"})
_ACTIVITIES = {
    "WAIT_FOR_DATA": "data",
    "WAIT_FOR_OTHER_TENSOR_DATA": "data",
    "QUEUE": "stream",
    **dict.fromkeys(
        ("INIT_FUSION_BUFFER", "INIT_NCCL", "ALLOCATE_OUTPUT", "ALLOCATE_SHARED_BUFFER"), "setup"
    ),
    **dict.fromkeys(
        ("MEMCPY_IN_FUSION_BUFFER", "MEMCPY_IN_HOST_BUFFER", "MEMCPY_IN_SHARED_BUFFER"), "copy_in"
    ),
    **dict.fromkeys(("MEMCPY_OUT_FUSION_BUFFER", "MEMCPY_OUT_HOST_BUFFER"), "copy_out"),
    **dict.fromkeys(
        (
            "CCL_ALLREDUCE",
            "GLOO_ALLREDUCE",
            "MPI_ADASUM_ALLREDUCE",
            "MPI_ALLREDUCE",
            "NCCL_ALLGATHER",
            "NCCL_ALLREDUCE",
            "NCCL_BCAST",
            "NCCL_REDUCE",
            "NCCL_REDUCESCATTER",
        ),
        "allreduce",
    ),
}
_CYCLE = "CYCLE_START"

MAX_TENSORS = 1 << 22  # a step of unnamed tensors makes new ones; so many take 16 MB here
_MAX_OPEN = 1 << 17  # tensors at once; the largest models have some thousands
_MAX_DEPTH = 8  # Horovod's own is 2
_MAX_US = 1 << 62


class BadEventError(Exception):
    """An event that Horovod does not write; the caller knows its number."""


@dataclass(slots=True)
class Spans:
    """Time of tensors in one state, in microseconds."""

    open: int = 0  # tensors that are in it now
    since_us: float = 0  # at least one is
    union_us: float = 0
    sum_us: float = 0
    entered: int = 0

    def enter(self, time_us: float) -> None:
        """A tensor comes into this state."""
        if not self.open:
            self.since_us = time_us
        self.open += 1
        self.entered += 1

    def leave(self, time_us: float, entered_us: float) -> None:
        """A tensor that came at ``entered_us`` leaves it."""
        self.open -= 1
        self.sum_us += time_us - entered_us
        if not self.open:
            self.union_us += time_us - self.since_us


@dataclass(slots=True)
class _Tensor:
    """What is open of one tensor."""

    stack: list[tuple[str | None, float]] = field(default_factory=list)  # state, since when
    reducing: bool = False  # inside its operation
    moved: bool = False  # the operation has begun to reduce it
    agreed_us: float | None = None  # in the queue since then


class Account:
    """Takes events one by one. What comes before the first negotiation is not looked at."""

    def __init__(self) -> None:
        self.spans = {name: Spans() for name in (*PHASES, *WITHIN_QUEUE)}
        self.names: dict[str, set[str]] = {name: set() for name in self.spans}
        self.negotiations = 0  # of any kind: without one it is no timeline of Horovod
        self.is_horovod = False  # its head or its cycle marks were seen
        self.operations = 0  # all-reduces
        self.moved = 0  # tensors in them
        self.reduced = 0  # tensors whose all-reduce is done
        self.cycles: int | None = None  # from the first request to the last all-reduce's end
        self.first_us: float | None = None  # of these two
        self.last_us = 0.0
        self._now_us = 0.0
        self._marks = 0
        self._tensors: dict[int, _Tensor] = {}
        self._done = array("I")  # all-reduces of each tensor

    def take(self, event: dict[str, Any]) -> None:
        """Add an event; raises BadEventError."""
        phase = event.get("ph")
        if phase == "B":
            name = event.get("name")
            if isinstance(name, str):
                self.negotiations += name.startswith(_NEGOTIATE)
                if self.negotiations:
                    self._begin(self._tensor(event), name, self._time_us(event))
            elif self.negotiations:
                raise BadEventError("begins something without a name")
        elif phase == "E":
            if self.negotiations:
                self._end(self._pid(event), self._time_us(event))
        elif phase == "i" and event.get("name") == _CYCLE:
            self.is_horovod = True
            if self.negotiations:
                self._time_us(event)
            self._marks += self.first_us is not None
            self.cycles = self.cycles or 0
        elif phase == "M" and not self.is_horovod:
            arguments = event.get("args")
            head = "start_time_since_epoch_in_micros"
            self.is_horovod = isinstance(arguments, dict) and head in arguments

    def finish(self) -> None:
        """End what is still open at the time of the last event: the file ended before it did."""
        for tensor in self._tensors.values():
            self._leave_queue(tensor, self._now_us)
            for state, since_us in tensor.stack:
                if state is not None:
                    self.spans[state].leave(self._now_us, since_us)
        self._tensors.clear()

    def occurrences(self) -> Counter[int]:
        """Return how many tensors were reduced so often."""
        found = Counter(self._done)
        del found[0]
        return found

    def _begin(self, tensor: _Tensor, name: str, now_us: float) -> None:
        if len(tensor.stack) >= _MAX_DEPTH:
            raise BadEventError(f"is the {_MAX_DEPTH + 1}th that one tensor has open at once")
        state: str | None = None
        if name.startswith(_NEGOTIATE):
            if name.removeprefix(_NEGOTIATE) in _REDUCING:
                state = "negotiation"
                self._mark_first(now_us)
        elif tensor.reducing:
            state = _ACTIVITIES.get(name)
            if state in ("copy_in", "allreduce"):
                self._leave_queue(tensor, now_us)
            if state == "allreduce" and not tensor.moved:
                # Of a fused operation all tensors begin together, and operations follow each other.
                self.operations += not self.spans["allreduce"].open
                self.moved += 1
                tensor.moved = True
        elif not tensor.stack:
            self._begin_operation(tensor, name, now_us)
        if state is not None:
            self.spans[state].enter(now_us)
            self.names[state].add(name)
        tensor.stack.append((state, now_us))

    def _begin_operation(self, tensor: _Tensor, name: str, now_us: float) -> None:
        if name not in _REDUCING:  # another collective, or what Horovod calls ERROR
            self._leave_queue(tensor, now_us)
            return
        tensor.reducing, tensor.moved = True, False
        self._mark_first(now_us)
        if tensor.agreed_us is None:  # the account began after its negotiation
            self._enter_queue(tensor, now_us)

    def _end(self, pid: int, now_us: float) -> None:
        tensor = self._tensors.get(pid)
        if tensor is None or not tensor.stack:
            return  # it began before the account did
        state, since_us = tensor.stack.pop()
        if state is not None:
            self.spans[state].leave(now_us, since_us)
        if state == "negotiation":
            self._leave_queue(tensor, now_us)
            self._enter_queue(tensor, now_us)
        elif tensor.reducing and not tensor.stack:
            tensor.reducing = False
            self._leave_queue(tensor, now_us)
            self.reduced += 1
            self._count(pid)
            self.last_us = now_us
            self.cycles = None if self.cycles is None else self._marks
        if not tensor.stack and tensor.agreed_us is None:
            del self._tensors[pid]

    def _enter_queue(self, tensor: _Tensor, now_us: float) -> None:
        tensor.agreed_us = now_us
        self.spans["queue"].enter(now_us)

    def _leave_queue(self, tensor: _Tensor, now_us: float) -> None:
        if tensor.agreed_us is not None:
            self.spans["queue"].leave(now_us, tensor.agreed_us)
            tensor.agreed_us = None

    def _mark_first(self, now_us: float) -> None:
        if self.first_us is None:
            self.first_us = now_us

    def _count(self, pid: int) -> None:
        if pid >= len(self._done):
            self._done.extend([0] * (pid + 1 - len(self._done)))
        self._done[pid] += 1

    def _tensor(self, event: dict[str, Any]) -> _Tensor:
        pid = self._pid(event)
        tensor = self._tensors.get(pid)
        if tensor is None:
            if len(self._tensors) >= _MAX_OPEN:
                raise BadEventError(f"leaves more than {_MAX_OPEN} tensors open at once")
            tensor = self._tensors[pid] = _Tensor()
        return tensor

    def _pid(self, event: dict[str, Any]) -> int:
        pid = event.get("pid")
        if type(pid) is not int or not 0 <= pid < MAX_TENSORS:
            raise BadEventError(f"has no number of a tensor (pid) from 0 to {MAX_TENSORS - 1}")
        return pid

    def _time_us(self, event: dict[str, Any]) -> float:
        now_us = event.get("ts")
        if not _is_number(now_us) or not 0 <= now_us < _MAX_US:
            raise BadEventError("has no time (ts) that is a number of microseconds")
        if now_us < self._now_us:
            raise BadEventError("has a time (ts) before that of the event before it")
        self._now_us = now_us
        return now_us


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) is int or type(value) is float  # and no bool
