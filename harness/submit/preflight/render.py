"""A preflight as text: findings first, then nodes, links, transports; pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from harness.submit.preflight.judge import cautions
from harness.submit.preflight.judge_links import Link, latency_text, links_of, rate_text
from harness.submit.preflight.record import Clock, NodeReport, Preflight

_MATRIX = 8  # nodes; of more only the worst links
_WORST = 10
_TAIL = 5  # lines of what failed; the record has more
_DASH = "-"


def render(record: Preflight) -> str:
    """Return the result for a terminal: plain text, no colour."""
    parts = [
        _head(record),
        _findings(record),
        _nodes(record),
        *(_links(record, library) for library in dict.fromkeys(w.library for w in record.links)),
        _transports(record),
        _more(record),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(record: Preflight) -> str:
    count = len(record.nodes)
    what = record.config.workload.name
    return (
        f"preflight of {count} node{'' if count == 1 else 's'} ({record.allocation}), {what} with "
        f"batch {record.config.rank_batch}, {record.started_at}"
    )


def _findings(record: Preflight) -> str:
    doubts = [f"  caution: {text}" for text in cautions(record.nodes)]
    if not record.findings:
        head = "Nothing found, but with doubts:" if doubts else "Nothing found."
        return "\n".join([head, *doubts])
    lines = ["Found:"]
    for finding in record.findings:
        lines.append(f"  {finding.text}")
        lines += [f"    | {line}" for line in finding.tail[-_TAIL:]]
    return "\n".join([*lines, *doubts])


def _nodes(record: Preflight) -> str:
    speeds = [one.samples_per_s for one in record.nodes if one.samples_per_s is not None]
    usual = median(speeds) if speeds else None
    head = ("node", "samples/s", "of median", "noise", "clock, MHz", "load a core", "interface")
    return _table([head, *(_row(one, usual) for one in record.nodes)])


def _row(report: NodeReport, usual: float | None) -> tuple[str, ...]:
    speed = report.samples_per_s
    load = report.load_1min
    return (
        report.node,
        f"{speed:,.0f}" if speed is not None else _DASH,
        f"{speed / usual:.2f}" if speed is not None and usual else _DASH,
        _noise(report),
        _clocks(report.clocks),
        f"{load / report.cores:.2f}" if load is not None and report.cores else _DASH,
        report.interface or _DASH,
    )


def _noise(report: NodeReport) -> str:
    """Return how far the middle half of the blocks lies apart, of their median."""
    blocks = [s for one in report.speeds for look in one.looks_step_s for s in look]
    if len(blocks) < 4:
        return _DASH
    ordered = sorted(blocks)
    quarter = len(ordered) // 4
    return f"{(ordered[-1 - quarter] - ordered[quarter]) / median(ordered):.1%}"


def _clocks(clocks: Sequence[Clock]) -> str:
    values = [median(one.mhz) for one in clocks if one.mhz]
    if not values:
        return _DASH
    low, high = min(values), max(values)
    return f"{low:,.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:,.0f} to {high:,.0f}"


def _links(record: Preflight, library: str) -> str:
    links = links_of([way for way in record.links if way.library == library])
    if not links:
        return ""
    # In the order of the allocation, not of the alphabet.
    order = {one.node: place for place, one in enumerate(record.nodes)}
    ends = {end for link in links for end in link.ends}
    names = sorted(ends, key=lambda name: order.get(name, len(order)))
    title = f"links by {library}: bandwidth from row to column, latency at 8 bytes below"
    if 2 < len(names) <= _MATRIX:
        return "\n".join([title, _matrix(links, names)])
    shown = sorted(links, key=lambda link: link.bytes_per_s)[:_WORST]
    head = ("link", "there", "back", "latency")
    rows = [head, *map(_link_row, shown)]
    kept = f"the slowest {len(shown)} of {len(links)} links" if len(links) > _WORST else "links"
    return "\n".join([f"{kept} by {library}", _table(rows)])


def _link_row(link: Link) -> tuple[str, ...]:
    there, back = link.ways.values()
    rates = (rate_text(there.bytes_per_s), rate_text(back.bytes_per_s))
    return (link.name, *rates, latency_text(link.latency_s))


def _matrix(links: Sequence[Link], names: Sequence[str]) -> str:
    ways = {key: way for link in links for key, way in link.ways.items()}
    late = {frozenset(link.ends): link.latency_s for link in links}
    rows: list[tuple[str, ...]] = [("", *names)]
    for row in names:
        cells = [
            rate_text(ways[row, column].bytes_per_s) if (row, column) in ways else _DASH
            for column in names
        ]
        below = [
            latency_text(late[frozenset((row, column))])
            if row != column and frozenset((row, column)) in late
            else ""
            for column in names
        ]
        rows += [(row, *cells), ("", *below)]
    return _table(rows)


def _transports(record: Preflight) -> str:
    lines = [
        f"{library}: {', '.join(f'{key} {value}' for key, value in said.items())}"
        for library, said in record.transports.items()
        if said
    ]
    return "\n".join(lines)


def _more(record: Preflight) -> str:
    lines = [f"not measured: {text}" for text in record.absent]
    told = cautions(record.nodes)  # these are among the notes, and stand above
    lines += [f"note: {text}" for text in record.notes if text not in told]
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = row
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)
