"""A timeline per step.

Horovod's file knows no steps. Each gradient has one name and is reduced once a step, so the steps
of a file are the number of times that its tensors were reduced: what most all-reduces' tensors have
in common. Whoever recorded a known number of steps gives it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.timeline.account import PHASES, WITHIN_QUEUE, Account, BadEventError
from harness.timeline.events import Events


@dataclass(frozen=True)
class PhaseTime:
    """Time in one state, a step."""

    union_s: float  # at least one tensor was in it: comparable with a step
    sum_s: float  # over the tensors: how long they were in it, all together
    entries: float  # tensors coming into it, as often as each does
    names: tuple[str, ...]  # of Horovod's activities


@dataclass(frozen=True)
class Summary:
    """The all-reduces of a timeline; means a step. Phases overlap each other, and backward.

    A phase is None where the file has none of it.
    """

    events: int
    complete: bool  # False: the file ends before its array of events does
    steps: int  # what everything is divided by
    steps_found: int  # how often most tensors were reduced
    uneven: int  # tensors that were reduced more or less often than that
    span_s: float  # of one step: from the file's first request to its last all-reduce's end
    negotiation: PhaseTime | None
    queue: PhaseTime | None  # agreed on by all ranks, not yet copied or reduced
    copy_in: PhaseTime | None
    allreduce: PhaseTime | None
    copy_out: PhaseTime | None
    data: PhaseTime | None  # of the queue: the tensor is still being computed
    stream: PhaseTime | None  # of the queue: earlier work of Horovod's GPU stream
    setup: PhaseTime | None  # of the queue: buffers and communicators are being made
    cycles: float | None  # of Horovod's background loop, over the span; None: not marked
    cycle_s: float | None  # one of them
    tensors: float
    allreduces: float
    tensors_fused: float  # in one all-reduce

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def read_summary(path: Path, steps: int | None = None) -> Summary:
    """Sum up the timeline in ``path``, per step of the ``steps`` that it has (None: found in it).

    Reads as a stream, in bounded memory. Raises TimelineError where the file is no timeline of
    Horovod, or has no all-reduce that ends.
    """
    events, account = Events(path), Account()
    try:
        for event in events:
            account.take(event)
    except BadEventError as error:
        raise events.error(f"event {events.count} {error}") from None
    account.finish()
    _refuse_without_allreduce(events, account)
    return _per_step(events, account, steps)


def _refuse_without_allreduce(events: Events, account: Account) -> None:
    if account.reduced and account.operations:
        return
    if account.negotiations or account.is_horovod:
        raise events.error(
            f"no all-reduce ends in this timeline of Horovod ({events.count} events)"
        )
    raise events.error(
        f"a trace of another program: none of its {events.count} events is a NEGOTIATE_ALLREDUCE "
        "or the like, as Horovod writes them; a timeline of Horovod is wanted"
    )


def _per_step(events: Events, account: Account, wanted: int | None) -> Summary:
    occurrences = account.occurrences()
    found = _most_common(occurrences)
    steps = wanted or found
    assert account.first_us is not None  # something was reduced
    span_s = (account.last_us - account.first_us) * 1e-6
    phases = {name: _phase(account, name, steps) for name in (*PHASES, *WITHIN_QUEUE)}
    return Summary(
        events=events.count,
        complete=events.complete,
        steps=steps,
        steps_found=found,
        uneven=occurrences.total() - occurrences[found],
        span_s=span_s / steps,
        **phases,
        cycles=None if account.cycles is None else account.cycles / steps,
        cycle_s=span_s / account.cycles if account.cycles else None,
        tensors=account.reduced / steps,
        allreduces=account.operations / steps,
        tensors_fused=account.moved / account.operations,
    )


def _most_common(occurrences: Counter[int]) -> int:
    """Return how often the tensors of most all-reduces were reduced.

    Weighted by all-reduces: 8 gradients in 20 steps outweigh 30 losses without a name, each of
    which Horovod takes for a tensor of its own.
    """
    return max(occurrences, key=lambda times: (times * occurrences[times], times))


def _phase(account: Account, name: str, steps: int) -> PhaseTime | None:
    spans = account.spans[name]
    if not spans.entered:
        return None
    return PhaseTime(
        union_s=spans.union_us * 1e-6 / steps,
        sum_s=spans.sum_us * 1e-6 / steps,
        entries=spans.entered / steps,
        names=tuple(sorted(account.names[name])),
    )
