"""Sweeps, sites and a scheduler that is none, for the tests of ``hvdscale submit``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness import slurm
from harness.config import Sweep, parse_sweep
from harness.runner import schedule
from harness.runner.schedule import Work
from harness.slurm import Job, SchedulerError
from harness.submit.arrays import wanted
from harness.submit.manifest import ArrayManifest
from harness.submit.packing import Wanted
from harness.submit.site import Site

PYTHON = "/opt/env/bin/python"


def make_site(**keys: Any) -> Site:
    """Return a site of four nodes with four CPUs each."""
    return Site.model_validate({"name": "here", "nodes": 4, "cpus_per_node": 4} | keys)


def gpu_site(**keys: Any) -> Site:
    """Return a site of two nodes with eight GPUs each."""
    gpus = {"nodes": 2, "cpus_per_node": 48, "gpus_per_node": 8, "python": PYTHON}
    return make_site(**(gpus | keys))


def make_sweep(**keys: Any) -> Sweep:
    """Return a sweep over three placements, in two blocks, with base none@1."""
    plain: dict[str, Any] = {
        "name": "scale",
        "workload": {"name": "stress_strain", "samples": 20000},
        "placement": ["1x1", "1x2", "2x1"],
        "batch_size": 20,
        "cores_per_rank": 1,
        "measure": {"blocks": 2, "window_s": 0.2, "timeout_s": 120},
    }
    measure = plain["measure"] | keys.pop("measure", {})
    return parse_sweep(plain | keys | {"measure": measure})


def make_work(
    sweep: Sweep, site: Site, *, results: Path = Path("/results"), training: bool = False
) -> Work:
    """Return the sweep as it is planned on the site."""
    return schedule.planned(sweep, site.machine(PYTHON), results, training=training)


def everything(work: Work, asked: Wanted) -> dict[int, list[str]]:
    """Return all launches as missing."""
    return {repeat: [name for name, _ in asked.of(repeat)] for repeat in range(work.blocks)}


def asked_of(work: Work, *, shared_base: bool = False) -> tuple[Wanted, dict[int, list[str]]]:
    """Return what jobs are to launch, and all of it as missing."""
    asked = wanted(work, shared_base=shared_base)
    return asked, everything(work, asked)


@dataclass
class Called:
    """One call of sbatch."""

    options: tuple[str, ...]
    script: Path
    job_id: str

    def option(self, name: str) -> str | None:
        """Return the value of an option, the last one given."""
        found = [o.partition("=")[2] for o in self.options if o.partition("=")[0] == f"--{name}"]
        return found[-1] if found else None


@dataclass
class FakeSlurm:
    """Takes jobs, and runs none. What is in its queue is what was submitted, unless ``ends``."""

    calls: list[Called] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    fail_at: int | None = None  # which call of sbatch is refused, from 0
    questions: int = 0

    def submit(self, options: Sequence[str], script: Path, arguments: Sequence[str] = ()) -> str:
        """See ``harness.slurm``. What the job would read is there by now."""
        if self.fail_at is not None and len(self.calls) == self.fail_at:
            raise SchedulerError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        assert script.read_text().startswith("#!/bin/bash\n")
        job_id = str(100 + len(self.calls))
        call = Called(tuple(options), script, job_id)
        self.calls.append(call)
        indices: Sequence[int | None] = (None,)
        if (array := call.option("array")) is not None:
            ArrayManifest.read(script.with_suffix(".json"))
            last = re.match(r"0-(\d+)", array)
            assert last is not None
            indices = range(int(last[1]) + 1)
        for index in indices:
            shown = job_id if index is None else f"{job_id}_{index}"
            comment = call.option("comment") or ""
            self.jobs.append(Job(shown, job_id, index, "PENDING", "Priority", comment=comment))
        return job_id

    def queue(self) -> tuple[Job, ...]:
        """See ``harness.slurm``."""
        self.questions += 1
        return tuple(self.jobs)

    def ends(self, *shown: str) -> None:
        """Take jobs out of the queue, all of them if none is named."""
        self.jobs = [job for job in self.jobs if shown and job.job_id not in shown]

    def changes(self, **fields: Any) -> None:
        """Change something of all jobs."""
        self.jobs = [replace(job, **fields) for job in self.jobs]

    @property
    def arrays(self) -> list[ArrayManifest]:
        """Return the manifests of the arrays that were submitted, in their order."""
        return [
            ArrayManifest.read(call.script.with_suffix(".json"))
            for call in self.calls
            if call.option("array") is not None
        ]


def install(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Put a scheduler in the real one's place."""
    fake = FakeSlurm()
    monkeypatch.setattr(slurm, "submit", fake.submit)
    monkeypatch.setattr(slurm, "queue", fake.queue)
    monkeypatch.setattr(slurm, "is_here", lambda: True)
    return fake
