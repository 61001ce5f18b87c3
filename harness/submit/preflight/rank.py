"""The program on every node: ``python -m harness.submit.preflight.rank TASK``.

It imports no framework. What does runs in programs below it, so that a node whose torch, driver or
MPI crashes still says so, by name and with its last lines, and no launcher ends the other nodes
for it: this one always ends with 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness import watchdog
from harness.detect import detect_gpus, usable_cores
from harness.errors import HarnessError
from harness.provenance import load
from harness.provenance.notes import Notes
from harness.ranks import RankPlace, find_place
from harness.runner.logs import TAIL_LINES, read_tail
from harness.store import write_atomic
from harness.submit.preflight import clocks, facts
from harness.submit.preflight.answers import (
    Trained,
    log_path,
    read_trained,
    ready_path,
    report_path,
    trained_path,
)
from harness.submit.preflight.naming import node_name
from harness.submit.preflight.plan import Task
from harness.submit.preflight.record import NodeReport
from harness.submit.preflight.transports import VERBOSE
from harness.tuning import THREADS

_PACKAGE = "harness.submit.preflight"
_INLINE = RankPlace("inline", 0, 1, 0, 1)
_END_S = 30.0  # for a program that is asked to end


@dataclass
class Child:
    """A program of this node, and where it prints to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    late: bool = False  # the time limit ended it

    def fault(self) -> str:
        """Return what went wrong with it; "" where it ended well."""
        code = self.process.poll()
        if self.late or code is None:
            return f"{self.name} did not end in time"
        if code < 0:
            return f"{self.name} was ended by signal {-code}"
        return f"{self.name} ended with {code}" if code else ""


def main(path: Path) -> int:
    """Do this node's part of the task."""
    place = find_place(os.environ) or _INLINE
    try:
        task = Task.read(path)
        watchdog.start(task.timeout_s)
        (_speed if task.stage == "speed" else _links)(task, path, place)
    except (HarnessError, OSError) as error:
        # The launcher's log is all there is where the shared folder is not.
        print(f"preflight, rank {place.rank}: {error}", file=sys.stderr, flush=True)
    return 0


def _speed(task: Task, path: Path, place: RankPlace) -> None:
    """Train on every device at once, watch their clocks, and say what this node is."""
    notes = Notes()
    before = notes.take("load", load.collect)
    report = NodeReport(
        node=node_name(task.nodes, place), cores=usable_cores(), load_1min=before.get("load_1min")
    )
    _write(task, place, report.model_copy(update={"error": "its program did not come to an end"}))
    count = len(detect_gpus()) if task.resolved.device == "cuda" else 1
    sampler = clocks.sampler(task.resolved.device, notes)
    threads = dict.fromkeys(THREADS, str(task.resolved.cores_per_rank))
    children = [
        _start(
            f"training on device {device}",
            "speed",
            log_path(task.folder, "speed", f"{place.rank}-{device}"),
            (path, place.rank, device),
            threads,
        )
        for device in range(count)
    ]

    def meanwhile() -> None:
        sampler.sample()
        _let_others_go(task, place, children)

    _wait(children, task.timeout_s, meanwhile)
    _let_others_go(task, place, children)
    faults = [fault for child in children if (fault := child.fault())]
    if not count:
        faults = ["nvidia-smi shows no GPU here"]
    trained = _trained(task, place.rank, count)
    found = facts.collect([one.uuid for one in trained if one.uuid], notes)
    for one in trained:
        found |= one.facts
    fields = {
        "facts": found,
        "speeds": tuple(one.speed for one in trained),
        "clocks": sampler.clocks(),
        "error": "; ".join(faults),
        "tail": _tail(children),
        "notes": tuple(notes.lines),
    }
    _write(task, place, report.model_copy(update=fields))


def _let_others_go(task: Task, place: RankPlace, children: Sequence[Child]) -> None:
    """Let no device wait for one whose program has failed."""
    for device, child in enumerate(children):
        if child.process.poll():
            ready_path(task.folder, place.rank, device).touch()


def _trained(task: Task, rank: int, count: int) -> list[Trained]:
    found = (read_trained(trained_path(task.folder, rank, device)) for device in range(count))
    return [one for one in found if one is not None]


def _links(task: Task, path: Path, place: RankPlace) -> None:
    """Let another program measure this node's links, and say how it ended."""
    report = NodeReport(node=node_name(task.nodes, place))
    log = log_path(task.folder, "links", str(place.rank))
    child = _start("its program", "links", log, (path,), VERBOSE[task.stage])
    _wait([child], task.timeout_s)
    report = report.model_copy(update={"error": child.fault(), "tail": _tail([child])})
    _write(task, place, report)


def _write(task: Task, place: RankPlace, report: NodeReport) -> None:
    write_atomic(report_path(task.folder, place.rank), report.model_dump_json().encode())


def _start(
    title: str, program: str, log: Path, arguments: Sequence[object], env: Mapping[str, str]
) -> Child:
    argv = [sys.executable, "-P", "-m", f"{_PACKAGE}.{program}", *map(str, arguments)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    return Child(title, process, log)


def _wait(
    children: Sequence[Child], timeout_s: float, meanwhile: Callable[[], None] | None = None
) -> None:
    """Wait for all, and end those that the time limit finds; ``fault`` then still says so."""
    deadline = time.monotonic() + timeout_s
    while any(child.process.poll() is None for child in children):
        if time.monotonic() > deadline:
            break
        if meanwhile is not None:
            meanwhile()
        time.sleep(clocks.PERIOD_S)
    for child in children:
        if child.process.poll() is None:
            child.late = True
            child.process.kill()
            with suppress(subprocess.TimeoutExpired):  # ``fault`` says that it was late
                child.process.wait(_END_S)


def _tail(children: Sequence[Child]) -> tuple[str, ...]:
    """Return the last lines of the first program that failed; none where all went well."""
    failed = [child for child in children if child.fault()]
    return read_tail(failed[0].log)[-TAIL_LINES:] if failed else ()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
