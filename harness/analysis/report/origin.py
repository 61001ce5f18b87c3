"""Where the numbers come from: dates, machines, versions, configs, and how intervals are made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from harness.analysis.match import flat
from harness.analysis.report.document import (
    Block,
    Bullets,
    Column,
    Details,
    Paragraph,
    Table,
    counted,
    text_cell,
)
from harness.analysis.report.jobs import allocation_blocks
from harness.analysis.results import Results
from harness.analysis.unlike import SETTINGS, differences
from harness.stats import SEQUENTIAL_NOTE

_KEYS = 40  # that differ
_ARRAY = ("array_job_id", "array_task_id")
#: What a reader looks for first, and how it is called.
_FIRST = {
    "cpu_model": "CPU", "cores": "Cores of a node", "gpu.model": "GPU", "gpu.driver": "GPU driver",
    "kernel": "Linux kernel", "python": "Python", "harness.version": "hvdscale",
    "versions.torch": "torch", "versions.tensorflow": "TensorFlow", "horovod.version": "Horovod",
    "nccl.version": "NCCL", "mpi.library": "MPI",
}  # fmt: skip
#: Facts that say what another one says, where that is there.
_TOLD_TWICE = {
    "packages.torch": "versions.torch", "packages.tensorflow": "versions.tensorflow",
    "packages.horovod": "horovod.version", "versions.horovod": "horovod.version",
    "packages.hvdscale": "harness.version",
}  # fmt: skip


def machine_blocks(results: Results) -> Iterator[Block]:
    """Yield the allocations, what all launches share, and what differs between them."""
    yield from allocation_blocks(results)
    texts = [text for text in results.table["provenance"].to_pylist() if text]
    if not texts:
        yield Paragraph("No record tells of its machine or software.")
        return
    differing = differences(texts)
    shared = {key: value for key, value in _shared(texts).items() if key not in differing}
    known = [(word, shared[key]) for key, word in _FIRST.items() if key in shared]
    told = {key for key, twin in _TOLD_TWICE.items() if twin in shared}
    rest = sorted(item for item in shared.items() if item[0] not in {*_FIRST, *told})
    yield _facts("Machine and software of all launches", known)
    if rest:
        table = _facts("Further facts that all launches share", rest)
        yield Details(f"{counted(len(rest), 'further fact')} that all launches share", (table,))
    if not differing:
        yield Paragraph(
            "Nothing that is compared differs between launches: hardware, versions, settings."
        )
        return
    yield Paragraph("What differs between launches, with the number of launches of each value:")
    yield Bullets(tuple(_differing(differing)))


def _shared(texts: list[str]) -> dict[str, str]:
    """Return every fact that any launch has; where they differ, any of its values."""
    found: dict[str, str] = {}
    for text in Counter(texts):
        for key, value in json.loads(text).items():
            if key == SETTINGS:
                found |= {f"environment.{name}": str(inner) for name, inner in value.items()}
            else:
                found[key] = str(value)
    return found


def _facts(caption: str, pairs: list[tuple[str, str]]) -> Table:
    head = (Column("Fact", numeric=False), Column("Value", numeric=False))
    return Table(caption, head, tuple((text_cell(a), text_cell(b)) for a, b in pairs))


def _differing(found: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for key, counts in list(found.items())[:_KEYS]:
        values = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
        shown = "; ".join(f"{value} ({count:,})" for value, count in values[:6])
        yield f"{_FIRST.get(key, key)}: {shown}" + ("; …" if len(values) > 6 else "")
    if len(found) > _KEYS:
        yield f"{counted(len(found) - _KEYS, 'more key')}: see hvdscale collect --mixed"


def config_blocks(results: Results) -> Iterator[Block]:
    """Yield what tells the curves' configs apart, and what they share."""
    configs = {curve.label: flat(curve.config) for curve in results.curves}
    if not configs:
        return
    keys = sorted({key for one in configs.values() for key in one} - {"placement"})
    values = {key: _values(key, list(configs.values())) for key in keys}
    apart = [key for key in keys if len(values[key]) > 1]
    common = [(key, next(iter(values[key])) or "") for key in keys if len(values[key]) == 1]
    if apart:
        head = (Column("Curve", numeric=False), *(Column(key, numeric=False) for key in apart))
        rows = tuple(
            (text_cell(label), *(text_cell(one.get(key)) for key in apart))
            for label, one in configs.items()
        )
        yield Table("Configs: what differs between curves", head, rows)
    table = _facts("Config keys that all curves share", common)
    count = counted(len(common), "config key")
    yield Details(f"{count} that all curves share, defaults included", (table,))


def _values(key: str, configs: list[dict[str, str]]) -> set[str | None]:
    """Return the values of a key; curves of another engine have no tuning, which is no value."""
    if key.startswith("horovod."):
        configs = [one for one in configs if key in one]
    return {one.get(key) for one in configs}


def interval_blocks(results: Results) -> Iterator[Block]:
    """Yield how intervals are made, in the words of the metrics' definitions."""
    texts = [
        "The unit of repetition is the block: one launch of the base and of every point in one "
        "allocation, in shuffled order. Point and base are paired inside a block, so what slows a "
        "whole block down cancels.",
        "S is the geometric mean over blocks of throughput / throughput of the base; its interval "
        "is Student's t of the mean of the logarithms. Where there are several allocations each "
        "counts once. One block has no interval.",
        "± beside a time is half of its interval over blocks.",
    ]
    points = [point for curve in results.curves for point in curve.points]
    if any(point.apart for point in points):
        texts.append(
            "Where no block has both a point and its base, S is the ratio of their geometric means "
            "over blocks of their own, and its interval Welch's: what differs between those blocks "
            "does not cancel."
        )
    methods = sorted({p.throughput_samples_per_s.method for p in points})
    if methods:
        texts.append(f"Here: {'; '.join(methods)}.")
    checked = sum(point.check is not None for point in points)
    if checked:
        texts.append(
            f"{counted(checked, 'point')} {'has' if checked == 1 else 'have'} a signed-rank "
            "interval, too, which assumes no normal distribution: hvdscale collect prints it."
        )
    if any(point.sequential for point in points):
        texts.append(f"{SEQUENTIAL_NOTE.capitalize()}.")
    yield Bullets(tuple(texts))
