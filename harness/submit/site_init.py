"""The draft of a site, made of what Slurm says; what it cannot say is a line to fill in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.config.yaml_dialect import dump
from harness.errors import ConfigError
from harness.slurm import Partition
from harness.submit.site import DEFAULT_TIME_S, time_text
from harness.submit.site_facts import Facts, Gpus, limit_s, parse_gres
from harness.submit.site_files import parse_site

_UNFIT = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True)
class _Nodes:
    """The kind of node that the draft is about, and all that the partition has."""

    kind: Partition
    kinds: tuple[Partition, ...]
    gpus: tuple[Gpus, ...]

    @property
    def of_job(self) -> int:
        return min(self.kind.nodes, self.kind.max_nodes or self.kind.nodes)

    @property
    def gpu_count(self) -> int:
        return sum(gpus.count for gpus in self.gpus)


def draft_site(facts: Facts, partition: str | None = None, name: str | None = None) -> str:
    """Return a site's file as text, with comments; reading it gives a site that can be used.

    Of several kinds of nodes it is about the most frequent. ConfigError where the partition is not
    clear, has no nodes, or there are no job arrays.
    """
    nodes = _chosen(facts.of(partition))
    if facts.max_array_size == 0:
        raise ConfigError("MaxArraySize is 0: this Slurm has no job arrays; ask who runs it")
    own_name = name or _UNFIT.sub("-", nodes.kind.name).strip("-._")[:64] or "site"
    blocks = (
        _head(nodes, facts),
        _identity(nodes, own_name, facts),
        _hardware(nodes),
        _launching(facts),
        _software(),
        _limits(nodes, facts),
    )
    text = "\n".join("".join(f"{line}\n" for line in block) for block in blocks)
    parse_site(text, "the draft")  # a name that was given may be none
    return text


def _chosen(kinds: Sequence[Partition]) -> _Nodes:
    """Take the most frequent kind; what nodes differ in for a site is CPUs and GPUs, not memory."""
    merged: dict[tuple[int, tuple[Gpus, ...]], Partition] = {}
    for kind in kinds:
        if not kind.nodes:
            continue
        key = (kind.cpus, parse_gres(kind.gres))
        before = merged.get(key)
        merged[key] = kind if before is None else _added(before, kind)
    if not merged:
        raise ConfigError(f"partition {kinds[0].name} has no nodes")
    # Of two kinds as frequent, the one with more GPUs, then CPUs.
    (_, gpus), kind = max(
        merged.items(), key=lambda item: (item[1].nodes, sum(g.count for g in item[0][1]), item[0])
    )
    return _Nodes(kind, tuple(merged.values()), gpus)


def _added(one: Partition, other: Partition) -> Partition:
    return replace(
        one,
        nodes=one.nodes + other.nodes,
        unusable_nodes=one.unusable_nodes + other.unusable_nodes,
        memory_mib=min(one.memory_mib, other.memory_mib),
    )


def _head(nodes: _Nodes, facts: Facts) -> Iterator[str]:
    cluster = f" of cluster {_plain(facts.cluster)}" if facts.cluster else ""
    version = f", Slurm {_plain(facts.version)}" if facts.version else ""
    yield f"# Drafted by hvdscale site init: partition {_plain(nodes.kind.name)}{cluster}{version}."
    yield "# Lines that begin with # and a key are what Slurm cannot know: fill in what you need."
    if not nodes.kind.available:
        yield "# The partition takes no jobs now (sinfo): it is down, drained or inactive."
    if len(nodes.kinds) > 1:
        total = sum(kind.nodes for kind in nodes.kinds)
        yield (
            f"# It has several kinds of nodes; this is about the most frequent, {nodes.kind.nodes} "
            f"of {total}. Set a"
        )
        yield "# constraint that only these have (scontrol show node), or jobs may get others:"
        for kind in sorted(nodes.kinds, key=lambda kind: -kind.nodes):
            yield f"#   {kind.nodes} x {kind.cpus} CPUs, {_plain(kind.gres) or 'no GRES'}"


def _identity(nodes: _Nodes, name: str, facts: Facts) -> Iterator[str]:
    where = _plain(f"{nodes.kind.name} of {facts.cluster}" if facts.cluster else nodes.kind.name)
    each = [f"{nodes.gpu_count} GPUs"] if nodes.gpus else []
    yield _line("name", name)
    yield _line("title", f"{where}: {', '.join([*each, f'{nodes.kind.cpus} CPUs'])} a node")
    yield _line("partition", nodes.kind.name)
    yield "#account: my-project"
    yield "#qos: normal"
    yield "#constraint: FEATURE"


def _hardware(nodes: _Nodes) -> Iterator[str]:
    kind = nodes.kind
    notes = ["the most that one job may have"]
    notes += ["the partition's limit"] if nodes.of_job < kind.nodes else []
    notes += [f"{kind.unusable_nodes} of them down or drained now"] if kind.unusable_nodes else []
    yield f"{_line('nodes', nodes.of_job)}  # {'; '.join(notes)}"
    yield _line("cpus_per_node", kind.cpus)
    yield _line("gpus_per_node", nodes.gpu_count)
    if len(nodes.gpus) > 1:
        types = ", ".join(f"{_plain(gpus.type) or 'untyped'}: {gpus.count}" for gpus in nodes.gpus)
        yield f"# GPUs of several types on a node ({types}); gpu:TYPE and its count take one."
    if nodes.gpus:
        single = nodes.gpus[0].type if len(nodes.gpus) == 1 else ""
        yield _line("gres", f"gpu:{single}" if single else "gpu")
    yield "exclusive: true  # whole nodes: neighbours disturb what is measured"
    yield "memory: 0  # all of a node"


def _launching(facts: Facts) -> Iterator[str]:
    if "pmix" in facts.mpi_plugins:
        yield "launcher: srun"
        yield "mpi: openmpi  # what the ranks are linked with: openmpi, mpich, intel or none"
    elif "pmi2" in facts.mpi_plugins:
        yield "# srun has no PMIx here, which Open MPI needs. For ranks of MPICH or Intel MPI:"
        yield "# launcher srun, and mpi mpich or intel."
        yield "launcher: mpirun"
        yield "mpi: openmpi"
    else:
        yield "# srun has neither PMIx nor PMI-2 here, so it starts no MPI program."
        yield "launcher: mpirun"
        yield "mpi: openmpi  # what the ranks are linked with: openmpi, mpich, intel or none"
    yield f"mpi_plugins: {dump(list(facts.mpi_plugins), flow=True)}"
    yield "#mpi_is_cuda_aware: true"
    yield "#interface: ib0  # that ranks meet over; to be named where a node has several"


def _software() -> Iterator[str]:
    yield "# Builds of Horovod for NCCL and for MPI, side by side; without these lines every"
    yield "# backend uses the Python that submits."
    yield "#python_by_backend:"
    yield "#  nccl: ~/envs/horovod-nccl/bin/python"
    yield "#  mpi-host: ~/envs/horovod-mpi/bin/python"
    yield "#setup:"
    yield "#  - module load MODULES"


def _limits(nodes: _Nodes, facts: Facts) -> Iterator[str]:
    limit = limit_s(nodes.kind)
    job_s = DEFAULT_TIME_S if limit is None else min(DEFAULT_TIME_S, limit)
    yield f"{_line('time_per_job', time_text(job_s))}  # as many points as fit make one job"
    if limit is None:
        yield "#max_time: 24:00:00  # the partition has no limit; your account may have"
    else:
        yield _line("max_time", time_text(limit))
    if facts.max_array_size is not None:
        yield _line("max_array_size", facts.max_array_size)
    yield "#scratch: $TMPDIR  # a folder of the node's own, for data"


def _line(key: str, value: object) -> str:
    """Return one line of YAML, the value quoted where it must be."""
    line = dump({key: value}).removesuffix("\n")
    # A long text is folded, but not in flow style, which has more quotes.
    return line if "\n" not in line else dump({key: value}, flow=True)[1:-1]


def _plain(text: str) -> str:
    """Return what another program said as part of a comment: one line, no control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)
