"""One launch's step by its parts, and each change as a function from parts to parts.

The exposed transfer is parted as the mechanism parts it: half a cycle of Horovod; negotiation, by
the timeline where there is one, else what the isolated all-reduce does not explain; and
the all-reduce, by latency and bandwidth of a ring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from harness.analysis.models.changes import Change
from harness.analysis.models.launch_bound import Graph
from harness.analysis.models.measured import Facts, StepParts, TimelineParts
from harness.analysis.models.negotiation import queue_s

#: In the order in which they come in a step; their sum is the step.
NAMES = (
    "data",
    "forward",
    "backward",
    "wait for stragglers",
    "wait for a cycle",
    "negotiation",
    "all-reduce latency",
    "all-reduce bandwidth",
    "update",
)
_SYNC = NAMES[3:8]
_COMPUTE = ("forward", "backward", "update")


@dataclass(frozen=True)
class Split:
    """How a point's exposed transfer is parted; None where the records cannot tell."""

    facts: Facts
    isolated_s: float | None  # without Horovod's cycle
    timeline: TimelineParts | None
    latency_share: float | None  # of the all-reduce

    @property
    def knows_allreduce(self) -> bool:
        """Say whether an all-reduce can be told from negotiation."""
        alone = self.facts.tuning is None
        return alone or self.isolated_s is not None or self.timeline is not None


@dataclass(frozen=True)
class State:
    """A step as it would be: seconds by part, and the all-reduce that is hidden."""

    parts: Mapping[str, float]
    hidden_s: float | None  # None where it is not known

    @property
    def step_s(self) -> float:
        """Return the step."""
        return sum(self.parts.values())

    def having(self, parts: Mapping[str, float]) -> State:
        """Return it with some parts replaced."""
        return replace(self, parts={**self.parts, **parts})


class Refusal(Exception):
    """Why a change cannot be replayed: a sentence."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def state_of(step: StepParts, split: Split) -> State:
    """Return a launch's step by all parts."""
    tuning = split.facts.tuning
    queue = min(step.transfer_s, queue_s(tuning.cycle_time_ms)) if tuning else 0.0
    rest = step.transfer_s - queue
    if tuning is None:
        allreduce = rest
    elif split.timeline is not None:
        allreduce = rest - split.timeline.exposed_negotiation_s(rest)
    else:
        allreduce = min(rest, split.isolated_s or 0.0)
    latency = allreduce * (split.latency_share or 0.0)
    values = (
        *(step.data_s, step.forward_s, step.backward_s, step.wait_s, queue),
        *(rest - allreduce, latency, allreduce - latency, step.update_s),
    )
    hidden = None if split.isolated_s is None else max(split.isolated_s - allreduce, 0.0)
    return State(dict(zip(NAMES, values, strict=True)), hidden)


def changed(state: State, change: Change, split: Split, graph: Graph | None) -> State:
    """Return a step with one thing changed; raises Refusal where the records lack what it needs."""
    return _CHANGES[change.name](state, change, split, graph)


def assumptions_of(change: Change, split: Split, graph: Graph | None) -> tuple[str, ...]:
    """Return what had to be assumed for a change."""
    lines = {
        "no-stragglers": ["every rank takes as long as they do on average, so nobody waits"],
        "no-sync": ["gradients are not reduced at all: a bound, and no training; hooks still cost"],
        "cycle_time_ms": [
            "the last gradient waits for half a cycle, and nothing hides it; a shorter cycle keeps "
            "a core of each rank busier, which is not in it"
        ],
        "bandwidth": [_split_words(split), "the exposed share of the all-reduce stays as it is"],
        "latency": [_split_words(split), "the exposed share of the all-reduce stays as it is"],
        "graph": [graph.words if graph else "", "batches, losses and reductions stay as they are"],
    }[change.name]
    if change.name == "bandwidth" and split.latency_share is None:
        lines.append(
            "at most: latency and bandwidth cannot be told apart from one placement, so all of the "
            "exposed all-reduce counts as bandwidth"
        )
    return tuple(line for line in lines if line)


def _split_words(split: Split) -> str:
    if split.facts.tuning is None:
        return "exposed transfer is all-reduce alone"
    if split.timeline is not None:
        return (
            "exposed transfer is half a cycle, the last operation of the timeline, and its "
            "negotiation as far as there is any"
        )
    return (
        "exposed transfer is half a cycle, the isolated all-reduce without its cycle, and the rest "
        "negotiation"
    )


def _no_stragglers(state: State, _change: Change, _split: Split, _graph: Graph | None) -> State:
    return state.having({"wait for stragglers": 0.0})


def _no_sync(state: State, _change: Change, _split: Split, _graph: Graph | None) -> State:
    return state.having(dict.fromkeys(_SYNC, 0.0))


def _cycle(state: State, change: Change, split: Split, _graph: Graph | None) -> State:
    tuning = split.facts.tuning
    if tuning is None:
        raise Refusal("only Horovod has a cycle")
    more_s = queue_s(change.value or 0.0) - queue_s(tuning.cycle_time_ms)
    return state.having({"wait for a cycle": max(state.parts["wait for a cycle"] + more_s, 0.0)})


def _bandwidth(state: State, change: Change, split: Split, _graph: Graph | None) -> State:
    _require_allreduce(split)
    part = "all-reduce bandwidth"
    return state.having({part: state.parts[part] / (change.value or 1.0)})


def _latency(state: State, change: Change, split: Split, _graph: Graph | None) -> State:
    _require_allreduce(split)
    if split.latency_share is None:
        raise Refusal(
            "latency cannot be told from bandwidth: measure at two device counts of one node or "
            "more, e.g. --set placement=[1,2,4]"
        )
    part = "all-reduce latency"
    return state.having({part: state.parts[part] * (1.0 if change.value is None else change.value)})


def _require_allreduce(split: Split) -> None:
    if not split.knows_allreduce:
        raise Refusal(
            "the all-reduce cannot be told from negotiation: there is neither an isolated "
            "all-reduce nor a timeline (measure.instruments: [phases, timeline])"
        )


def _graph(state: State, _change: Change, _split: Split, graph: Graph | None) -> State:
    if graph is None:
        raise Refusal("nothing tells whether the step is launch-bound")
    if graph.refused is not None:
        raise Refusal(graph.refused)
    compute_s = sum(state.parts[name] for name in _COMPUTE)
    factor = graph.kept(state.step_s, compute_s)
    parts = {name: state.parts[name] * factor for name in _COMPUTE}
    # A shorter backward pass hides less of the all-reduce.
    bare_s = max((state.hidden_s or 0.0) - parts["backward"], 0.0)
    name = "all-reduce bandwidth"
    kept_s = None if state.hidden_s is None else state.hidden_s - bare_s
    return replace(state.having(parts | {name: state.parts[name] + bare_s}), hidden_s=kept_s)


_CHANGES: dict[str, Callable[[State, Change, Split, Graph | None], State]] = {
    "no-stragglers": _no_stragglers,
    "no-sync": _no_sync,
    "cycle_time_ms": _cycle,
    "bandwidth": _bandwidth,
    "latency": _latency,
    "graph": _graph,
}
