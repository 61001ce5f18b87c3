"""From what is missing to job arrays and their elements. Pure: writes nothing, asks nobody.

A job array has one node count and one time limit, so each placement has an array of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from harness import __version__
from harness.config.identity import point_id
from harness.config.placement import Placement
from harness.runner.schedule import Work
from harness.submit.manifest import ArrayManifest, Element
from harness.submit.packing import Chunk, Packer, Wanted
from harness.submit.site import Site


def wanted(work: Work, *, shared_base: bool = False) -> Wanted:
    """Return what jobs are to launch; with ``shared_base`` none has a base of its own."""
    plan = work.plan
    timelines = {point_id(config): config for config in plan.timelines}
    objects = {id(base): base for base in plan.bases if base is not None}  # many points share one
    ids = {key: point_id(base) for key, base in objects.items()}
    base_ids = frozenset(ids.values())
    if shared_base:
        launches = {point_id(config): config for config in plan.launches}
        return Wanted(launches, timelines, {}, {}, base_ids, shared_base=True)
    names = [point_id(config) for config in plan.points]
    bases = {ids[key]: base for key, base in objects.items()}
    base_of = {
        name: ids[id(base)]
        for name, base in zip(names, plan.bases, strict=True)
        if base is not None
    }
    points = dict(zip(names, plan.points, strict=True))
    return Wanted(points, timelines, bases, base_of, base_ids, shared_base=False)


def make_arrays(
    work: Work,
    site: Site,
    asked: Wanted,
    missing: Mapping[int, Sequence[str]],
    *,
    submission: str,
    data_dir: Path,
    points_per_job: int | None = None,
) -> tuple[ArrayManifest, ...]:
    """Return the job arrays of what is missing: ids of ``asked`` by repeat (from 0).

    Every missing launch is in exactly one element, beside the bases of its points. ConfigError
    where not even one point fits into the site's time for a job.
    """
    chunks: dict[tuple[int, ...], list[Chunk]] = {}
    packer = Packer(work, site, asked, points_per_job)
    for repeat in sorted(missing):
        for placement, names in _by_placement(work, missing[repeat]).items():
            chunks.setdefault(placement, []).extend(packer.pack(repeat, names))
    slices = [
        (placement, found[start : start + site.max_array_size])
        for placement, found in chunks.items()
        for start in range(0, len(found), site.max_array_size)
    ]
    return tuple(
        _array(work, site, asked, placement, part, number, submission, data_dir)
        for number, (placement, part) in enumerate(slices)
    )


def check_times(work: Work, site: Site, asked: Wanted, points_per_job: int | None = None) -> None:
    """Raise ConfigError where elements would not fit into a job of the site.

    As ``make_arrays`` would, of all launches: whoever asks has not yet looked at what is missing.
    """
    names = (*asked.points, *asked.timelines)
    if points_per_job is not None:
        packer = Packer(work, site, asked, points_per_job)
        for together in _by_placement(work, names).values():
            list(packer.pack(0, together))
        return
    packer = Packer(work, site, asked, 1)
    seen: set[tuple[float, float]] = set()
    for name in names:
        base = asked.base_of.get(name)
        times = (packer.time_s(name), packer.time_s(base) if base else 0.0)
        if times not in seen:  # thousands of points have a handful of times
            seen.add(times)
            list(packer.pack(0, [name]))


def placement_text(devices: Sequence[int]) -> str:
    """Return ``2x4``, ``8+2``."""
    return str(Placement(sum(devices), tuple(devices)))


def _by_placement(work: Work, names: Iterable[str]) -> dict[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        found.setdefault(work.plan.resolved[name].placement, []).append(name)
    return found


def _array(
    work: Work,
    site: Site,
    asked: Wanted,
    placement: tuple[int, ...],
    chunks: Sequence[Chunk],
    number: int,
    submission: str,
    data_dir: Path,
) -> ArrayManifest:
    all_of = {**asked.bases, **asked.points, **asked.timelines}
    used = dict.fromkeys(
        name for chunk in chunks for name in (*chunk.bases, *chunk.points, *chunk.timelines)
    )
    place = {name: index for index, name in enumerate(used)}
    resolved = tuple(work.plan.resolved[name] for name in used)
    return ArrayManifest(
        version=__version__,
        sweep=work.sweep.name,
        submission=submission,
        number=number,
        site=site,
        results=work.folder,
        data_dir=data_dir,
        placement=placement,
        devices=_room(one.placement for one in resolved),
        time_limit_s=max(chunk.limit_s for chunk in chunks),
        timeout_s=work.sweep.measure.timeout_s,
        training=work.training,
        sequential=work.ci_target is not None,
        shared_base=asked.shared_base,
        bases=tuple(place[name] for name in used if name in asked.base_ids),
        configs=tuple(all_of[name] for name in used),
        resolved=resolved,
        elements=tuple(
            Element(
                repeat=chunk.repeat,
                points=tuple(place[name] for name in chunk.points),
                bases=tuple(place[name] for name in chunk.bases),
                timelines=tuple(place[name] for name in chunk.timelines),
            )
            for chunk in chunks
        ),
    )


def _room(placements: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return devices per node that all of them fit on, node by node."""
    return tuple(max(node) for node in zip_longest(*set(placements), fillvalue=0))
