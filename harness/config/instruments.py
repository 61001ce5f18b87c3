"""Which instruments an engine offers, and the launch that a timeline has to itself."""

from __future__ import annotations

from harness.config.models import Instrument, Measure, RunConfig

#: What each engine can be asked for. ``none`` reduces nothing, and only Horovod keeps a timeline.
OFFERED: dict[str, tuple[Instrument, ...]] = {
    "none": ("phases", "telemetry", "data"),
    "ddp": ("phases", "ablation", "clocks", "telemetry", "data"),
    "horovod": ("phases", "ablation", "clocks", "telemetry", "data", "timeline"),
}
_STEPS_DEFAULT: int = Measure.model_fields["timeline_steps"].default


def lacking(engine: str, measure: Measure) -> tuple[str, ...]:
    """Return the instruments that are asked for and that ``engine`` does not have."""
    return tuple(name for name in measure.instruments if name not in OFFERED[engine])


def bench_measure(engine: str, measure: Measure) -> Measure:
    """Return ``measure`` as a launch with a window has it: what the engine offers, no timeline.

    The one object where nothing changes, because points share their parts.
    """
    kept = tuple(n for n in measure.instruments if n in OFFERED[engine] and n != "timeline")
    if kept == measure.instruments and measure.timeline_steps == _STEPS_DEFAULT:
        return measure
    return measure.model_copy(update={"instruments": kept, "timeline_steps": _STEPS_DEFAULT})


def timeline_config(config: RunConfig, wanted: Measure) -> RunConfig | None:
    """Return the launch that keeps Horovod's timeline of a point; None where there is none.

    The window's length and warm-up have no part in it, so their values are not either. At size 1
    Horovod reduces nothing, and its timeline is empty.
    """
    if config.engine != "horovod" or config.world_size < 2:
        return None
    if "timeline" not in wanted.instruments:
        return None
    measure = Measure(instruments=("timeline",), timeline_steps=wanted.timeline_steps)
    return config.model_copy(update={"measure": measure})


def is_timeline(config: RunConfig) -> bool:
    """Say whether a launch is there for its timeline alone."""
    return config.measure.instruments == ("timeline",)
