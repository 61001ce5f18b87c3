"""The subcommands that answer from records. Thin, heavy imports by the one that needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Path_ = Annotated[str, typer.Argument(metavar="PATH", help="A sweep's folder or name.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Base = Annotated[
    str | None,
    typer.Option("--base", metavar="NAME", help="What speedup divides by (default: as measured)."),
]
Mixed = Annotated[
    bool, typer.Option("--mixed", help="Allow unlike hardware or software in one curve.")
]
Results = Annotated[
    Path, typer.Option("--results", metavar="DIR", help="Where results go, a folder a sweep.")
]
RESULTS = Path("results")


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Two sweeps; or a sweep and two values of an axis: "
            "demo backend=mpi backend=gloo, demo horovod.cycle_time_ms=1 horovod.cycle_time_ms=5.",
        ),
    ],
    base: Base = None,
    mixed: Mixed = False,
    as_json: Json = False,
    results: Results = RESULTS,
) -> int:
    """Say by how much B is faster than A, point by point, and whether the difference is real."""
    from harness.cli.compare import command_compare

    return command_compare(what, results, mixed, as_json, base=base)


def predict(
    path: Path_,
    devices: Annotated[
        str | None, typer.Option("--devices", metavar="LIST", help="Device counts: 64,256,1024.")
    ] = None,
    devices_per_node: Annotated[
        int | None, typer.Option("--devices-per-node", min=1, help="Default: as measured.")
    ] = None,
    inter_node_us: Annotated[
        float | None,
        typer.Option("--inter-node-us", help="Latency of a message between nodes, microseconds."),
    ] = None,
    inter_node_gbs: Annotated[
        float | None,
        typer.Option("--inter-node-gbs", help="Bandwidth between two nodes, GB/s (10^9 bytes)."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="CHANGE",
            help="Replay the measured step with one thing changed: cycle_time_ms=0, bandwidth=2x, "
            "latency=0.5x, no-stragglers, no-sync, graph; repeatable.",
        ),
    ] = None,
    allreduce: Annotated[
        Path | None,
        typer.Option("--allreduce", metavar="DIR", help="A result of hvdscale allreduce."),
    ] = None,
    base: Base = None,
    mixed: Mixed = False,
    as_json: Json = False,
    results: Results = RESULTS,
) -> int:
    """Predict larger device counts from a sweep, with intervals and what they rest on."""
    from harness.cli.predict import command_predict

    network = (inter_node_us, inter_node_gbs)
    return command_predict(
        path, devices, devices_per_node, network, what_if or [], allreduce, results,
        base=base, mixed=mixed, as_json=as_json,
    )  # fmt: skip


def advise(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Sweeps' folders or names, trainings among them."),
    ],
    min_efficiency: Annotated[
        float | None, typer.Option("--min-efficiency", help="Ask for no less, e.g. 0.8.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="TIME", help="e.g. 45m, 2h, 1d12h.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="METRIC=VALUE", help="e.g. mse=1e-3.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Draw time against device-hours there."),
    ] = None,
    base: Base = None,
    mixed: Mixed = False,
    as_json: Json = False,
    results: Results = RESULTS,
) -> int:
    """Say which placement, backend, batch size and tuning to ask for, and why."""
    from harness.cli.advise import command_advise

    return command_advise(
        paths, min_efficiency, deadline, target, out, results,
        base=base, mixed=mixed, as_json=as_json,
    )  # fmt: skip


def diagnose(
    path: Path_,
    worst: Annotated[int, typer.Option("--worst", min=1, help="How many points.")] = 3,
    base: Base = None,
    mixed: Mixed = False,
    as_json: Json = False,
    results: Results = RESULTS,
) -> int:
    """Say what limits the worst points, with the evidence and the knob to turn."""
    from harness.cli.diagnose import command_diagnose

    return command_diagnose(path, worst, results, base=base, mixed=mixed, as_json=as_json)


def report(
    path: Path_,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Default: report.html in the sweep's folder."),
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write it as PDF, too.")] = False,
    base: Base = None,
    mixed: Mixed = False,
    results: Results = RESULTS,
) -> int:
    """Write one HTML file that needs nothing else: the answer, its evidence, its provenance."""
    from harness.cli.report import command_report

    return command_report(path, out, pdf, results, base=base, mixed=mixed)


def export(
    path: Path_,
    extrap: Annotated[
        bool, typer.Option("--extrap", help="As Extra-P reads it: JSON Lines.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: standard output.")
    ] = None,
    base: Base = None,
    mixed: Mixed = False,
    results: Results = RESULTS,
) -> int:
    """Write a sweep's measurements for another program."""
    from harness.cli.export import command_export

    return command_export(path, extrap, out, results, base=base, mixed=mixed)


COMMANDS = (compare, predict, advise, diagnose, report, export)


def register(app: typer.Typer) -> None:
    """Add the commands, in their order."""
    for command in COMMANDS:
        app.command()(command)
