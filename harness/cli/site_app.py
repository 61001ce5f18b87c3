"""``hvdscale site …``: thin, heavy imports by the one that needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

site_app = typer.Typer(
    name="site",
    help="Sites: what a cluster's partition has, and how its jobs are asked for.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@site_app.command(name="init")
def init(
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="P", help="Needed where there are several.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Default: the file's name, or the partition's."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Default: standard output. Never overwritten."),
    ] = None,
) -> int:
    """Draft a site from what Slurm says here.

    Asked are sinfo, scontrol and srun; what they cannot say is a line to fill in.
    """
    from harness.cli.site import command_site_init

    return command_site_init(partition, name, out)


@site_app.command(name="ls")
def list_(as_json: Json = False) -> int:
    """List the sites there are.

    They are in ./slurm/sites, in ~/.config/hvdscale/sites, and in the package.
    """
    from harness.cli.site import command_site_ls

    return command_site_ls(as_json)


@site_app.command(name="show")
def show(
    site: Annotated[str, typer.Argument(metavar="SITE", help="A YAML file, or a site's name.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--site-set", metavar="KEY=VALUE", help="Override a key; repeatable."),
    ] = None,
    as_json: Json = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare it with what Slurm says here.")
    ] = False,
) -> int:
    """Print a site with all its defaults.

    With --check, what Slurm knows otherwise is said on standard error, and the exit code is 1.
    """
    from harness.cli.site import command_site_show

    return command_site_show(site, overrides or [], as_json, check)
