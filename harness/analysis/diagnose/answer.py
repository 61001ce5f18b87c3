"""``diagnose``: the worst points of a sweep, and what limits each."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from harness.analysis.apart import apart_sentence
from harness.analysis.diagnose.facts import Facts
from harness.analysis.diagnose.findings import findings, over_blocks
from harness.analysis.diagnose.missing import missing
from harness.analysis.diagnose.neighbours import Neighbours
from harness.analysis.diagnose.subject import Subject
from harness.analysis.diagnose.types import Diagnosis, Ranking
from harness.analysis.diagnose.worst import ranked
from harness.analysis.flags import percent
from harness.analysis.results import Results
from harness.errors import ConfigError
from harness.record import COSTLY


def diagnose(results: Results, worst: int = 3) -> tuple[Diagnosis, ...]:
    """Return what limits the worst points, the worst one first.

    The rule by which they are worst is in their ``ranking``, how limiters are told apart in
    ``limiters``. Raises AnalysisError where no launch has a window, ConfigError for ``worst`` < 1.
    """
    if worst < 1:
        raise ConfigError(f"worst {worst}: at least one point is diagnosed")
    curves = results.require_curves("nothing to diagnose")
    facts, neighbours = Facts(results), Neighbours(curves)
    places, ranking = ranked(curves, neighbours)
    return tuple(
        _diagnosis(rank, Subject.of(curve, point, facts, neighbours), ranking)
        for rank, (curve, point) in enumerate(places[:worst], start=1)
    )


def _diagnosis(rank: int, subject: Subject, ranking: Ranking) -> Diagnosis:
    curve, point = subject.curve, subject.point
    accounts = [(launch, subject.account(launch)) for launch in subject.launches]
    lost = [(launch.block, a.lost_s) for launch, a in accounts if a.lost_s is not None]
    bases = subject.accounts_of_bases()
    lost_of_bases = [(base.block, a.lost_s) for base, a in bases if a.lost_s is not None]
    lost_s = over_blocks(subject, lost, lost_of_bases)
    found = findings(subject, accounts, bases, lost_s)
    return Diagnosis(
        rank=rank,
        label=curve.label,
        workload=curve.workload,
        scaling=curve.scaling,
        device=curve.device,
        world_size=point.world_size,
        placement=point.placement,
        batch=curve.batch_text,
        base=str(curve.base) if subject.base is not None else None,
        no_base=None if subject.base is not None else curve.note or "it is the base itself",
        efficiency=point.efficiency if subject.base is not None else None,
        step_s=point.step_s,
        lost_s=lost_s,
        findings=found,
        missing=tuple(missing(subject, found, lost_s)),
        cautions=tuple(_cautions(subject)),
        ranking=ranking,
    )


def _cautions(subject: Subject) -> Iterator[str]:
    """Yield what makes the account less trustworthy."""
    point = subject.point
    cost = point.overheads.get("phases", ())
    if cost and abs(fmean(cost)) > COSTLY:
        pace = percent(fmean(cost))
        yield f"marked steps are {pace} against the window's: the phases are not quite the window's"
    if point.steadiness is not None and point.steadiness.drifting:
        launches = _launches(len(point.launches))
        yield f"the window drifts in {point.steadiness.drifting} of {launches}"
    if point.skew_unresolved:
        yield f"the skew is below the clocks' error in {_launches(point.skew_unresolved)}"
    if subject.crowding:
        yield f"{subject.crowding}: waiting for a core is in every part"
    if subject.base is not None and point.unpaired:
        launches = f"{point.unpaired} of {_launches(len(point.launches))}"
        verb, whose = ("has", "its") if point.unpaired == 1 else ("have", "their")
        yield f"{launches} {verb} no base in {whose} block"
    if point.apart and subject.curve.apart:
        yield apart_sentence(subject.curve.apart)
    if subject.curve.unlike:
        yield f"unlike launches mixed: {subject.curve.unlike}"


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"
