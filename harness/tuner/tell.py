"""A tuning's outcome in words, the answer first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from harness.analysis.plain import plain
from harness.analysis.texts import NONE, grid_text, rate_text, ratio_text
from harness.config.tuning_presets import KEY
from harness.config.yaml_dialect import dump
from harness.runner.progress import duration
from harness.stats import LEVEL
from harness.tuner.outcome import Outcome
from harness.tuner.space import words
from harness.tuner.verdict import Gain
from harness.tuning import knob_text

_CURSE = (
    "the search's own measurements are no part of the gain: the best of many is too good to be true"
)
_SHOWN = 5  # trials


def as_data(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as plain data, for JSON."""
    found: dict[str, Any] = _models(plain(outcome))
    return {**found, "exit_code": outcome.exit_code}


def render(outcome: Outcome) -> str:
    """Return the outcome as text for a terminal."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    yield _answer(outcome)
    if outcome.interrupted or outcome.time_was_near:
        again = "Slurm starts the job again" if outcome.starts_again else "run it again"
        yield f"  interrupted after {_trials(outcome)}; {again} for the rest"
        return
    yield f"  {outcome.workload}, {outcome.world_size} ranks, {_place(outcome)}"
    yield from _arms(outcome)
    yield from (f"  {name}: {value}" for name, value in _knobs(outcome).items())
    yield from _autotune(outcome)
    yield f"  search: {_trials(outcome)}, ended by {outcome.ended_by}; {_CURSE}"
    yield from _best(outcome)
    yield f"  time: {duration(outcome.spent_s)} of {duration(outcome.budget_s)}"
    yield from (f"  note: {note}" for note in outcome.notes)
    if outcome.launches_failed:
        yield f"  {outcome.launches_failed} launches failed; their records say why"
    if outcome.preset is not None:
        use = dump({KEY: str(outcome.preset)}, flow=True)
        yield f"  preset: {outcome.preset} (horovod: {use})"


def _answer(outcome: Outcome) -> str:
    name, gain = outcome.name, outcome.over_default
    if outcome.interrupted or outcome.time_was_near:
        return f"{name}: no answer yet"
    if len(outcome.trials) == 1:
        return f"{name}: no gain shown: nothing was tried but the default"
    if not outcome.knobs:
        return f"{name}: no gain shown: nothing that was tried was faster than the default"
    if gain is None:
        return f"{name}: no gain shown: no block has both the winner and the default"
    return f"{name}: {_said(gain)}"


def _said(gain: Gain) -> str:
    blocks = f"{gain.blocks} block{'' if gain.blocks == 1 else 's'}"
    text = f"{ratio_text(gain.ratio)} of {_over(gain)}, {blocks}"
    if gain.says == "cannot tell":
        return f"no gain shown: one block has no interval ({text})"
    if gain.says == "not shown":
        return f"no gain shown: {text}, and the interval includes 1"
    return f"{'faster' if gain.says == 'gain' else 'slower'}: {text}"


def _over(gain: Gain) -> str:
    return "the default" if gain.over == "default" else "Horovod's autotuner"


def _place(outcome: Outcome) -> str:
    parts = [outcome.placement, f"batch {outcome.batch_size} a rank", f"backend {outcome.backend}"]
    return ", ".join([*parts, *([outcome.device] if outcome.device else [])])


def _arms(outcome: Outcome) -> Iterator[str]:
    if not outcome.arms:
        return
    ratios = {"default": outcome.over_default, "autotune": outcome.over_autotune}
    level = f"winner / it ({LEVEL:.0%})"
    rows = [("validated", "samples/s", level, "blocks")]
    for arm in outcome.arms:
        gain = ratios.get(arm.name)
        rate = rate_text(arm.rate) if arm.rate is not None else NONE
        ratio = ratio_text(gain.ratio) if gain is not None else NONE
        rows.append((arm.name, rate, ratio, str(arm.blocks)))
    yield ""
    yield from (f"  {line}" for line in grid_text(rows))
    yield ""


def _knobs(outcome: Outcome) -> dict[str, Any]:
    if not outcome.knobs:
        return {"knobs": "all at the default"}
    changed = [
        f"{name} {_value(value)} (default {_value(getattr(outcome.default, name))})"
        for name, value in outcome.knobs.items()
    ]
    return {"knobs": ", ".join(changed)}


def _value(value: Any) -> str:
    return "by launcher" if value is None else knob_text(value)


def _autotune(outcome: Outcome) -> Iterator[str]:
    if outcome.no_autotune:
        yield f"  Horovod's autotuner is not compared with: {outcome.no_autotune}"
        return
    if outcome.over_autotune is not None:
        yield f"  against Horovod's autotuner: {_said(outcome.over_autotune)}"
    if outcome.chosen is not None:
        chosen = outcome.chosen
        yield (
            f"  it chose (block 1) cycle_time_ms {chosen.cycle_time_ms:.3g}, fusion_threshold_mb "
            f"{chosen.fusion_threshold_mb:.3g}, cache {'on' if chosen.cache else 'off'}"
        )
    if outcome.searching_still:
        yield (
            f"  in {outcome.searching_still} launches it has not logged an end of its search: "
            "their windows may be part of it"
        )


def _best(outcome: Outcome) -> Iterator[str]:
    measured = [trial for trial in outcome.trials if trial.rate is not None]
    for trial in sorted(measured, key=lambda one: -(one.rate or 0.0))[:_SHOWN]:
        text = words(trial.tuning, outcome.default)
        origin = f"{trial.origin}: " if trial.origin.startswith("preset") else ""
        yield f"    {trial.rate:>12,.0f} samples/s  {origin}{text}"


def _trials(outcome: Outcome) -> str:
    count = len(outcome.trials)
    in_vain = sum(trial.rate is None for trial in outcome.trials)
    tail = f" ({in_vain} without a measurement)" if in_vain else ""
    return f"{count} trial{'' if count == 1 else 's'}{tail}"


def _models(value: Any) -> Any:
    """Return ``value`` with the config's models as plain data, too."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: _models(inner) for key, inner in value.items()}
    return [_models(inner) for inner in value] if isinstance(value, list) else value
