"""What the records of a point cannot tell, and which instrument or launch would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis.diagnose.subject import Subject
from harness.analysis.diagnose.types import Finding, Missing
from harness.stats import Interval

#: A question about less than this part of the lost time (of the step, where no loss is known) is
#: not worth another launch.
_WORTH = 0.2
_PHASES = ("data_s", "forward_s", "backward_s", "exposed_sync_s", "update_s")


def missing(
    subject: Subject, findings: Sequence[Finding], lost_s: Interval | None
) -> Iterator[Missing]:
    """Yield the open questions, the widest first."""
    large = {one.limiter for one in findings if _is_large(one)}
    yield from _of_the_sweep(subject)
    yield from _of_phases(subject)
    if "sync" in large and subject.horovod:
        yield Missing(
            "whether the all-reduce is held up by negotiation or by the wire",
            "measure.instruments: [phases, timeline], or a shorter horovod.cycle_time_ms beside it",
        )
    if {"contention", "compute"} & large and subject.point.world_size > 1:
        if subject.point.interference_s is None:
            yield Missing(
                "whether communication or what ranks share slows compute down",
                "measure.instruments: [phases, ablation]",
            )
        if subject.curve.scaling == "strong" and subject.other_batch is None:
            yield Missing(
                "how much of it is compute that does not shrink with the batch",
                "a second global_batch_size",
            )
    elif subject.other_batch is None and _compute_is_most(subject):
        key = "batch_size" if subject.curve.scaling == "weak" else "global_batch_size"
        yield Missing("whether compute is launch-bound", f"a second {key} (a list is an axis)")
    if "data" in large and subject.point.feed_warm_s is None:
        yield Missing(
            "whether a batch is slow by itself, or because of what runs beside it",
            "measure.instruments: [phases, data]",
        )
    if "stragglers" in large and subject.facts.unread:
        unread = [one.run_id for one in subject.launches if one.run_id in subject.facts.unread]
        if unread:
            yield Missing("which rank is late", f"the raw steps of {', '.join(unread)}")


def _of_the_sweep(subject: Subject) -> Iterator[Missing]:
    curve = subject.curve
    if curve.base is None and curve.note:
        yield Missing(
            f"what is lost to scaling ({curve.note})",
            "the sweep with its base, e.g. base: none@1",
        )
    if subject.point.apart and curve.apart:
        units = curve.apart.removeprefix("other ")
        yield Missing(
            f"what of the loss is a difference between {units}",
            f"the base in the same {units}, as it is without --shared-base",
        )
    if not subject.point.step_s.has_interval:
        yield Missing("whether any of this is more than chance", "measure.blocks: 3 or more")


def _of_phases(subject: Subject) -> Iterator[Missing]:
    point = subject.point
    absent = [name for name in _PHASES if getattr(point, name) is None]
    if len(absent) == len(_PHASES):
        yield Missing("where a step's time goes", "measure.instruments: [phases]")
        return
    if point.world_size == 1 and "exposed_sync_s" in absent:
        absent.remove("exposed_sync_s")
    if absent:
        words = ", ".join(name.removesuffix("_s").replace("_", " ") for name in absent)
        yield Missing(
            f"{words}: this engine cannot mark them with this execution", _could_mark(subject)
        )


def _could_mark(subject: Subject) -> str:
    if subject.curve.framework == "tensorflow":
        return "execution.compile: false, deterministic: false, or framework torch"
    if subject.config["execution.graph"] == "True":
        return "execution.graph: false, or engine horovod"
    return "another engine"


def _compute_is_most(subject: Subject) -> bool:
    forward, backward = subject.point.forward_s, subject.point.backward_s
    if forward is None or backward is None:
        return False
    return forward.estimate + backward.estimate > subject.point.step_s.estimate / 2


def _is_large(one: Finding) -> bool:
    share = one.share_of_step if one.share_of_lost is None else one.share_of_lost
    return one.time_s.estimate > 0 and share >= _WORTH
