"""From the accounts of a point's launches to findings with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis.diagnose.evidence import evidence_of
from harness.analysis.diagnose.knobs import knobs_of
from harness.analysis.diagnose.limiters import SHARED_SHARE
from harness.analysis.diagnose.parts import Account
from harness.analysis.diagnose.subject import Subject
from harness.analysis.diagnose.types import Finding, Kind, verdict
from harness.analysis.points import Launch
from harness.analysis.welch import welch
from harness.stats import BlockKey, Interval, mean_interval

Values = list[tuple[BlockKey, float]]
_KINDS: tuple[Kind, ...] = ("lost", "shared")
#: Of what one launch tells by its own blocks: standard errors to either side, about 95 %.
_ERRORS = 2.0
_ROUNDING = 1e-9  # of equal values' mean


Accounts = Sequence[tuple[Launch, Account]]


def findings(
    subject: Subject, accounts: Accounts, of_bases: Accounts, lost_s: Interval | None
) -> tuple[Finding, ...]:
    """Return what a point loses its time to, the largest first and those not shown last.

    ``of_bases`` are ``Subject.accounts_of_bases``.
    """
    found = []
    for kind in _KINDS:
        scatter = _by_limiter(of_bases, kind)
        for name, values in _by_limiter(accounts, kind).items():
            time_s = over_blocks(subject, values, scatter.get(name, ()))
            assert time_s is not None  # there are values
            found.append(_finding(subject, name, kind, time_s, lost_s))
    kept = [one for one in found if one.kind == "lost" or _is_large(one)]
    return tuple(sorted(kept, key=lambda one: (one.verdict == "not shown", -one.time_s.estimate)))


def over_blocks(
    subject: Subject,
    values: Iterable[tuple[BlockKey, float]],
    of_bases: Iterable[tuple[BlockKey, float]] = (),
) -> Interval | None:
    """Return the interval over blocks; None without values.

    ``of_bases`` are the same by blocks of bases that are apart: their scatter is added (Welch).
    """
    means, scatter = _means(values), _means(of_bases)
    if not means:
        return None
    level = subject.point.step_s.level
    found = mean_interval(means, level)
    if scatter:
        centre = mean_interval(scatter, level).estimate
        found = welch({k: v - centre for k, v in scatter.items()}, means, level).interval
    return found.sequential() if subject.point.sequential else found


def _means(values: Iterable[tuple[BlockKey, float]]) -> dict[BlockKey, float]:
    by_block: dict[BlockKey, list[float]] = {}
    for block, value in values:
        by_block.setdefault(block, []).append(value)
    return {block: fmean(found) for block, found in by_block.items()}


def _by_limiter(accounts: Accounts, kind: Kind) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for launch, one in accounts:
        for name, value in (one.lost if kind == "lost" else one.shared).items():
            found.setdefault(name, []).append((launch.block, value))
    return found


def _finding(
    subject: Subject, name: str, kind: Kind, time_s: Interval, lost_s: Interval | None
) -> Finding:
    time_s = _with_own_error(subject, name, _of_one_timeline(subject, name, time_s))
    if name == "contention" and subject.crowding:
        name = "oversubscription"
    share = None
    if kind == "lost" and lost_s is not None and verdict(lost_s) != "not shown":
        share = time_s.estimate / lost_s.estimate
    return Finding(
        limiter=name,
        kind=kind,
        time_s=time_s,
        share_of_lost=share,
        share_of_step=time_s.estimate / subject.point.step_s.estimate,
        verdict=verdict(time_s),
        evidence=tuple(evidence_of(name, subject)),
        knobs=tuple(knobs_of(name, subject)),
    )


def _is_large(one: Finding) -> bool:
    return one.verdict != "not shown" and one.share_of_step >= SHARED_SHARE


def _of_one_timeline(subject: Subject, name: str, time_s: Interval) -> Interval:
    """Return the wire's time without an interval where every block has it from the one timeline."""
    if name != "transfer" or subject.timeline_wire_s is None or time_s.low is None:
        return time_s
    if time_s.high is None or time_s.high - time_s.low > _ROUNDING * abs(time_s.estimate):
        return time_s
    return replace(time_s, low=None, high=None, method="one launch's timeline")


def _with_own_error(subject: Subject, name: str, time_s: Interval) -> Interval:
    """Return the interval of a single launch from the scatter of its own blocks, if it has any."""
    if time_s.has_interval or len(subject.launches) != 1:
        return time_s
    error_s = None
    if name == "interference":
        error_s = subject.point.interference_error_s
    elif name == "instrument":
        told = subject.facts.telemetry_s(subject.launches[0])
        error_s = told[1] if told else None
    if error_s is None:
        return time_s
    low, high = time_s.estimate - _ERRORS * error_s, time_s.estimate + _ERRORS * error_s
    return replace(time_s, low=low, high=high, method="two standard errors inside one launch")
