"""The table of ``hvdscale allreduce``, the CSV behind its plots, and the ring's bound."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.texts import seconds_text
from harness.collectives.definitions import bus_factor
from harness.collectives.record import CollectivesRecord, Row
from harness.collectives.sizes import size_text

_NONE = "–"
_HEAD = ("p50", "p99", "algbw", "busbw")
_GAP = "   "  # between the column groups of two libraries


@dataclass(frozen=True)
class Ring:
    """A lower bound of a ring all-reduce: the larger of 2(N−1)·α and 2(N−1)/N · bytes / B.

    A ring takes N−1 steps of reduce-scatter and N−1 of all-gather, each of latency α and bytes / N
    over a link of bandwidth B: 2(N−1)·α + 2(N−1)/N · bytes / B. (Patarasu and Yuan, Bandwidth
    optimal all-reduce algorithms, 2009.) So it takes at least as long as either term.

    α and B are the best that any library reached, each from a whole median: α is the least p50 by
    2(N−1), B the greatest busbw. Both medians have latency and transfer in them. A sum of the two
    terms would count these twice, and lie above the very medians that it is made from; the larger
    of the two has no measured median below it, whatever the times are.
    """

    ranks: int
    alpha_s: float  # latency of one step
    bandwidth_bytes_per_s: float
    quickest: Row  # whose median gives α
    widest: Row  # whose median gives B

    def seconds(self, count_bytes: float) -> float:
        """Return the least time of an all-reduce of ``count_bytes``."""
        wire_s = bus_factor("all_reduce", self.ranks) * count_bytes / self.bandwidth_bytes_per_s
        return max(2 * (self.ranks - 1) * self.alpha_s, wire_s)

    @property
    def corner_bytes(self) -> float:
        """The size up to which latency is the larger term, and from which transfer is."""
        return self.alpha_s * self.ranks * self.bandwidth_bytes_per_s

    @property
    def text(self) -> str:
        """Say how the line is made."""
        return (
            "ring's lower bound: the larger of 2(N−1)·α and 2(N−1)/N·bytes/B with "
            f"α = {seconds_text(self.alpha_s)} ({_origin(self.quickest)}), "
            f"B = {_rate(self.bandwidth_bytes_per_s)} ({_origin(self.widest)}); "
            "no measured median is below it; α and B are the best any library reached"
        )


def fit_ring(record: CollectivesRecord) -> Ring | None:
    """Return the lower bound from the all-reduces of all libraries and sizes.

    None where fewer than two sizes were measured: the two terms would be one and the same median.
    """
    rows = rows_of(record, "all_reduce")
    if len({row.bytes for row in rows}) < 2:
        return None
    quickest = min(rows, key=lambda row: row.latency_p50_s)
    widest = max(rows, key=lambda row: row.bytes / row.latency_p50_s)
    factor = bus_factor("all_reduce", record.world_size)
    return Ring(
        ranks=record.world_size,
        alpha_s=quickest.latency_p50_s / (2 * (record.world_size - 1)),
        bandwidth_bytes_per_s=factor * widest.bytes / widest.latency_p50_s,
        quickest=quickest,
        widest=widest,
    )


def _origin(row: Row) -> str:
    return f"{row.library}, {size_text(row.bytes)}"


def rows_of(record: CollectivesRecord, collective: str) -> list[Row]:
    """Return a collective's rows."""
    return [row for row in record.rows if row.collective == collective]


def libraries_of(rows: Sequence[Row]) -> list[str]:
    """Return the libraries of rows, in their order."""
    return list(dict.fromkeys(row.library for row in rows))


def library_text(record: CollectivesRecord, name: str) -> str:
    """Return a library with what moves its bytes: ``horovod, mpi``."""
    proof = next(one.proof for one in record.libraries if one.name == name)
    via = f", {proof.controller} controller" if proof.controller else ""
    return f"{name}, {proof.proven or 'unproven'}{via}"


def place_text(record: CollectivesRecord) -> str:
    """Return where it ran: ``N = 2 (2 on node1), CPU``."""
    placement = "+".join(map(str, record.placement))
    device = "GPU" if record.device == "cuda" else "CPU"
    return f"N = {record.world_size} ({placement} on {', '.join(record.hosts)}), {device}"


def render(record: CollectivesRecord) -> str:
    """Return the tables of a record: one a collective, sizes down, libraries across."""
    parts = [f"{place_text(record)}, {record.dtype}; n iterations, each its slowest rank's time"]
    parts += ["\n".join(_table(record, name)) for name in record.collectives]
    notes = list(_notes(record))
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def _table(record: CollectivesRecord, collective: str) -> Iterator[str]:
    rows = rows_of(record, collective)
    if not rows:
        yield f"{collective}: {_NONE}"
        return
    # A library without this collective keeps its columns, so that the tables of a record agree.
    names = libraries_of(record.rows)
    cells = {(row.bytes, row.library): row for row in rows}
    sizes = sorted({row.bytes for row in rows})
    groups = [[_HEAD, *(_cells(cells.get((size, name))) for size in sizes)] for name in names]
    firsts = [("size", "n"), *((_size(size), str(_count(rows, size))) for size in sizes)]
    left = [_line(pair, _widths(firsts)) for pair in firsts]
    width = max(len(collective), len(left[0]))
    blocks = [
        _block(group, library_text(record, name)) for group, name in zip(groups, names, strict=True)
    ]
    yield (collective.ljust(width) + "".join(_GAP + block[0] for block in blocks)).rstrip()
    for number, start in enumerate(left):
        yield start.rjust(width) + "".join(_GAP + block[number + 1] for block in blocks)


def _size(count_bytes: int) -> str:
    return size_text(count_bytes) if count_bytes else _NONE


def _block(group: Sequence[Sequence[str]], title: str) -> list[str]:
    widths = _widths(group)
    lines = [_line(row, widths) for row in group]
    width = max(len(title), len(lines[0]))
    return [title.ljust(width), *(line.rjust(width) for line in lines)]


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _count(rows: Sequence[Row], size: int) -> int:
    return next(row.iterations for row in rows if row.bytes == size)


def _cells(row: Row | None) -> tuple[str, ...]:
    if row is None:
        return (_NONE,) * len(_HEAD)
    return (
        seconds_text(row.latency_p50_s),
        seconds_text(row.latency_p99_s),
        _rate(row.algbw_bytes_per_s),
        _rate(row.busbw_bytes_per_s),
    )


def _rate(bytes_per_s: float | None) -> str:
    """Return a bandwidth with three digits and the decimal unit that fits, e.g. ``478 MB/s``."""
    if bytes_per_s is None:
        return _NONE
    for limit, factor, unit in ((1e6, 1e3, "kB/s"), (1e9, 1e6, "MB/s")):
        # 999.6 kB/s would print as 1e+03 kB/s.
        if bytes_per_s < limit * 0.9995:
            return f"{_digits(bytes_per_s / factor)} {unit}"
    gigabytes = bytes_per_s / 1e9
    return f"{_digits(gigabytes) if gigabytes < 999.5 else f'{gigabytes:,.0f}'} GB/s"


def _digits(value: float) -> str:
    return f"{value:#.3g}".removesuffix(".")


def _notes(record: CollectivesRecord) -> Iterator[str]:
    for one in record.absent:
        what = f"{one.collective}, {one.library}" if one.collective else one.library
        yield f"{_NONE} {what}: {one.reason}"


def csv_text(record: CollectivesRecord, collective: str) -> str:
    """Return what a collective's figure draws: its rows, and the ring's line where it has one."""
    buffer = io.StringIO()
    rows = rows_of(record, collective)
    ring = fit_ring(record) if collective == "all_reduce" else None
    fields = [*Row.model_fields, *(["ring_s"] if ring else [])]
    writer = csv.DictWriter(buffer, fields, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        extra = {"ring_s": ring.seconds(row.bytes)} if ring else {}
        cells = {**row.model_dump(), **extra}
        writer.writerow({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in cells.items()})
    return buffer.getvalue()
