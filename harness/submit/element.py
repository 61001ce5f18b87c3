"""One element of a job array, inside its job: ``hvdscale run-point MANIFEST INDEX``.

It does what the manifest froze, or records why it cannot. Hundreds of elements share the results
folder: none waits for another, and each writes files that only it writes.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.clock import utc_now
from harness.config.identity import point_id, run_id
from harness.config.models import RunConfig
from harness.detect import Machine, detect_machine
from harness.digits import whole
from harness.errors import ConfigError, HarnessError, StoreError
from harness.record import RunRecord
from harness.runner.cleaning import cleaned
from harness.runner.interrupts import Interrupts
from harness.runner.labels import launch_labels
from harness.runner.launcher import Guard
from harness.runner.own_base import Part, part_launches
from harness.runner.point import Done, Place, launch_point
from harness.runner.progress import Report
from harness.runner.running import Launch, Running
from harness.runner.schedule import Planned, allocations
from harness.runner.stale import differences
from harness.runner.sweep import Summary, summary
from harness.spec import Resolved
from harness.store import Store, write_atomic
from harness.store.reading import Decided
from harness.submit.manifest import ASKED_TO_END, ArrayManifest, Element
from harness.validate import check_point

SCHEMA_VERSION = 1
FOLDER = Path("slurm", "elements")  # below a sweep's folder


def run_element(
    path: Path,
    index: int,
    report: Report,
    *,
    machine: Machine | None = None,
    launch: Launch = launch_point,
) -> Summary:
    """Run what is missing of element ``index`` (from 0) of the manifest at ``path``.

    Raises ConfigError for an index that the array does not have, StoreError where the manifest is
    not what was submitted, or the results cannot be written.
    """
    manifest = ArrayManifest.read(path)
    if not 0 <= index < len(manifest.elements):
        raise ConfigError(
            f"{path}: has elements 0 to {len(manifest.elements) - 1}, and no element {index}"
        )
    machine = machine or detect_machine()
    with cleaned(machine, report, manifest.data_dir):
        return _ElementRun(manifest, index, machine, report, launch).run()


class _ElementRun:
    """One element on one machine."""

    def __init__(
        self, manifest: ArrayManifest, index: int, machine: Machine, report: Report, launch: Launch
    ) -> None:
        self._manifest = manifest
        self._machine = machine
        self._report = report
        self._store = Store.open(manifest.results, create=True)
        self._progress = _Progress(manifest, index, machine)
        self._launch = launch
        self._element = manifest.elements[index]
        self._labels = _labels(manifest, self._element)

    def run(self) -> Summary:
        """Run the element's launches; what becomes of them is in the store."""
        manifest = self._manifest
        place = Place(self._machine, self._store, manifest.data_dir, manifest.timeout_s)
        running = Running(place, self._report, self._told, self._labels, _no_check)
        launches = list(self._launches())
        running.look_at(one.run_id for one in launches)
        left = sum(1 for one in launches if one.run_id not in running.done)
        self._report.begin(manifest.sweep, len(launches), len(launches) - left)
        self._progress.write()
        try:
            running.run(launches, launches)
        except BaseException as error:
            with suppress(StoreError):  # told is what went wrong first
                known = isinstance(error, HarnessError)
                self._progress.end(str(error) if known else type(error).__name__)
            raise
        try:
            asked = ASKED_TO_END if running.ended_by_user else ""
            self._progress.end("time limit" if running.time_was_near else asked)
        except StoreError as error:  # what was measured is kept all the same
            self._report.note(str(error))
        return summary(manifest.results, running)

    def _launches(self) -> Iterator[Planned]:
        element, configs = self._element, self._manifest.configs
        chosen = {
            point_id(configs[place]): place
            for place in (*element.points, *element.bases, *element.timelines)
        }
        decided = {
            key: _decided(configs[place], self._manifest.resolved[place], self._machine)
            for key, place in chosen.items()
        }
        again = self._bases_again()
        part = Part(
            repeat=element.repeat,
            points=tuple(configs[place] for place in element.points if place not in again),
            bases=tuple(configs[place] for place in (*element.bases, *again)),
            timelines=tuple(configs[place] for place in element.timelines),
            is_base=frozenset(point_id(configs[place]) for place in self._manifest.bases),
            sequential=self._manifest.sequential,
            problems={key: problem for key, (_, problem) in decided.items() if problem},
        )
        resolved = {key: found for key, (found, _) in decided.items()}
        return part_launches(part, self._machine.allocation, resolved, self._store.is_done)

    def _bases_again(self) -> tuple[int, ...]:
        """Return the bases that are points here, too, and to be measured once more.

        A start before, with other nodes, has done them, and what is missing would pair with none.
        """
        element, manifest = self._element, self._manifest

        def name(place: int) -> str:
            return run_id(manifest.configs[place], element.repeat)

        others = [place for place in element.points if place not in manifest.bases]
        if all(self._store.is_done(name(place)) for place in others):
            return ()
        allocation_of, here = allocations(self._store), self._machine.allocation
        return tuple(
            place
            for place in element.points
            if place in manifest.bases
            and self._store.is_done(name(place))
            and allocation_of(name(place)) != here
        )

    def _told(self, planned: Planned, place: Place, guard: Guard, interrupts: Interrupts) -> Done:
        """Run a launch, and let ``status`` know of it meanwhile."""
        self._progress.begin(planned.run_id, self._labels[point_id(planned.config)])
        done = self._launch(planned, place, guard, interrupts)
        self._progress.count(done.record)
        return done


def _decided(config: RunConfig, frozen: Resolved, machine: Machine) -> tuple[Resolved, str]:
    """Return how a launch runs here, and why it may not: "" where it may."""
    try:
        here = check_point(config, machine)
    except HarnessError as error:
        return frozen, str(error)
    unlike = differences(frozen, here)
    if not unlike:
        return here, ""
    field, submitted, now = unlike[0]
    return here, (
        f"submitted with {field} {submitted}, and this job would run it with {now}; make the site "
        "file say what its nodes have, and submit again"
    )


def _labels(manifest: ArrayManifest, element: Element) -> dict[str, str]:
    configs = manifest.configs
    launches = [configs[place] for place in (*element.points, *element.bases)]
    return launch_labels(launches, [configs[place] for place in element.timelines])


def _no_check(record: Decided) -> None:
    """What is done was decided by the submission's own check; a base has this allocation's id."""


@dataclass
class _Progress:
    """What an element does now, in a file of its own, for whoever asks for the sweep's status."""

    manifest: ArrayManifest
    index: int
    machine: Machine

    def __post_init__(self) -> None:
        slurm = self.machine.slurm
        self._job_id = slurm.job_id if slurm is not None else f"local-{os.getpid()}"
        self._data: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "job_id": self._job_id,
            "array": slurm.array_job_id if slurm is not None else "",
            "index": self.index,
            "submission": self.manifest.submission,
            "number": self.manifest.number,
            "host": socket.gethostname(),
            "nodes": [host.name for host in self.machine.hosts],
            "started_at": utc_now(),
            "restart_count": slurm.restart_count if slurm is not None else 0,
            "state": "running",
            "launch": None,
            "done": 0,
            "failed": 0,
            "ended_at": None,
            "reason": "",
        }

    def begin(self, run_id: str, label: str) -> None:
        self._data["launch"] = {"run_id": run_id, "label": label, "since": utc_now()}
        self.write()

    def count(self, record: RunRecord) -> None:
        self._data["launch"] = None
        self._data["done" if record.status == "ok" else "failed"] += 1
        self.write()

    def end(self, reason: str) -> None:
        self._data |= {"state": "ended", "launch": None, "ended_at": utc_now(), "reason": reason}
        self.write()

    def write(self) -> None:
        """Write the file; StoreError where the folder takes none."""
        folder = self.manifest.results / FOLDER
        path = folder / f"{self._job_id}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(self._data, indent=1).encode())
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error


def element_index(environ: Mapping[str, str]) -> int:
    """Return the index that Slurm gave this element; ConfigError outside a job array."""
    text = environ.get("SLURM_ARRAY_TASK_ID", "")
    index = whole(text)
    if index is None:
        raise ConfigError("run-point: give the element's index: this is no job of an array")
    return index
