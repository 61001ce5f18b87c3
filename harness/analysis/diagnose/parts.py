"""The parts of one launch's step, and what each takes beyond the ideal's: see ``limiters``."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.analysis.diagnose.lateness import OWN, Spread
from harness.analysis.points import Launch


@dataclass(frozen=True)
class Look:
    """One launch, with what the raw steps tell of its ranks where they could be read."""

    launch: Launch
    spread: Spread | None = None

    def typical(self, phase: str) -> float | None:
        """Return a phase of the reference rank; the mean over ranks where ranks are unknown."""
        mean: float | None = getattr(self.launch, phase)
        if mean is None or self.spread is None:
            return mean
        return mean - self.spread.uneven_s(phase)

    @property
    def compute_s(self) -> float | None:
        """Return forward + backward of the reference rank."""
        forward, backward = self.typical("forward_s"), self.typical("backward_s")
        return None if forward is None or backward is None else forward + backward

    @property
    def late_s(self) -> float | None:
        """Return wait + unevenness; None where exposed sync was not marked."""
        wait = self.launch.wait_s
        if wait is None or self.spread is None:
            return wait
        return wait + sum(self.spread.uneven_s(phase) for phase in OWN)

    @property
    def unmarked_s(self) -> float | None:
        """Return the window's step − the sum of the phases."""
        total = self.launch.phase_sum_s
        return None if total is None else self.launch.step_s - total


@dataclass(frozen=True)
class Wire:
    """Bounds of what moving the bytes takes, in seconds; beyond ``most`` it is coordination."""

    least: float
    most: float


@dataclass(frozen=True)
class Ideal:
    """What a launch's step is held against."""

    part: float  # of the base's step: 1 (weak), base devices / N (strong)
    base: Look | None  # None: there is no base, or its block has none
    base_alone: bool = True  # one rank, so that it reduces nothing
    efficiency: float | None = None  # of this launch


@dataclass(frozen=True)
class Known:
    """What other launches and instruments say of a launch; None where they say nothing."""

    fixed_s: float | None = None  # compute that does not grow with the batch
    wire: Wire | None = None  # None: transfer cannot be divided
    all_wire: bool = False  # there is no controller
    telemetry_s: float | None = None  # beyond the base's


@dataclass(frozen=True)
class Account:
    """One launch: seconds a step by limiter."""

    lost_s: float | None
    lost: dict[str, float] = field(default_factory=dict)  # beyond the ideal
    shared: dict[str, float] = field(default_factory=dict)  # in the base's step, too


def account(own: Look, ideal: Ideal, known: Known) -> Account:
    """Divide the lost time of one launch. A part that was not measured is left out, never zero."""
    found: dict[str, float | None] = {
        "data": _excess(own.typical("data_s"), _of(ideal, "data_s"), ideal),
        "update": _excess(own.typical("update_s"), _of(ideal, "update_s"), ideal),
        "stragglers": _excess(own.late_s, _sync_of(ideal, "wait_s"), ideal),
        "unmarked": _excess(own.unmarked_s, ideal.base.unmarked_s if ideal.base else None, ideal),
        "instrument": known.telemetry_s,
        "interference": own.launch.interference_s,
        **_transfer(own, ideal, known),
        **_compute(own, ideal, known),
    }
    lost = {name: value for name, value in found.items() if value is not None}
    return Account(_lost(own, ideal, known), lost, _shared(own, ideal, known))


def _lost(own: Look, ideal: Ideal, known: Known) -> float | None:
    if ideal.efficiency is not None:
        return own.launch.step_s * (1.0 - ideal.efficiency)
    if own.compute_s is None:
        return None
    # Neither makes the ideal step longer than the compute that was measured.
    fixed, interference = known.fixed_s or 0.0, own.launch.interference_s or 0.0
    return own.launch.step_s - own.compute_s + max(0.0, fixed) + max(0.0, interference)


def _transfer(own: Look, ideal: Ideal, known: Known) -> dict[str, float | None]:
    """Divide transfer (beyond the base's) into negotiation, wire, and what lies between bounds."""
    transfer = own.launch.transfer_s
    if transfer is None:
        return (
            {"sync": own.launch.ablation_difference_s} if own.launch.interference_s is None else {}
        )
    beyond = _excess(transfer, _sync_of(ideal, "transfer_s"), ideal)
    if beyond is None:
        return {}
    if known.all_wire:
        return {"transfer": beyond}
    if known.wire is None:
        return {"sync": beyond}
    most = min(transfer, known.wire.most)
    least = min(most, known.wire.least)
    scale = beyond / transfer if transfer > 0 else 0.0
    return {
        "negotiation": scale * (transfer - most),
        "transfer": scale * least,
        "sync": scale * (most - least),
    }


def _compute(own: Look, ideal: Ideal, known: Known) -> dict[str, float | None]:
    fixed = known.fixed_s
    if ideal.base is None:
        return {"launch-bound": fixed if ideal.efficiency is None else None}
    theirs = ideal.base.compute_s
    if own.compute_s is None or theirs is None:
        return {}
    excess = own.compute_s - ideal.part * theirs
    whole = (1.0 - ideal.part) * fixed if fixed is not None and ideal.part < 1 else None
    rest = excess - (whole or 0.0) - (own.launch.interference_s or 0.0)
    # Overhead that stays as the batch shrinks, or a slower pace: only a second batch tells.
    untold = ideal.part < 1 and fixed is None
    return {"launch-bound": whole, "compute" if untold else "contention": rest}


def _shared(own: Look, ideal: Ideal, known: Known) -> dict[str, float]:
    if ideal.base is None:
        return {}
    pairs = {
        "data": (own.typical("data_s"), ideal.base.launch.data_s),
        "update": (own.typical("update_s"), ideal.base.launch.update_s),
        "launch-bound": (own.compute_s, known.fixed_s),
    }
    return {
        name: min(mine, ideal.part * theirs)
        for name, (mine, theirs) in pairs.items()
        if mine is not None and theirs is not None
    }


def _excess(mine: float | None, theirs: float | None, ideal: Ideal) -> float | None:
    """Return what is beyond the ideal's; all of it where there is no base at all."""
    if mine is None:
        return None
    if ideal.base is None:
        return mine if ideal.efficiency is None else None
    return None if theirs is None else mine - ideal.part * theirs


def _of(ideal: Ideal, phase: str) -> float | None:
    return ideal.base.typical(phase) if ideal.base else None


def _sync_of(ideal: Ideal, part: str) -> float | None:
    if ideal.base is None:
        return None
    found: float | None = getattr(ideal.base.launch, part)
    return 0.0 if found is None and ideal.base_alone else found
