"""``hvdscale preflight`` from the runner's side: stages in their order, then what they say.

A node that fails in the first stage is left out of the others. Whatever looks ill is measured a
second time before it is named: nodes all together again, links one by one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.clock import utc_now
from harness.config import RunConfig, Sweep
from harness.detect import Machine
from harness.errors import ConfigError
from harness.legal import resolve
from harness.paths import default_data_dir
from harness.runner.interrupts import interrupts
from harness.runner.launcher import Guard
from harness.store.files import named_errors
from harness.submit.preflight import stages
from harness.submit.preflight.asking import no_mpi, trained_config
from harness.submit.preflight.judge import judge, slow_nodes
from harness.submit.preflight.judge_links import suspects
from harness.submit.preflight.plan import Limits, Stage, one_by_one, rounds_of
from harness.submit.preflight.record import FOLDER, Finding, NodeReport, Preflight, Way
from harness.submit.preflight.stages import Outcome, Place, StoppedError, run_stage
from workloads import registry

_SECOND_LOOKS = 16  # links at most: more of them is no accident

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Written:
    """A record and its file."""

    record: Preflight
    path: Path


@dataclass
class _Found:
    """What the stages have brought so far."""

    nodes: tuple[NodeReport, ...] = ()
    links: tuple[Way, ...] = ()
    launcher: str = ""
    nothing_ran: bool = False
    transports: dict[str, dict[str, str]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    failed: list[Finding] = field(default_factory=list)


def run_preflight(
    machine: Machine,
    results: Path,
    *,
    sweep: Sweep | None = None,
    workload: str | None = None,
    nodes: int | None = None,
    data_dir: Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    tell: Tell = lambda _: None,
) -> Written:
    """Measure the nodes of ``machine`` (the first ``nodes`` of them), judge, and keep the result.

    Raises ConfigError, ValidationError or WorkloadError for what cannot be asked, StoreError where
    nothing can be written, StoppedError where the user interrupts. What fails on a node is a
    finding.
    """
    hosts = _hosts(machine, nodes)
    config = trained_config(sweep, workload, machine.device)
    started_at, stamp = utc_now(), datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    home = results.absolute() / (sweep.name if sweep is not None else "") / FOLDER
    folder = _claimed(home, stamp)
    data_dir = data_dir or default_data_dir()
    registry.create(config.workload.name, config.workload.options, data_dir).prepare()
    with ExitStack() as stack:
        stop, guard = stack.enter_context(interrupts()), stack.enter_context(Guard())
        resolved = resolve(config, machine)
        place = Place(machine, folder, data_dir, config, resolved, limits, guard, stop, tell)
        try:
            found = _measured(place, hosts)
        except StoppedError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    record = _record(found, machine, config, sweep, started_at)
    path = folder.with_name(f"{folder.name}.json")
    record.write(path)
    if not any(one.kind in ("failed", "dead-node", "dead-link") for one in record.findings):
        shutil.rmtree(folder, ignore_errors=True)  # logs that nobody needs; the samples are kept
    return Written(record, path)


def _hosts(machine: Machine, nodes: int | None) -> tuple[str, ...]:
    names = tuple(host.name for host in machine.hosts)
    if nodes is not None and nodes > len(names):
        raise ConfigError(f"--nodes {nodes}: there are {len(names)} here ({', '.join(names)})")
    return names[:nodes]


def _claimed(home: Path, stamp: str) -> Path:
    with named_errors(home, "made"):
        home.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = home / (stamp if number == 1 else f"{stamp}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    raise ConfigError(f"{home}: too many preflights at once")


def _measured(place: Place, hosts: Sequence[str]) -> _Found:
    found = _Found()
    _speeds(place, hosts, found)
    alive = [one.node for one in found.nodes if not one.error]
    if len(hosts) == 1:
        found.absent.append("links: there is one node, so there are none")
    elif len(alive) < 2:
        found.absent.append("links: there are no two nodes left to measure them between")
    else:
        _links(place, "gloo", alive, found)
        if place.machine.device == "cuda":
            _links(place, "nccl", alive, found)
        if reason := no_mpi(place.machine):
            found.absent.append(reason)
        else:
            _links(place, "mpi", alive, found)
    return found


def _speeds(place: Place, hosts: Sequence[str], found: _Found) -> None:
    name = place.config.workload.name
    place.tell(f"training {name} on {_count(hosts, 'node')}")
    outcome = run_stage(place, "speed", hosts)
    found.launcher, found.nodes = outcome.launcher, outcome.reports
    if outcome.failed is not None:
        found.failed.append(outcome.failed)
        found.nothing_ran = True
        return
    if slow_nodes(found.nodes, name):
        alive = [one.node for one in found.nodes if not one.error]
        place.tell("a second look at the nodes: their speeds differ")
        found.nodes = stages.with_look(found.nodes, run_stage(place, "speed", alive, look=1))


def _links(place: Place, stage: Stage, nodes: Sequence[str], found: _Found) -> None:
    rounds = rounds_of(len(nodes))
    place.tell(f"measuring {_count([p for r in rounds for p in r], 'link')} by {stage}")
    outcome = run_stage(place, stage, nodes, rounds=rounds)
    found.failed += stages.link_faults(stage, outcome)
    found.transports[stage] = outcome.transports(stage)
    found.nodes = stages.with_answers(found.nodes, outcome)
    ways = outcome.ways()
    found.links += ways + _second_look(place, stage, nodes, outcome, ways, found)


def _second_look(
    place: Place,
    stage: Stage,
    nodes: Sequence[str],
    first: Outcome,
    ways: Sequence[Way],
    found: _Found,
) -> tuple[Way, ...]:
    nominal = {one.node: one.interface_bits_per_s for one in found.nodes}
    odd = suspects(ways, nominal)
    if not odd or len(odd) > _SECOND_LOOKS or any(one.error for one in first.reports):
        return ()
    ranks = {node: rank for rank, node in enumerate(nodes)}
    pairs = sorted(tuple(sorted(ranks[node] for node in pair)) for pair in odd)
    place.tell(f"a second look at {_count(pairs, 'link')}, one by one")
    rounds = one_by_one([(low, high) for low, high in pairs])
    again = run_stage(place, stage, nodes, look=1, rounds=rounds)
    return again.ways()


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _record(
    found: _Found, machine: Machine, config: RunConfig, sweep: Sweep | None, started_at: str
) -> Preflight:
    findings, notes = judge(found.nodes, found.links, config.workload.name)
    if found.nothing_ran:  # that is one thing, and not one for every node
        findings = tuple(one for one in findings if one.kind != "dead-node")
    return Preflight(
        version=harness.__version__,
        sweep=sweep.name if sweep is not None else None,
        started_at=started_at,
        ended_at=utc_now(),
        allocation=machine.allocation,
        launcher=found.launcher,
        device="cuda" if machine.device == "cuda" else "cpu",
        config=config,
        nodes=found.nodes,
        links=found.links,
        transports=found.transports,
        absent=tuple(found.absent),
        findings=(*found.failed, *findings),
        notes=notes,
    )
