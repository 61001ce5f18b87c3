"""The subcommands. Thin, and everything heavy is imported by the one that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.answers import register as register_answers
from harness.cli.cluster import register as register_cluster
from harness.cli.presets import register as register_presets
from harness.cli.tune import register as register_tune

app = typer.Typer(
    name="hvdscale",
    help="How a training job scales under Horovod, and what gradient synchronisation costs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich would double the time it takes
    pretty_exceptions_enable=False,
)

Sweep = Annotated[str, typer.Argument(metavar="SWEEP", help="A YAML file, or a preset's name.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config; repeatable."),
]
Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Where results go, a folder a sweep.")
]
Slots = Annotated[
    int | None,
    typer.Option("--slots", min=1, metavar="N", help="Ranks a host takes (default: its devices)."),
]
Share = Annotated[
    str | None,
    typer.Option(
        "--share", metavar="I/N", help="Only part I (from 0) of N: jobs that share a sweep."
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        "--base",
        metavar="NAME",
        help="What speedup divides by: none@1, horovod@1, ddp@1 (default: as measured).",
    ),
]
Mixed = Annotated[
    bool, typer.Option("--mixed", help="Allow unlike hardware or software in one curve.")
]
RESULTS = Path("results")


def _version(wanted: bool) -> None:
    if wanted:
        from harness import __version__

        typer.echo(f"hvdscale {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    sweep: Sweep,
    overrides: Set = None,
    results: Results = RESULTS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started; start nothing.")
    ] = False,
    slots: Slots = None,
    share: Share = None,
) -> int:
    """Run what is missing of a sweep, here or in this allocation."""
    from harness.cli.sweeps import command_run

    return command_run(sweep, overrides or [], results, dry_run, slots, share=share)


@app.command()
def train(
    sweep: Sweep,
    overrides: Set = None,
    results: Results = RESULTS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started; start nothing.")
    ] = False,
    slots: Slots = None,
    share: Share = None,
) -> int:
    """Train what is missing of a sweep's points to a target or an epoch count (its `train:`)."""
    from harness.cli.sweeps import command_run

    return command_run(sweep, overrides or [], results, dry_run, slots, share=share, training=True)


@app.command()
def validate(
    sweep: Sweep, overrides: Set = None, results: Results = RESULTS, slots: Slots = None
) -> int:
    """Check a sweep against this machine; print its points and how long they will take."""
    from harness.cli.sweeps import command_validate

    return command_validate(sweep, overrides or [], results, slots)


@app.command(name="ls")
def list_results(
    results: Annotated[Path, typer.Argument(metavar="RESULTS")] = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """List sweeps and their points; RESULTS is a folder of results, or one sweep."""
    from harness.cli.listing import command_ls

    return command_ls(results, as_json)


@app.command()
def collect(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A sweep's folder or name.")],
    base: Base = None,
    mixed: Mixed = False,
    results: Results = RESULTS,
) -> int:
    """Gather a sweep's records into table.parquet and table.csv; print the table."""
    from harness.cli.listing import command_collect

    return command_collect(path, results, base, mixed)


@app.command()
def plot(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A sweep's folder or name, or a result of allreduce."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Default: plots/ in the sweep.")
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="LIST", help="png, svg, pdf, separated by commas.")
    ] = "png,svg",
    base: Base = None,
    mixed: Mixed = False,
    results: Results = RESULTS,
) -> int:
    """Draw a sweep's plots, each with the CSV behind it; print their paths."""
    from harness.cli.listing import command_plot

    return command_plot(path, out, formats, results, base, mixed)


@app.command()
def bench(
    workload: Annotated[str | None, typer.Argument(metavar="WORKLOAD")] = None,
    run_file: Annotated[
        Path | None,
        typer.Option("--run", metavar="FILE", help="A launch's run.json; the sweep writes it."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Samples a rank and step (weak scaling).")
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option("--global-batch-size", help="Samples of all ranks a step (strong scaling)."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="horovod, ddp or none (default: what fits).")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="nccl, mpi, mpi-host or gloo.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--framework", help="torch or tensorflow.")
    ] = None,
    overrides: Set = None,
    results: Results = RESULTS,
) -> int:
    """Be one rank: horovodrun -np 2 hvdscale bench stress_strain --batch-size 75"""
    from harness.cli.ranks import command_bench

    flags = {
        "batch_size": batch_size,
        "global_batch_size": global_batch_size,
        "engine": engine,
        "backend": backend,
        "framework": framework,
    }
    return command_bench(workload, run_file, flags, overrides or [], results)


@app.command()
def workloads(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """List the workloads: frameworks, parameters, gradient bytes, options."""
    from harness.cli.workloads import command_workloads

    return command_workloads(as_json)


@app.command()
def allreduce(
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="LIST", help="4K:1G doubles, 4K:1G:4 by fours; 4K,1M.")
    ] = "4K:1G",
    backend: Annotated[
        str | None, typer.Option("--backend", help="nccl, mpi, mpi-host or gloo.")
    ] = None,
    collectives: Annotated[
        str,
        typer.Option(
            "--collectives",
            metavar="LIST",
            help="all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, send_recv, "
            "barrier; or all.",
        ),
    ] = "all_reduce",
    libraries: Annotated[
        str,
        typer.Option(
            "--libraries", metavar="LIST", help="horovod, torch, mpi4py (default: all there are)."
        ),
    ] = "all",
    iterations: Annotated[
        int, typer.Option("--iterations", help="At most, of each library, collective and size.")
    ] = 30,
    tuning: Annotated[
        str | None,
        typer.Option(
            "--tuning", metavar="NAME|FILE", help="A tuning preset of Horovod: latency, bandwidth."
        ),
    ] = None,
    results: Results = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Be one rank: mpirun -np 2 hvdscale allreduce, and compare libraries over sizes."""
    from harness.cli.collectives import command_allreduce

    return command_allreduce(
        sizes, backend, collectives, libraries, iterations, results, as_json, tuning=tuning
    )


@app.command()
def timeline(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Written by HOROVOD_TIMELINE.")],
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Steps in it (default: how often a tensor is reduced)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say where the all-reduces of a Horovod timeline spend their time, a step."""
    from harness.cli.timeline import command_timeline

    return command_timeline(path, as_json, steps)


@app.command(
    name="build-horovod",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def build_horovod(context: typer.Context) -> int:
    """Build Horovod for the frameworks that are here, install it and prove it works."""
    from harness.cli.ranks import command_build_horovod

    return command_build_horovod(context.args)


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> int:
    """Say what is here, and what will not work and why."""
    from harness.doctor import command_doctor

    return command_doctor(as_json)


register_answers(app)
register_tune(app)
register_presets(app)
register_cluster(app)
