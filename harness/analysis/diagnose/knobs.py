"""What to turn against each limiter, as far as the config leaves it to be turned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.analysis.diagnose.subject import Subject
from harness.analysis.diagnose.types import Knob

#: Below this an all-reduce is a matter of latency, which half the bytes do not halve.
_LARGE_BYTES = 1e6


def knobs_of(limiter: str, subject: Subject) -> Iterator[Knob]:
    """Yield the knobs of a limiter, the one most likely to help first."""
    return _KNOBS[limiter](subject)


def _data(subject: Subject) -> Iterator[Knob]:
    place = subject.config["data"]
    if place == "disk":
        workers, ahead = subject.config["loader.workers"], subject.config["loader.prefetch"]
        yield Knob("loader.workers", f"more than {workers}, as far as cores are free")
        yield Knob("loader.prefetch", f"more than {ahead}, where batches come in bursts")
    if place != "device":
        yield Knob("data", "device, where the set fits into its memory")
    else:
        yield Knob("", "make gathering a batch cheaper: decode once, before training")


def _launch_bound(subject: Subject) -> Iterator[Knob]:
    key = "batch_size" if subject.curve.scaling == "weak" else "global_batch_size"
    yield Knob(key, "larger, as far as accuracy allows (see hvdscale train)")
    if subject.config["execution.compile"] == "False":
        yield Knob("execution.compile", "true: fewer, larger kernels")
    if subject.curve.device == "cuda" and _may_be_graph(subject):
        yield Knob("execution.graph", "true: a step is two launches and one all-reduce")
    if subject.curve.device == "cpu":
        yield Knob("", "profile one step on one rank: the time is its overhead, not its samples")


_PIECES = 2  # fewer have nothing to overlap with


def _has_hooks(subject: Subject) -> bool:
    """Say whether gradients are reduced one by one; a captured step has them in a buffer."""
    return subject.config["execution.graph"] == "False"


def _may_be_graph(subject: Subject) -> bool:
    return subject.curve.framework == "torch" and _has_hooks(subject)


def _negotiation(subject: Subject) -> Iterator[Knob]:
    config = subject.config
    cycle = config["horovod.cycle_time_ms"]
    if float(cycle) > 0:
        yield Knob("horovod.cycle_time_ms", f"shorter than {cycle}")
    if _has_hooks(subject) and config["horovod.groups"] == "0":
        yield Knob("horovod.groups", "1 to 4: tensors are agreed on and reduced together")
    if float(config["horovod.fusion_threshold_mb"]) == 0:
        yield Knob("horovod.fusion_threshold_mb", "above 0: small tensors share an all-reduce")
    if config["horovod.cache_capacity"] == "0":
        yield Knob("horovod.cache_capacity", "above 0: known tensors are not negotiated again")
    if subject.curve.backend == "gloo":
        yield Knob("backend", "mpi: its controller's negotiation grows more slowly with N")
    elif config.get("horovod.controller") == "gloo":
        yield Knob("horovod.controller", "mpi: its negotiation grows more slowly with N")
    yield Knob("engine", "ddp, which has no controller, for comparison")


def _transfer(subject: Subject) -> Iterator[Knob]:
    config = subject.config
    on_gpu = subject.curve.device == "cuda"
    yield from _backend(subject, on_gpu)
    if subject.point.nodes > 1:
        yield Knob("placement", "fewer nodes, filled up; and which interface is used")
        if subject.curve.backend == "nccl" and config["horovod.hierarchical_allreduce"] == "False":
            yield Knob("horovod.hierarchical_allreduce", "true")
    large = (subject.mean("allreduce_bytes") or 0.0) >= _LARGE_BYTES
    if subject.horovod and not _has_hooks(subject) and int(config["horovod.groups"]) < _PIECES:
        yield Knob("horovod.groups", "2 to 4: pieces of the gradient are reduced during backward")
    if subject.horovod and large and config["horovod.compression"] == "none":
        yield Knob("horovod.compression", "fp16: half the bytes")
    yield Knob("execution.accumulate", "above 1: one all-reduce for several batches")
    key = "batch_size" if subject.curve.scaling == "weak" else "global_batch_size"
    yield Knob(key, "larger: fewer all-reduces an epoch")


def _backend(subject: Subject, on_gpu: bool) -> Iterator[Knob]:
    """Yield a backend to try, or, where it was measured at this place, how to compare the two."""
    if on_gpu:
        others = {"gloo": "nccl", "mpi-host": "nccl", "mpi": "nccl"}
    else:
        others = {"gloo": "mpi"} if subject.horovod else {}  # DDP knows no MPI
    mine = subject.curve.backend or ""
    other = others.get(mine)
    if other is None:
        return
    beside = subject.neighbours.other_backends(subject.curve, subject.point)
    if any(curve.backend == other for curve, _ in beside):
        compared = f"hvdscale compare with backend={mine} backend={other}"
        yield Knob("backend", f"{other}, if it is faster: {compared} tells")
    else:
        yield Knob("backend", f"{other}: measure it beside this one")


def _sync(subject: Subject) -> Iterator[Knob]:
    if subject.horovod and float(subject.config["horovod.cycle_time_ms"]) > 0:
        shorter = f"shorter than {subject.config['horovod.cycle_time_ms']}"
        yield Knob("horovod.cycle_time_ms", f"{shorter}: if transfer follows, it is negotiation")
    yield Knob("measure.instruments", "timeline, in which negotiation and transfer are apart")


def _stragglers(subject: Subject) -> Iterator[Knob]:
    found = subject.who
    if found is not None and found.named:
        yield Knob("", f"look at rank {found.rank}: its node, its cores, what else runs there")
    else:
        yield Knob(
            "", "keep other work off the nodes, bind ranks to cores, leave one to the system"
        )
    if subject.config["cores_per_rank"] == "share":
        yield Knob("cores_per_rank", "fixed, so that cores do not change with N")
    if subject.point.nodes > 1:
        yield Knob("placement", "leave the slow node out, or give all nodes as many ranks")
    yield Knob("", "samples of unequal cost: sort or pad them, so that ranks get equal work")


def _update(subject: Subject) -> Iterator[Knob]:
    config = subject.config
    if _may_be_graph(subject) and config["execution.fused_optimiser"] == "False":
        yield Knob("execution.fused_optimiser", "true")  # a captured update is fused or compiled
    yield Knob("execution.accumulate", "above 1: one update for several batches")
    yield Knob("", "a cheaper optimiser, where accuracy allows")


def _interference(subject: Subject) -> Iterator[Knob]:
    config = subject.config
    if subject.horovod:
        if _has_hooks(subject) and config["horovod.groups"] == "0":
            yield Knob("horovod.groups", "1: all-reduces start when backward is through")
        if subject.curve.backend == "nccl" and config["horovod.async_completion"] == "False":
            yield Knob("horovod.async_completion", "true: the host does not wait for each one")
    yield Knob("cores_per_rank", "one more, so that communication has a core of its own")


def _oversubscription(subject: Subject) -> Iterator[Knob]:
    yield Knob("placement", "no more ranks on a node than it has cores")
    yield Knob("cores_per_rank", "fewer, or share")


def _contention(subject: Subject) -> Iterator[Knob]:
    if subject.point.world_size > 1:
        if subject.point.interference_s is None:
            tells = "it tells whether communication is the cause"
            yield Knob("measure.instruments", f"ablation: {tells}")
        yield Knob("placement", "fewer ranks a node (spread), to see whether they share memory")
    if subject.curve.scaling == "strong":
        yield Knob("global_batch_size", "larger: parts of a batch may be too small to be efficient")
    yield Knob("cores_per_rank", "equal for base and point (fixed), one hardware thread a core")


def _compute(subject: Subject) -> Iterator[Knob]:
    yield Knob("global_batch_size", "larger; two of them tell the part that does not shrink")
    yield from (one for one in _contention(subject) if one.key != "global_batch_size")


def _instrument(subject: Subject) -> Iterator[Knob]:
    yield Knob("measure.instruments", "without telemetry, or leave a core to its sampler")


def _unmarked(subject: Subject) -> Iterator[Knob]:
    yield Knob("measure.window_s", "longer, so that window and marked steps are of one pace")


_KNOBS: dict[str, Callable[[Subject], Iterator[Knob]]] = {
    "data": _data,
    "launch-bound": _launch_bound,
    "negotiation": _negotiation,
    "transfer": _transfer,
    "sync": _sync,
    "stragglers": _stragglers,
    "update": _update,
    "interference": _interference,
    "oversubscription": _oversubscription,
    "contention": _contention,
    "compute": _compute,
    "instrument": _instrument,
    "unmarked": _unmarked,
}
