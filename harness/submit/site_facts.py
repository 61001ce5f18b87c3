"""What Slurm says of a cluster, as far as a site's file is about it; and where a site differs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness import slurm
from harness.detect import Mpi, parse_mpi_plugins
from harness.digits import whole
from harness.errors import ConfigError, did_you_mean
from harness.legal import slurm_mpi_plugin
from harness.slurm import Partition
from harness.submit.site import Site, parse_time_s, time_text


@dataclass(frozen=True)
class Facts:
    """Slurm's answers."""

    partitions: tuple[Partition, ...]
    mpi_plugins: tuple[str, ...]  # without "none"
    max_array_size: int | None  # 0: no job arrays; None: not said
    cluster: str = ""
    version: str = ""

    def of(self, partition: str | None) -> tuple[Partition, ...]:
        """Return a partition's kinds of nodes; ConfigError where it is not, or none is clear.

        None is the only partition there is.
        """
        names = list(dict.fromkeys(kind.name for kind in self.partitions))
        default = {kind.name for kind in self.partitions if kind.is_default}
        known = ", ".join(f"{name} (the default)" if name in default else name for name in names)
        if not names:
            raise ConfigError("sinfo names no partition; is this user allowed to use one?")
        if partition is None and len(names) > 1:
            raise ConfigError(f"several partitions, name one with --partition: {known}")
        chosen = names[0] if partition is None else partition
        if chosen not in names:
            near = did_you_mean(chosen, names)
            raise ConfigError(f"--partition {chosen}: Slurm has none such{near}; it has: {known}")
        return tuple(kind for kind in self.partitions if kind.name == chosen)


def ask_slurm() -> Facts:
    """Ask ``sinfo``, ``scontrol`` and ``srun``; MissingDependencyError where they are not here."""
    settings = slurm.settings()
    size = settings.get("MaxArraySize", "")
    plugins = parse_mpi_plugins(slurm.mpi_list())
    return Facts(
        partitions=slurm.partitions(),
        mpi_plugins=tuple(name for name in plugins if name != "none"),
        max_array_size=whole(size),
        cluster=settings.get("ClusterName", ""),
        version=settings.get("SLURM_VERSION", ""),
    )


@dataclass(frozen=True)
class Gpus:
    """GPUs of one type on a node; ``type`` is "" where GRES names none."""

    type: str
    count: int


def parse_gres(text: str) -> tuple[Gpus, ...]:
    """Read the GPUs of a node's GRES, ``gpu:a100:8(S:0-1),nvme:1``; other resources are left out.

    A count may be missing, which is 1, and follow ``no_consume``.
    """
    counts: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *more = part.strip().split(":")
        if name != "gpu":
            continue
        told = whole(more[-1]) if more else None
        count = 1 if told is None else told
        more = more if told is None else more[:-1]
        of_type = ":".join(word for word in more if word != "no_consume")
        counts[of_type] = counts.get(of_type, 0) + count
    return tuple(Gpus(of_type, count) for of_type, count in counts.items())


def limit_s(kind: Partition) -> int | None:
    """Return a partition's time limit in seconds, None where it has none."""
    try:
        return parse_time_s(kind.time_limit)
    except ValueError:
        return None  # "infinite", "n/a"


def differences(site: Site, facts: Facts) -> tuple[str, ...]:
    """Say in what Slurm knows otherwise than a site: jobs would be refused, wait, or differ."""
    name = site.partition
    if name is None:
        name = next((kind.name for kind in facts.partitions if kind.is_default), None)
        if name is None:
            return ("partition: none is named, and Slurm has no default partition",)
    try:
        kinds = facts.of(name)
    except ConfigError as error:
        return (str(error).replace("--partition", "partition"),)
    return (*_of_nodes(site, kinds), *_of_limits(site, kinds[0], facts))


def _of_nodes(site: Site, kinds: tuple[Partition, ...]) -> Iterator[str]:
    name = kinds[0].name
    if not kinds[0].available:
        yield f"partition: {name} takes no jobs now"
    fitting = [kind for kind in kinds if _cpus_fit(site, kind)]
    if not fitting:
        there = _several(kind.cpus for kind in kinds)
        yield f"cpus_per_node: {site.cpus_per_node}, but a node of {name} has {there}"
    if site.gpus_per_node:
        with_gpus = [kind for kind in fitting or kinds if _gpus(site, kind) >= site.gpus_per_node]
        if not with_gpus:
            there = _several(_gpus(site, kind) for kind in fitting or kinds)
            asked = f"{site.gpus_per_node} of {site.gres}"
            yield f"gpus_per_node: {asked}, but a node of {name} has {there}"
        fitting = [kind for kind in with_gpus if kind in fitting]
    most = sum(kind.nodes for kind in fitting)
    if fitting and site.nodes > most:
        yield f"nodes: {site.nodes}, but {name} has {most} such nodes"
    if fitting and len(fitting) < len(kinds) and site.constraint is None and _mixed(site, kinds):
        yield f"constraint: none, but {name} has several kinds of nodes, and jobs may get others"


def _mixed(site: Site, kinds: tuple[Partition, ...]) -> bool:
    """Say whether a job could get a node of another kind: those without the GPUs it cannot."""
    able = [kind for kind in kinds if _gpus(site, kind) >= site.gpus_per_node]
    return any(not _cpus_fit(site, kind) for kind in able)


def _cpus_fit(site: Site, kind: Partition) -> bool:
    # A whole node is seen with all its CPUs, of a shared one what was asked for.
    if site.exclusive:
        return kind.cpus == site.cpus_per_node
    return kind.cpus >= site.cpus_per_node


def _gpus(site: Site, kind: Partition) -> int:
    """Return how many GPUs a node has of what the site's ``gres`` names: a type, or any."""
    of_type = site.gres.partition(":")[2]
    return sum(gpus.count for gpus in parse_gres(kind.gres) if of_type in ("", gpus.type))


def _of_limits(site: Site, kind: Partition, facts: Facts) -> Iterator[str]:
    if kind.max_nodes is not None and site.nodes > kind.max_nodes:
        yield f"nodes: {site.nodes}, but a job of {kind.name} may have {kind.max_nodes}"
    limit = limit_s(kind)
    for key in ("time_per_job", "max_time"):
        asked_s = getattr(site, key)
        if limit is not None and asked_s is not None and asked_s > limit:
            yield f"{key}: {time_text(asked_s)}, but {kind.name} has a limit of {time_text(limit)}"
    if facts.max_array_size is not None and site.max_array_size > facts.max_array_size:
        yield f"max_array_size: {site.max_array_size}, but Slurm's is {facts.max_array_size}"
    plugin = slurm_mpi_plugin("horovod", Mpi(site.mpi, "", "mpirun"))
    if site.launcher == "srun" and site.mpi != "none" and plugin not in facts.mpi_plugins:
        there = ", ".join(facts.mpi_plugins) or "none"
        yield f"launcher: srun, but it lacks {plugin}, which {site.mpi} needs; it has: {there}"


def _several(counts: Iterator[int]) -> str:
    return " or ".join(str(count) for count in sorted(set(counts)))
