"""``hvdscale presets``: the sweeps and the tunings of Horovod that come with the package."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def presets(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """List the presets: sweeps for run and train, tunings for horovod.preset and --tuning."""
    return command_presets(as_json)


def command_presets(as_json: bool) -> int:
    """Print each preset with what it is for."""
    from harness.config.load import preset_names
    from harness.config.tuning_presets import (
        load_tuning_preset,
        preset_about,
        tuning_preset_names,
    )
    from harness.tuning import knob_text

    tunings: dict[str, dict[str, Any]] = {
        name: {"about": preset_about(name), "knobs": load_tuning_preset(name)}
        for name in tuning_preset_names()
    }
    if as_json:
        print(json.dumps({"sweeps": preset_names(), "tunings": tunings}, indent=1))
        return 0
    print(f"sweeps (hvdscale run NAME): {', '.join(preset_names())}")
    print("tunings (horovod: {preset: NAME}, --set horovod.preset=NAME):")
    for name, tuning in tunings.items():
        knobs = ", ".join(f"{key} {knob_text(value)}" for key, value in tuning["knobs"].items())
        print(f"  {name}: {knobs}\n    {tuning['about']}")
    return 0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(presets)
