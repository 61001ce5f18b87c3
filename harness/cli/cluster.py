"""The subcommands for a Slurm cluster. Thin, heavy imports by the one that needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Sweep = Annotated[str, typer.Argument(metavar="SWEEP", help="A YAML file, or a preset's name.")]
Site = Annotated[
    str, typer.Option("--site", metavar="SITE", help="A site's name or file; see hvdscale site ls.")
]
SiteSet = Annotated[
    list[str] | None,
    typer.Option("--site-set", metavar="KEY=VALUE", help="Override a key of the site; repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config; repeatable."),
]
Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Where results go, a folder a sweep.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RESULTS = Path("results")


def submit(
    sweep: Sweep,
    site: Site,
    site_overrides: SiteSet = None,
    overrides: Set = None,
    results: Results = RESULTS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every sbatch line and script; submit nothing.")
    ] = False,
    parsable: Annotated[bool, typer.Option("--parsable", help="Print job ids alone.")] = False,
    throttle: Annotated[
        int | None,
        typer.Option("--throttle", min=1, metavar="N", help="Elements of an array at a time."),
    ] = None,
    shared_base: Annotated[
        bool,
        typer.Option(
            "--shared-base", help="Measure the base in a job of its own, instead of in each."
        ),
    ] = False,
    points_per_job: Annotated[
        int | None,
        typer.Option(
            "--points-per-job", min=1, metavar="N", help="Default: what the site's job time takes."
        ),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train the points, as hvdscale train does.")
    ] = False,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="DEP", help="A dependency of sbatch: afterok:123."),
    ] = None,
    collect: Annotated[
        bool,
        typer.Option("--collect/--no-collect", help="A last job that makes table and report."),
    ] = True,
) -> int:
    """Submit what is missing of a sweep as Slurm job arrays, one a placement."""
    from harness.cli.submit import command_submit

    return command_submit(
        sweep,
        site,
        site_overrides=site_overrides or [],
        overrides=overrides or [],
        results=results,
        dry_run=dry_run,
        parsable=parsable,
        throttle=throttle,
        shared_base=shared_base,
        points_per_job=points_per_job,
        training=train,
        after=after,
        collect=collect,
    )


def status(
    sweep: Annotated[
        str | None, typer.Argument(metavar="SWEEP", help="A sweep's folder or name (default: all).")
    ] = None,
    results: Results = RESULTS,
    as_json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every launch that is not done.")
    ] = False,
) -> int:
    """Say of every point whether it is done, running, queued, failed (why) or missing."""
    from harness.cli.status import command_status

    return command_status(sweep, results, as_json, verbose)


def run_point(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="Of a submitted array.")],
    index: Annotated[
        int | None,
        typer.Argument(metavar="INDEX", help="Of the element (default: SLURM_ARRAY_TASK_ID)."),
    ] = None,
) -> int:
    """Be one element of a submitted job array; its batch script calls this."""
    from harness.cli.sweeps import command_run_point

    return command_run_point(manifest, index)


def preflight(
    sweep: Annotated[
        str | None, typer.Argument(metavar="SWEEP", help="Keep the result with this sweep.")
    ] = None,
    site: Annotated[
        str | None, typer.Option("--site", metavar="SITE", help="Submit a job that does it.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Of the job (default: the site's).")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", metavar="NAME", help="Whose steps tell a node's speed (default: SWEEP's)."
        ),
    ] = None,
    results: Results = RESULTS,
    as_json: Json = False,
) -> int:
    """Look for slow nodes and links, unlike versions and throttling, before a long campaign."""
    from harness.cli.preflight import command_preflight

    return command_preflight(sweep, site, nodes, workload, results, as_json)


def register(app: typer.Typer) -> None:
    """Add these subcommands to ``app``."""
    from harness.cli.site_app import site_app

    for command in (submit, status, preflight):
        app.command()(command)
    app.command(name="run-point")(run_point)
    app.add_typer(site_app, name="site")
