"""One stage of a preflight: a program on each node, started, waited for, and ended whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.config import RunConfig
from harness.detect import Machine
from harness.errors import HarnessError, LaunchError
from harness.launch import build
from harness.legal import resolve
from harness.runner.interrupts import Interrupts
from harness.runner.launcher import Ending, Guard, new_launch_id, run_launch
from harness.runner.logs import TAIL_LINES, read_tail
from harness.spec import Resolved
from harness.store.files import named_errors
from harness.submit.preflight import plan
from harness.submit.preflight.answers import (
    Linked,
    linked_path,
    log_path,
    read_linked,
    read_report,
    report_path,
)
from harness.submit.preflight.asking import of_nodes, starting_config
from harness.submit.preflight.plan import Limits, Rounds, Task
from harness.submit.preflight.record import Finding, NodeReport, Way
from harness.submit.preflight.transports import of_stage
from harness.submit.preflight.versions import listed
from harness.watchdog import RUNNER_PID

_AFTER_S = 30.0  # for the launcher, when the programs' own time limit is over
_FIRST_PORT, _PORTS = 20_000, 12_000  # below Linux's range of ephemeral ports
PROGRAM = "harness.submit.preflight.rank"


class StoppedError(LaunchError):
    """The user asked to stop."""

    exit_code = 130


@dataclass(frozen=True)
class Place:
    """What all stages of a preflight share."""

    machine: Machine
    folder: Path  # of this preflight's stages, absolute, shared by the nodes
    data_dir: Path
    config: RunConfig  # of one device
    resolved: Resolved
    limits: Limits
    guard: Guard
    interrupts: Interrupts
    tell: Callable[[str], object]


@dataclass(frozen=True)
class Outcome:
    """What came of a stage."""

    folder: Path
    launcher: str
    reports: tuple[NodeReport, ...]  # of every node that was asked, in their order
    answers: tuple[Linked | None, ...]  # the same, of links
    failed: Finding | None  # the stage as a whole

    def ways(self) -> tuple[Way, ...]:
        """Return the links, their ends by the nodes' names."""
        names = [
            answer.node if answer is not None else report.node
            for answer, report in zip(self.answers, self.reports, strict=True)
        ]
        return tuple(
            way.model_copy(
                update={"source": names[int(way.source)], "target": names[int(way.target)]}
            )
            for answer in self.answers
            if answer is not None
            for way in answer.ways
        )

    def transports(self, stage: str) -> dict[str, str]:
        """Return what moved the bytes, by its own words."""
        there = [(rank, one) for rank, one in enumerate(self.answers) if one is not None]
        logs = (log_path(self.folder, "links", str(rank)) for rank, _ in there)
        texts = [log.read_text(errors="replace") if log.exists() else "" for log in logs]
        return of_stage(stage, [one for _, one in there], texts)


def run_stage(
    place: Place,
    stage: plan.Stage,
    nodes: Sequence[str],
    *,
    look: int = 0,
    rounds: Rounds = (),
) -> Outcome:
    """Run a stage on ``nodes``; whatever becomes of it is in the outcome.

    StoppedError where the user interrupts, StoreError where the folder cannot be written.
    """
    folder = place.folder / f"{stage}-{look}"
    with named_errors(folder, "made"):
        folder.mkdir(parents=True)
    task = _task(place, stage, nodes, folder, look, rounds)
    task_file = folder / "task.json"
    task.write(task_file)
    launcher, ending = _launch(place, task, task_file)
    if ending.interrupted:
        raise StoppedError("preflight: interrupted; nothing is kept")
    os.listdir(folder)  # a network file system then looks for what the nodes have written
    said = [read_report(report_path(folder, rank)) for rank in range(len(nodes))]
    tail = read_tail(folder / "launcher.log")[-TAIL_LINES:]
    reports = tuple(
        report or NodeReport(node=node, error=_silent(ending), tail=tail)
        for node, report in zip(nodes, said, strict=True)
    )
    answers = tuple(read_linked(linked_path(folder, rank)) for rank in range(len(nodes)))
    failed = None if any(said) else _nothing(stage, nodes, ending, tail)
    return Outcome(folder, launcher, reports, answers, failed)


def _task(
    place: Place, stage: plan.Stage, nodes: Sequence[str], folder: Path, look: int, rounds: Rounds
) -> Task:
    limits = place.limits
    timeout_s = (
        plan.speed_timeout_s(limits) if stage == "speed" else plan.links_timeout_s(limits, rounds)
    )
    cuda = place.machine.device == "cuda"
    return Task(
        stage=stage,
        look=look,
        nodes=tuple(nodes),
        folder=folder,
        config=place.config,
        resolved=place.resolved,
        data_dir=place.data_dir,
        devices=place.machine.hosts[0].slots if cuda else 1,
        rounds=rounds,
        port=_FIRST_PORT + secrets.randbelow(_PORTS),
        limits=limits,
        timeout_s=timeout_s,
    )


def _launch(place: Place, task: Task, task_file: Path) -> tuple[str, Ending]:
    launcher = ""
    try:
        machine = of_nodes(place.machine, task.nodes)
        config = starting_config(machine, task.nodes, task.stage)
        resolved = resolve(config, machine)
        launcher = resolved.launcher
        made = build(
            config,
            machine,
            str(task_file),
            resolved,
            timeout_s=task.timeout_s,
            program=("-m", PROGRAM, str(task_file)),
        )
    except HarnessError as error:
        return launcher, Ending(exit_code=None, wall_s=0.0, start_error=str(error))
    here = {RUNNER_PID: str(os.getpid())} if launcher == "inline" else {}
    ending = run_launch(
        made.argv,
        {**made.env, **here},
        new_launch_id(),
        task.folder / "launcher.log",
        task.timeout_s + _AFTER_S,
        place.guard,
        place.interrupts,
    )
    return launcher, ending


def _silent(ending: Ending) -> str:
    if ending.timed_out:
        return "its program wrote nothing until the time was up"
    return "its program wrote nothing: it was not started, or --results is not shared with it"


def _nothing(stage: str, nodes: Sequence[str], ending: Ending, tail: Sequence[str]) -> Finding:
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    why = ending.start_error or last or f"the launcher ended with {ending.exit_code}"
    return Finding(
        kind="failed",
        nodes=tuple(nodes),
        text=f"{stage}: no program was started on any node: {why}",
        tail=tuple(tail),
    )


def link_faults(stage: str, outcome: Outcome) -> list[Finding]:
    """Return why links could not be measured, nodes with one reason together."""
    if outcome.failed is not None:
        return [outcome.failed]
    groups: dict[str, list[NodeReport]] = {}
    for report in outcome.reports:
        if report.error:
            groups.setdefault(_reason(report), []).append(report)
    return [
        Finding(
            kind="failed",
            nodes=tuple(report.node for report in reports),
            text=(
                f"{stage}: the links of {listed([report.node for report in reports])} could not "
                f"all be measured: {reason}"
            ),
            tail=reports[0].tail,
        )
        for reason, reports in groups.items()
    ]


def _reason(report: NodeReport) -> str:
    """Return the program's own word, which is its last, or how it ended."""
    said = [line.strip() for line in report.tail if line.strip().startswith("preflight:")]
    return said[-1].removeprefix("preflight: ") if said else report.error


def with_answers(reports: Sequence[NodeReport], outcome: Outcome) -> tuple[NodeReport, ...]:
    """Return the nodes' reports with the interface that their links went by."""
    known = {one.node: one for one in outcome.answers if one is not None and one.interface}
    return tuple(
        report.model_copy(
            update={
                "interface": f"{known[report.node].interface} {known[report.node].address}",
                "interface_bits_per_s": known[report.node].interface_bits_per_s,
            }
        )
        if report.node in known
        else report
        for report in reports
    )


def with_look(reports: Sequence[NodeReport], again: Outcome) -> tuple[NodeReport, ...]:
    """Return the nodes' reports with the blocks of a second look behind the first ones."""
    second = {one.node: {speed.device: speed for speed in one.speeds} for one in again.reports}
    found = []
    for report in reports:
        more = second.get(report.node, {})
        speeds = tuple(
            speed.model_copy(
                update={"looks_step_s": (*speed.looks_step_s, *more[speed.device].looks_step_s)}
            )
            if speed.device in more
            else speed
            for speed in report.speeds
        )
        found.append(report.model_copy(update={"speeds": speeds}))
    return tuple(found)
