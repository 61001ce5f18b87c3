"""The allocations of a sweep in few lines: hosts, and a cluster's jobs by the hundred."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.report.document import (
    Block,
    Cell,
    Column,
    Paragraph,
    Table,
    counted,
    number_cell,
    text_cell,
)
from harness.analysis.results import Results
from harness.bounded import read_file
from harness.digits import whole
from harness.nodelist import is_host_name

_ROWS = 30
_RANGES, _NODES = 8, 4  # that are named; the rest is counted
_READ = (
    500  # records, one an allocation: of more jobs the partition and nodes are not all looked up
)
_SINGLE = 5  # jobs that are in no array: each has a row of its own as long as they are so few
_COLUMNS = ("allocation", "repeat", "status", "started_at", "ended_at", "world_size", "file")
_SLURM = "slurm:"


@dataclass(frozen=True)
class _Allocation:
    """One allocation: its launches' rows, and what the record of its largest launch tells."""

    name: str  # "local:HOST", "slurm:JOBID" or "slurm:JOBID.rN"
    rows: Sequence[Mapping[str, Any]]
    slurm: Mapping[str, Any]
    hosts: tuple[str, ...]
    commit: str | None

    @property
    def job(self) -> str:
        """Return the id of the job, restarts left out; empty outside of one."""
        if not self.name.startswith(_SLURM):
            return ""
        return self.name.removeprefix(_SLURM).partition(".")[0]

    @property
    def array(self) -> str:
        """Return the id of the job array that it is an element of, or nothing."""
        return str(self.slurm.get("array_job_id") or "")


def allocation_blocks(results: Results) -> Iterator[Block]:
    """Yield a row an allocation; the jobs of an array, and jobs without one, share a row."""
    found = _allocations(results)
    groups: dict[str, list[_Allocation]] = {}
    alone = len({one.job for one in found if one.job and not one.array})
    for one in found:
        together = f"{_SLURM}jobs" if alone > _SINGLE else f"{_SLURM}{one.job}"
        key = one.name if not one.job else f"array {one.array}" if one.array else together
        groups.setdefault(key, []).append(one)
    rows = tuple(_row(group) for group in groups.values())
    head = (
        Column("Allocation", numeric=False), Column("Launches"), Column("Blocks"),
        Column("First start (UTC)", numeric=False), Column("Last end (UTC)", numeric=False),
        Column("Hosts", numeric=False), Column("Commit of hvdscale", numeric=False),
    )  # fmt: skip
    if rows:
        caption = "Allocations (a host, or jobs of the cluster), failed launches included"
        yield Table(caption, head, rows[:_ROWS])
    if len(rows) > _ROWS:
        more = counted(len(rows) - _ROWS, "more allocation")
        yield Paragraph(f"{more} in table.csv of the results folder.")


def ranges_text(numbers: Iterable[int], most: int = _RANGES) -> str:
    """Return whole numbers in few words: ``0-3, 7, 9-10``, or ``0, 2, 4 + 97 more``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:most])
    left = sum(b - a + 1 for a, b in runs[most:])
    return f"{shown} + {left:,} more" if left else shown


def nodes_text(hosts: Iterable[str]) -> str:
    """Return hosts in few words: ``node[01-20]``, or with ``+ n more`` where many are unlike."""
    names = list(dict.fromkeys(hosts))
    if len(names) <= _NODES:
        return ", ".join(names)
    if not all(map(is_host_name, names)):
        return _few(names)  # what a record has is told, whatever it is
    import hostlist

    try:
        parts = _outer_parts(str(hostlist.collect_hostlist(names)))
    except (hostlist.BadHostlist, ValueError):
        return _few(names)
    shown = ", ".join(parts[:_NODES])
    left = sum(len(hostlist.expand_hostlist(part)) for part in parts[_NODES:])
    return f"{shown} + {left:,} more" if left else f"{shown} ({len(names):,} nodes)"


def _outer_parts(text: str) -> list[str]:
    """Split a host list at the commas outside of its brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _allocations(results: Results) -> list[_Allocation]:
    columns = results.table.select(list(_COLUMNS)).to_pydict()
    groups: dict[str, list[dict[str, Any]]] = {}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        if row["allocation"] is not None:
            groups.setdefault(row["allocation"], []).append(row)
    return [
        _allocation(results, name, rows, read=index < _READ)
        for index, (name, rows) in enumerate(sorted(groups.items()))
    ]


def _allocation(
    results: Results, name: str, rows: list[dict[str, Any]], *, read: bool
) -> _Allocation:
    """Return an allocation; hosts, job and commit are those of its largest launch."""
    largest = max(rows, key=lambda row: (row["status"] == "ok", row["world_size"] or 0))
    try:
        path = results.folder / "runs" / largest["file"]
        data = json.loads(read_file(path)) if read else {"resolved": {"hosts": []}}
        slurm = dict(data.get("slurm") or {})
        placed = (data.get("placed") or {}).get("hosts")
        hosts = placed or slurm.get("nodelist") or data["resolved"]["hosts"]
        harness = data.get("provenance", {}).get("harness", {})
        commit = str(harness["commit"])[:12] if harness.get("commit") else None
        if commit and harness.get("dirty"):
            commit += " (with changes that are not committed)"
        return _Allocation(name, rows, slurm, tuple(map(str, hosts)), commit)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _Allocation(name, rows, {}, (), None)  # gone or changed since it was collected


def _row(group: Sequence[_Allocation]) -> tuple[Cell, ...]:
    rows = [row for one in group for row in one.rows]
    blocks = len({(one.name, row["repeat"]) for one in group for row in one.rows})
    commits = dict.fromkeys(one.commit for one in group if one.commit)
    return (
        text_cell(_name(group)),
        number_cell(f"{len(rows):,}", len(rows)),
        number_cell(f"{blocks:,}", blocks),
        text_cell(moment(min(_known(rows, "started_at"), default=""))),
        text_cell(moment(max(_known(rows, "ended_at"), default=""))),
        text_cell(nodes_text(host for one in group for host in one.hosts)),
        text_cell(_few(list(commits))),
    )


def _known(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    return [row[column] for row in rows if row[column] is not None]


def _name(group: Sequence[_Allocation]) -> str:
    first = group[0]
    if not first.job:
        return first.name
    partitions = dict.fromkeys(str(x) for one in group if (x := one.slurm.get("partition")))
    of = f" ({_few(list(partitions))})" if partitions else ""
    restarts = len(group) - len({one.job for one in group})
    again = f"; {counted(restarts, 'restart')}" if restarts else ""
    if first.array:
        elements = [str(one.slurm.get("array_task_id")) for one in group]
        what = _ids(elements)
        return f"job array {first.array}{of}, {_plural(elements, 'element')} {what}{again}"
    if len(group) == 1:
        return f"{first.name}{of}"
    jobs = [one.job for one in group]
    return f"{_plural(jobs, 'job')} {_ids(jobs)}{of}{again}"


def _plural(ids: Sequence[str], word: str) -> str:
    return word if len(set(ids)) == 1 else f"{word}s"


def _ids(ids: Sequence[str]) -> str:
    """Return ids as ranges; those that are no numbers as they are."""
    numbers = [number for one in ids if (number := whole(one)) is not None]
    if len(numbers) == len(ids):
        return ranges_text(numbers)
    return _few(list(dict.fromkeys(ids)))


def _few(texts: Sequence[str]) -> str:
    more = f" + {len(texts) - _NODES} more" if len(texts) > _NODES else ""
    return ", ".join(texts[:_NODES]) + more


def moment(text: str) -> str:
    """Return a record's time to the minute: ``2026-01-02 03:04``."""
    return text[:16].replace("T", " ")
