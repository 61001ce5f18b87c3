"""The preset that a tuning writes: its knobs, and what is known of them."""

from __future__ import annotations

import os
from pathlib import Path

from harness.config.models import HorovodTuning
from harness.config.tuning_presets import ABOUT
from harness.config.yaml_dialect import dump
from harness.errors import ConfigError
from harness.store import write_atomic
from harness.tuner.outcome import Outcome
from harness.tuner.space import turned
from harness.tuner.verdict import Gain


def preset_text(outcome: Outcome) -> str:
    """Return the file of the winner, usable as ``horovod: {preset: FILE}``; pure."""
    assert outcome.winner is not None
    return dump({ABOUT: about(outcome), **turned(outcome.winner, HorovodTuning())})


def about(outcome: Outcome) -> str:
    """Return where the preset comes from and what it gains, as one line."""
    where = (
        f"{outcome.workload}, {outcome.world_size} ranks ({outcome.placement}), batch "
        f"{outcome.batch_size} a rank, backend {outcome.backend}"
    )
    device = f", {outcome.device}" if outcome.device else ""
    parts = [f"hvdscale tune {outcome.date}: {where}{device}.", _default_text(outcome)]
    if outcome.over_autotune is not None:
        parts.append(f"{_gain_text(outcome.over_autotune, 'Horovod autotuning itself')}.")
    return " ".join(parts)


def _default_text(outcome: Outcome) -> str:
    if not outcome.knobs:
        return "No gain shown: nothing that was tried was faster than the default, which this is."
    if outcome.over_default is None:
        return "No gain shown: no block of the validation has both the default and this."
    return f"{_gain_text(outcome.over_default, 'the default')}."


def _gain_text(gain: Gain, over: str) -> str:
    ratio = gain.ratio
    found = f"{ratio.estimate:.3f} of its throughput"
    if ratio.low is None or ratio.high is None:
        return f"No gain shown over {over}: one block has no interval ({found})"
    ends = f"{ratio.level:.0%} interval {ratio.low:.3f} to {ratio.high:.3f}, {gain.blocks} blocks"
    said = {
        "gain": f"Gain over {over}",
        "loss": f"Slower than {over}",
        "not shown": f"No gain shown over {over}",
    }[gain.says]
    return f"{said}: {found} ({ends})"


def check_place(path: Path) -> None:
    """Raise ConfigError where no preset can be written; asked before anything is launched."""
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"--out {path}: is a folder; name a file")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--out {path}: {folder} is no folder that can be written")


def write_preset(path: Path, text: str) -> None:
    """Write the file, whole or not at all; ConfigError where it cannot be written."""
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path}: the preset cannot be written: {error.strerror}; choose "
            "another file with --out"
        ) from error
