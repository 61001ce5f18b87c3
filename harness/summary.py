"""What a person wants to see of one launch, as lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.record import CONSEQUENCE, COSTLY, RunRecord, Timeline, Window


def summary(record: RunRecord, folder: Path, timeline_file: Path) -> list[str]:
    """Return the lines of a record that is in the sweep's folder ``folder``."""
    lines = list(_heading(record))
    if record.window is not None:
        lines += _window(record.window)
        lines += _instruments(record)
        lines.append(
            f"  loss            {record.window.first_loss:.4g} to {record.window.last_loss:.4g}"
        )
    if record.timeline is not None:
        lines += _timeline(record.timeline)
        lines.append(f"  timeline        {timeline_file} (opens in Perfetto)")
    lines.append(f"  record          {folder / 'runs' / (record.run_id + '.json')}")
    return lines


def _heading(record: RunRecord) -> Iterator[str]:
    config, resolved = record.config, record.resolved
    named: str = config.engine
    if record.backend is not None and record.backend.proven:
        named += f", backend {record.backend.proven}"
    if record.backend is not None and record.backend.controller:
        named += f", {record.backend.controller} controller"
    placement = "+".join(map(str, resolved.placement))
    yield (
        f"{config.workload.name} ({config.workload.framework}), {named}, "
        f"N = {resolved.world_size} ({placement} on {', '.join(resolved.hosts)})"
    )
    yield (
        f"  batch size {config.rank_batch} a rank, {config.global_batch} in all ({config.scaling})"
    )


def _window(window: Window) -> Iterator[str]:
    yield (
        f"  throughput      {window.throughput_samples_per_s:,.0f} samples/s "
        f"({window.steps} steps in {window.wall_s:.2f} s, after {window.warmup_steps} of warm-up)"
    )
    yield (
        f"  step            {_ms(window.wall_s / window.steps)} mean, "
        f"{_ms(window.step_median_s)} median"
    )
    steady = window.steadiness
    if steady is not None and steady.drifting and steady.change is not None:
        yield f"  drifting        a step changed by {steady.change:+.1%} over the window"
    if steady is not None and steady.outliers:
        share = f"{steady.outlier_time_share:.1%}"
        yield f"  outliers        {steady.outliers} steps, {share} of the time"


def _instruments(record: RunRecord) -> Iterator[str]:
    phases, isolated, ablation = record.phases, record.allreduce, record.ablation
    if phases is not None and phases.exposed_sync_s is not None:
        yield (
            f"  exposed sync    {_ms(phases.exposed_sync_s)} a step "
            f"(transfer {_ms(phases.transfer_s)}, wait {_ms(phases.wait_s)})"
        )
    if ablation is not None:
        longer = "shorter" if ablation.difference_s >= 0 else "longer"
        yield (
            f"  without sync    a step is {_ms(abs(ablation.difference_s))} {longer} "
            f"(±{_ms(ablation.error_s)}); interference {_ms(ablation.interference_s)}"
        )
    if record.clocks is not None:
        said = "" if record.clocks.resolved else f", unresolved: ±{_ms(record.clocks.error_s)}"
        yield (
            f"  wait by clocks  {_ms(record.clocks.wait_s)} "
            f"(skew {_ms(record.clocks.skew_s)}{said})"
        )
    if isolated is not None:
        yield (
            f"  all-reduce      {_ms(isolated.latency_p50_s)} for {isolated.bytes:,} bytes alone "
            f"({isolated.busbw_bytes_per_s / 1e9:.3f} GB/s busbw)"
        )
    if record.feed is not None:
        cold_s = record.feed.cold_s
        cold = f", {_ms(cold_s)} from a cold file cache" if cold_s is not None else ""
        yield f"  batch alone     {_ms(record.feed.warm_s)} to bring to the device{cold}"
    for name, overhead in record.overheads.items():
        if overhead > COSTLY:
            error = record.overhead_errors.get(name)
            spread = "" if error is None else f" ±{error:.1%}"
            yield f"  {name:<15} cost {overhead:.1%}{spread}: {CONSEQUENCE[name]}"


def _timeline(timeline: Timeline) -> Iterator[str]:
    for name, seconds in (
        ("negotiation", timeline.negotiation_s),
        ("queue", timeline.queue_s),
        ("copy in", timeline.copy_in_s),
        ("all-reduce", timeline.allreduce_s),
        ("copy out", timeline.copy_out_s),
    ):
        if seconds is not None:
            yield f"  {name:<15} {_ms(seconds)} a step"
    yield (
        f"  tensors         {timeline.tensors:g} a step in {timeline.allreduces:g} all-reduces, "
        f"of {timeline.tensors_fused:.1f} each"
    )


def _ms(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.2f} ms"
