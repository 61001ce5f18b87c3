"""What is asked, what may be asked for, and what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.analysis.scaling import Apart
from harness.stats import BlockKey, Interval

#: ``measured``: the cost itself was. ``computed``: epochs to the target at this global batch, as
#: trained elsewhere, times the epoch time measured here. ``noise scale``: the epochs come from
#: another global batch, by the gradient noise scale.
Basis = Literal["measured", "computed", "noise scale"]


@dataclass(frozen=True)
class Target:
    """A value of a workload's metric to be reached; the trainings know which way is better."""

    metric: str
    value: float


@dataclass(frozen=True)
class Goal:
    """What the user wants; None is no wish."""

    min_efficiency: float | None = None
    deadline_s: float | None = None
    target: Target | None = None


@dataclass(frozen=True)
class Objective:
    """What is made least among the candidates that keep to the limits: time^p · devices^q.

    ``fastest``: p = 1, q = 0. ``cheapest`` (device-hours): p = 1, q = 1. ``knee``: p = 2, q = 1,
    that is time × device-hours. Its inverse is efficiency / time up to a constant, whose maximum is
    the knee of Eager, Zahorjan & Lazowska 1989 (*Speedup Versus Efficiency in Parallel Systems*):
    beyond it a device more costs more in efficiency than it gives in time.
    """

    name: Literal["fastest", "cheapest", "knee"]
    time_power: int
    device_power: int
    quantity: str  # what is made least, in words
    text: str


@dataclass(frozen=True)
class BlockTime:
    """What one block measured of a candidate: seconds of an epoch, or of a training to its target.

    Those of equal ``pair`` were measured in the same block, and may be compared as pairs.
    """

    sweep: str
    allocation: str
    repeat: int
    pair: BlockKey
    time_s: float


@dataclass(frozen=True)
class Factor:
    """What an epoch's time is multiplied by.

    ``ends`` are its values where the one unknown number ``source`` is at its low and at its high
    end. Factors of one source move together: equal ones cancel in a ratio.
    """

    estimate: float
    ends: tuple[float, float]
    source: str


@dataclass(frozen=True)
class Candidate:
    """A point that was measured, and what it costs. Times in seconds, of what the answer names."""

    label: str
    ask: Mapping[str, str]  # keys of a sweep's config and their values
    sweeps: tuple[str, ...]
    device: str
    engine: str
    backend: str | None
    scaling: str
    batch: int  # declared: of a rank (weak) or of all (strong)
    rank_batch: int
    global_batch: int
    world_size: int
    nodes: int
    placement: str
    options: int  # keys of its config that are not at their defaults
    basis: Basis
    source: str  # how its cost was come by, one sentence; empty where it was measured
    time_s: Interval
    device_hours: Interval
    epoch_s: Interval | None
    epochs: float | None  # to the target
    wall_s: Interval | None  # to the target with evaluations, where it was trained
    efficiency: Interval | None
    no_efficiency: str | None  # why there is none
    blocks: tuple[BlockTime, ...]
    factors: tuple[Factor, ...] = ()
    apart: Apart | None = None  # where the base of ``efficiency`` is, if not in the same blocks
    misses: tuple[str, ...] = ()  # limits that it does not keep to, and by how much


@dataclass(frozen=True)
class Answer:
    """What to ask for in one question: one workload, and one batch size where none is chosen."""

    title: str
    cost_of: str  # what a time is of: "an epoch", "training to mse ≤ 0.002"
    objective: Objective
    chooses_batch: bool
    candidates: tuple[Candidate, ...]  # those that keep to the limits first, best first
    recommended: Candidate | None
    refusal: str | None  # why nothing is recommended
    provisional: str | None  # why a recommendation rests on estimates alone
    tied: tuple[str, ...]  # labels of those that cannot be told from the best
    why: tuple[str, ...]
    runner_up: Candidate | None
    to_win: str | None  # what would make the runner-up win
    notes: tuple[str, ...] = ()
    comparable: bool = True  # no: its candidates are of batch sizes between which nothing chooses
    next: str | None = None  # what is worth measuring, which is no recommendation


@dataclass(frozen=True)
class Advice:
    """All answers, and what is to be said of all."""

    goal: Goal
    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
