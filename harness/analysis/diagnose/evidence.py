"""The numbers behind each finding, in words: what was measured, and what it is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean

from harness.analysis.diagnose.subject import Subject
from harness.analysis.diagnose.who import Who
from harness.analysis.points import Point
from harness.analysis.texts import digits_text, seconds_text, time_text
from harness.stats import Interval

_PHASE_WORDS = {
    "data_s": "data",
    "forward_s": "forward",
    "backward_s": "backward",
    "update_s": "update",
}


def evidence_of(limiter: str, subject: Subject) -> Iterator[str]:
    """Yield the evidence of a finding, the most telling first."""
    return _EVIDENCE[limiter](subject)


def percent_text(share: float) -> str:
    """Return a share as a whole percentage, with a true minus."""
    return f"{100 * share:.0f} %".replace("-", "−")


def _data(subject: Subject) -> Iterator[str]:
    yield f"data {_beside_base(subject, 'data_s')} (data: {subject.config['data']})"
    warm, cold = subject.point.feed_warm_s, subject.point.feed_cold_s
    if warm is not None:
        from_cold = f", {time_text(cold)} from a cold file cache" if cold is not None else ""
        yield f"a batch alone: {time_text(warm)}{from_cold}"


def _update(subject: Subject) -> Iterator[str]:
    yield f"update {_beside_base(subject, 'update_s')}"


def _launch_bound(subject: Subject) -> Iterator[str]:
    point, other = subject.point, subject.other_batch
    mine = _compute(point)
    if other is not None and mine is not None and (theirs := _compute(other)) is not None:
        yield (
            f"forward + backward {seconds_text(mine)} with batch {point.rank_batch} a rank, "
            f"{seconds_text(theirs)} with {other.rank_batch}: "
            f"{digits_text(theirs / mine, 2)} times the time for "
            f"{digits_text(other.rank_batch / point.rank_batch, 2)} times the samples"
        )
    busy, active = subject.mean("gpu_utilisation"), subject.mean("gpu_sm_activity")
    if busy is not None:
        yield f"a kernel ran on the GPU {percent_text(busy)} of the time"
    if active is not None:
        yield f"multiprocessors were busy {percent_text(active)} of the time"


def _negotiation(subject: Subject) -> Iterator[str]:
    yield from _reducing(subject)
    found = subject.point.timeline
    if found is not None:
        words = {"negotiation": "timeline_negotiation_s", "queue": "timeline_queue_s"}
        times = [f"{word} {seconds_text(found[k])}" for word, k in words.items() if k in found]
        count = found.get("timeline_allreduces")
        pieces = [f"{digits_text(count, 2)} all-reduces a step"] if count is not None else []
        yield f"timeline: {', '.join([*times, *pieces])}"
    yield f"cycle {subject.config['horovod.cycle_time_ms']} ms"


def _transfer(subject: Subject) -> Iterator[str]:
    yield from _reducing(subject)
    size, bandwidth = subject.mean("allreduce_bytes"), subject.mean("busbw_bytes_per_s")
    if size is not None and bandwidth is not None:
        yield f"{_bytes(size)} at {_bytes(bandwidth)}/s bus bandwidth (isolated)"
    yield from _bandwidths(subject)


def _bandwidths(subject: Subject) -> Iterator[str]:
    """Yield the isolated all-reduce at other device counts, and with other backends."""
    for point in subject.curve.points:
        if point.world_size != subject.point.world_size and point.allreduce_p50_s is not None:
            yield f"isolated at N={point.world_size}: {time_text(point.allreduce_p50_s)}"
    for curve, point in subject.neighbours.other_backends(subject.curve, subject.point):
        if point.allreduce_p50_s is not None:
            told = time_text(point.allreduce_p50_s)
            yield f"isolated with {curve.backend or curve.engine} at the same place: {told}"


def _reducing(subject: Subject) -> Iterator[str]:
    point = subject.point
    if point.transfer_s is None:
        yield f"a step is {time_text(point.ablation_difference_s)} shorter without its all-reduce"
        return
    exposed = time_text(point.exposed_sync_s)
    yield f"transfer {time_text(point.transfer_s)} of exposed sync {exposed}"
    if point.allreduce_p50_s is not None:
        yield f"isolated all-reduce of the same bytes {time_text(point.allreduce_p50_s)}"
    if subject.horovod:
        for other_ms, other in subject.neighbours.other_cycles(subject.curve, point):
            if other.transfer_s is not None and other.allreduce_p50_s is not None:
                told = f"transfer {time_text(other.transfer_s)}"
                isolated = time_text(other.allreduce_p50_s)
                yield f"with a cycle of {other_ms:g} ms: {told}, isolated {isolated}"
    if subject.timeline_wire_s is not None:
        wire = seconds_text(subject.timeline_wire_s)
        yield f"timeline, launches of its own: all-reduce + copies {wire}"


def _sync(subject: Subject) -> Iterator[str]:
    yield from _reducing(subject)
    if subject.horovod:
        cycle = subject.config["horovod.cycle_time_ms"]
        yield f"of the isolated one up to two cycles of {cycle} ms may be Horovod's loop"


def _stragglers(subject: Subject) -> Iterator[str]:
    point = subject.point
    yield f"wait {time_text(point.wait_s)}, mean over ranks"
    if subject.who is not None:
        yield from _who(subject.who, tuple(map(int, point.placement.split("+"))))
    if point.clock_wait_s is not None:
        skew = f"skew {time_text(point.skew_s)}, wait {time_text(point.clock_wait_s)}"
        yield f"arrivals on one clock: {skew}"


def _who(found: Who, placement: tuple[int, ...]) -> Iterator[str]:
    """Yield which rank comes last, if it is one, and which of its phases is long."""
    share, name = percent_text(found.share), f"rank {found.rank}{_node(found.rank, placement)}"
    if not found.named:
        chance = percent_text(1 / found.ranks)
        yield f"no one rank: {name} is last in {share} of {found.steps} steps, by chance {chance}"
        return
    yield f"{name} is last in {share} of {found.steps} marked steps"
    if found.phase is not None and found.own_s is not None and found.others_s is not None:
        own, others = seconds_text(found.own_s), seconds_text(found.others_s)
        yield f"its {_PHASE_WORDS[found.phase]} takes {own}, the others' {others}"


def _node(rank: int, placement: tuple[int, ...]) -> str:
    if len(placement) < 2:
        return ""
    before = 0
    for node, devices in enumerate(placement):
        before += devices
        if rank < before:
            return f" (node {node})"
    return ""


def _interference(subject: Subject) -> Iterator[str]:
    point = subject.point
    difference, exposed = time_text(point.ablation_difference_s), time_text(point.exposed_sync_s)
    yield f"a step is {difference} shorter without its all-reduce, of which {exposed} exposed sync"


def _contention(subject: Subject) -> Iterator[str]:
    crowding = subject.crowding
    if crowding:
        yield crowding
    point, base = subject.point, subject.base
    mine, theirs = _compute(point), _compute(base) if base else None
    if mine is not None and theirs is not None:
        told = seconds_text(subject.part * theirs)
        yield f"forward + backward {seconds_text(mine)}, the ideal's {told}"
    shared = subject.facts.shared_cores(point.launches[0], subject.ranks_on_node)
    if shared:
        yield shared
    busy = subject.mean("rank_cpu_cores")
    if busy is not None:
        yield f"a rank keeps {busy:.2f} cores busy"
    reasons = {subject.facts.row(one)["gpu_throttle_reasons"] for one in subject.launches}
    for reason in sorted(one for one in reasons if one):
        yield f"the GPU's clock was held down: {reason}"


def _instrument(subject: Subject) -> Iterator[str]:
    costs = subject.point.overheads.get("telemetry", ())
    if costs:
        yield f"a step with the sampler takes {100 * fmean(costs):+.1f} %".replace("-", "−")
    yield "its time is in the other parts, too"


def _unmarked(subject: Subject) -> Iterator[str]:
    point = subject.point
    if point.phase_sum_s is not None:
        yield f"step {time_text(point.step_s)}, sum of the phases {time_text(point.phase_sum_s)}"


def _beside_base(subject: Subject, phase: str) -> str:
    mine: Interval | None = getattr(subject.point, phase)
    theirs: Interval | None = getattr(subject.base, phase) if subject.base else None
    if theirs is None:
        return time_text(mine)
    return f"{time_text(mine)}, the ideal's {time_text(theirs.scaled(subject.part))}"


def _compute(point: Point | None) -> float | None:
    if point is None or point.forward_s is None or point.backward_s is None:
        return None
    return point.forward_s.estimate + point.backward_s.estimate


def _bytes(size: float) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{digits_text(size / limit)} {unit}"
    return f"{size:.0f} bytes"


_EVIDENCE: dict[str, Callable[[Subject], Iterator[str]]] = {
    "data": _data,
    "launch-bound": _launch_bound,
    "negotiation": _negotiation,
    "transfer": _transfer,
    "sync": _sync,
    "stragglers": _stragglers,
    "update": _update,
    "interference": _interference,
    "oversubscription": _contention,
    "contention": _contention,
    "compute": _contention,
    "instrument": _instrument,
    "unmarked": _unmarked,
}
