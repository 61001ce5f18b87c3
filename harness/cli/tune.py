"""``hvdscale tune``: Horovod's knobs searched for a workload, the winner validated."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

RESULTS = Path("results")
_MAX_SEED = 2**32 - 1  # the optimiser's generator takes no larger one


def tune(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD")],
    framework: Annotated[
        str | None, typer.Option("--framework", help="torch or tensorflow.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="horovod: it has the knobs.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="nccl, mpi, mpi-host or gloo.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("-n", min=1, metavar="N", help="Ranks (default: all devices).")
    ] = None,
    placement: Annotated[
        str | None, typer.Option("--placement", metavar="PLACE", help="Instead of -n: 2x4, 8+2.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Of a rank (default: the workload's own).")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key of the config; a horovod key is not searched then. Repeatable.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Of search and validation: 90s, 1h30m.")
    ] = "20m",
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, metavar="K", help="At most (default: by time).")
    ] = None,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="Of the validation.")] = 5,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=_MAX_SEED, metavar="S", help="Of the search.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The preset (default: tuned.yaml in results)."),
    ] = None,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Where results go, a folder a sweep.")
    ] = RESULTS,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the results (default: tune-WORKLOAD).")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", min=1, metavar="N", help="Ranks a host takes (default: its devices)."
        ),
    ] = None,
    autotune: Annotated[
        bool, typer.Option("--autotune/--no-autotune", help="Compare with Horovod's autotuner.")
    ] = True,
    allow_lossy: Annotated[
        bool, typer.Option("--allow-lossy", help="Search compression of gradients, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Search Horovod's knobs for a workload; validate the winner, and write it as a preset."""
    flags = {
        "framework": framework,
        "engine": engine,
        "backend": backend,
        "placement": _place(ranks, placement),
        "batch_size": batch_size,
        "name": name,
    }
    settings = {
        "trials": trials,
        "blocks": blocks,
        "seed": seed,
        "autotune": autotune,
        "allow_lossy": allow_lossy,
    }
    return command_tune(
        workload, flags, overrides or [], budget, settings, results, out, slots, as_json=as_json
    )


def command_tune(
    workload: str,
    flags: Mapping[str, Any],
    overrides: Sequence[str],
    budget: str,
    settings: Mapping[str, Any],
    results: Path,
    out: Path | None,
    slots: int | None,
    *,
    as_json: bool,
) -> int:
    """Tune, and print what came of it; return 0, 1 where a launch failed, 130 if interrupted."""
    from harness.analysis.plain import json_text
    from harness.detect import detect_machine
    from harness.runner.cleaning import cleaned
    from harness.runner.progress import reporter
    from harness.tuner.budget import parse_budget
    from harness.tuner.request import Request, request_data
    from harness.tuner.run import tune as run_tune
    from harness.tuner.tell import as_data, render

    budget_s = parse_budget(budget)
    machine = detect_machine(slots)
    data = request_data(workload, flags, overrides, machine)
    request = Request(data=data, budget_s=budget_s, **settings)
    with reporter() as report, cleaned(machine, report):
        outcome = run_tune(request, machine, results, out=out, report=report)
    print(json_text(as_data(outcome)) if as_json else render(outcome))
    sys.stdout.flush()
    return outcome.exit_code


def _place(ranks: int | None, placement: str | None) -> str | None:
    from harness.errors import ConfigError

    if ranks is not None and placement is not None:
        raise ConfigError("-n and --placement both say where the ranks go; give one")
    return str(ranks) if ranks is not None else placement


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tune)
