"""Every launch that gave no measurement: its cause, and what its processes said last."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.analysis.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Details,
    Paragraph,
    Quote,
    Table,
    counted,
    number_cell,
    text_cell,
)
from harness.analysis.results import Results
from harness.analysis.scaling import Failure
from harness.bounded import read_file

ROWS = 300
EVIDENCE = 40  # launches
_CAUSES = 12
_RANKS, _LINES, _CHARS = 4, 12, 2000  # of one launch's evidence
_HEAD = (
    Column("Configuration", numeric=False),
    Column("Status", numeric=False),
    Column("Cause", numeric=False),
    Column("Measured later", numeric=False),
    Column("Launch", numeric=False),
    Column("Attempt"),
)


def failed_blocks(results: Results) -> Iterator[Block]:
    """Yield how many failed and why, each in a table, and the evidence of each."""
    failed = sorted(results.failures, key=lambda one: (one.repaired, one.what, one.run_id))
    if not failed:
        yield Paragraph("None: every launch that was started gave a measurement.")
        return
    mended = sum(one.repaired for one in failed)
    later = f" {counted(mended, 'of them was', 'of them were')} measured by a later attempt."
    yield Paragraph(
        f"{counted(len(failed), 'launch', 'launches')} gave no measurement."
        f"{later if mended else ''} None is in any number above."
    )
    if len(failed) > 1:
        yield Bullets(tuple(_causes(failed)))
    yield Table("Launches without a measurement", _HEAD, tuple(map(_row, failed[:ROWS])))
    if len(failed) > ROWS:
        yield Paragraph(
            f"{len(failed) - ROWS:,} more are not shown; they are the rows of table.csv in the "
            "results folder whose status is not ok."
        )
    yield from _evidence(results, failed)


def _causes(failed: list[Failure]) -> Iterator[str]:
    counts = Counter(_line(one.cause) for one in failed)
    found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    yield from (f"{count:,} × {cause}" for cause, count in found[:_CAUSES])
    rest = len(found) - _CAUSES
    if rest > 0:
        yield f"{counted(rest, 'other cause')}, in the table below"


def _row(one: Failure) -> tuple[Cell, ...]:
    return (
        text_cell(one.what or "unknown"),
        text_cell(one.status),
        text_cell(_line(one.cause)),
        text_cell("yes" if one.repaired else "no"),
        text_cell(one.run_id),
        number_cell("–" if one.attempt is None else str(one.attempt), one.attempt),
    )


def _evidence(results: Results, failed: list[Failure]) -> Iterator[Block]:
    files = _files(results)
    blocks = []
    for one in failed[:EVIDENCE]:
        name = files.get((one.run_id, one.attempt))
        said = _said(results.folder / "runs" / name) if name else ""
        attempt = "" if one.attempt is None else f", attempt {one.attempt}"
        log = f"logs/{one.run_id}/{one.attempt}/" if one.attempt is not None else "logs/"
        text = f"{_line(one.cause)}\n{said or 'no process said anything'}\n\nwhole logs: {log}"
        title = f"{one.what or 'unknown configuration'}: {one.status} ({one.run_id}{attempt})"
        blocks.append(Details(title, (Quote(text),)))
    yield Paragraph("What was said last, launch by launch; logs are in the results folder:")
    yield from blocks
    if len(failed) > EVIDENCE:
        yield Paragraph(
            f"The evidence of {len(failed) - EVIDENCE:,} more is in their records in runs/ and "
            "their logs in logs/ of the results folder."
        )


def _files(results: Results) -> dict[tuple[str, int | None], str]:
    """Return the record's file of each launch that gave no measurement."""
    columns = results.table.select(["run_id", "attempt", "status", "file"]).to_pydict()
    rows = zip(*columns.values(), strict=True)
    return {(run_id, attempt): file for run_id, attempt, status, file in rows if status != "ok"}


def _said(path: Path) -> str:
    """Return what a failed launch's record kept; a broken file has kept nothing."""
    try:
        data = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        return f"the record cannot be read: {_line(str(error))}".replace(str(path), path.name)
    kept = data.get("error") if isinstance(data, dict) else None
    return "\n".join(_lines(kept)) if isinstance(kept, dict) else ""


def _lines(error: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(error.get("exit_code"), int):
        yield f"exit code {error['exit_code']}"
    tails = error.get("rank_tails")
    said = {str(r): _tail(t) for r, t in tails.items()} if isinstance(tails, dict) else {}
    said = {rank: tail for rank, tail in said.items() if tail}
    for rank, tail in list(said.items())[:_RANKS]:
        yield f"rank {rank}:\n{tail}"
    if len(said) > _RANKS:
        yield f"and {len(said) - _RANKS} more ranks, in the logs"
    launcher = _tail(error.get("launcher_tail"))
    if launcher:
        yield f"launcher:\n{launcher}"


def _tail(lines: Any) -> str:
    """Return the last lines, indented; a very long one is cut."""
    if not isinstance(lines, list):
        return ""
    text = "\n".join(f"  {line}" for line in lines[-_LINES:])
    return text if len(text) <= _CHARS else f"  …{text[-_CHARS:]}"


def _line(cause: str) -> str:
    return " ".join(cause.split())
