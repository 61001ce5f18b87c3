"""A preflight as a batch job: what ``sbatch`` is told and given (pure), and the call.

The job has whole nodes, as the campaign after it, and runs ``hvdscale preflight`` in itself.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import __version__, slurm
from harness.config import Sweep
from harness.errors import ConfigError, MissingDependencyError
from harness.paths import default_data_dir
from harness.store import write_atomic
from harness.store.files import named_errors
from harness.submit.preflight.asking import trained_config
from harness.submit.preflight.plan import Limits, links_timeout_s, rounds_of, speed_timeout_s
from harness.submit.preflight.record import FOLDER
from harness.submit.script import batch_script, place_options
from harness.submit.site import Site, time_text

_LOOKS = 2
_LIBRARIES = 2  # Gloo, and NCCL or MPI; of three the third is rarely near its limit


@dataclass(frozen=True)
class Job:
    """One preflight to be submitted."""

    site: Site
    nodes: int
    results: Path  # absolute
    sweep: str | None = None  # a preset's name, or an absolute path
    sweep_name: str | None = None
    workload: str | None = None
    data_dir: Path = Path()
    python: str = sys.executable

    @property
    def folder(self) -> Path:
        """Return where its script, log and result are."""
        return self.results / (self.sweep_name or "") / FOLDER

    @property
    def time_limit_s(self) -> int:
        """Return what it may take, with second looks; the partition's limit at most."""
        limits, rounds = Limits(), rounds_of(self.nodes)
        most_s = _LOOKS * speed_timeout_s(limits) + _LIBRARIES * links_timeout_s(limits, rounds)
        return min(int(most_s), self.site.max_time or int(most_s))

    def options(self) -> list[str]:
        """Return sbatch's options; the site's own come last and win."""
        site = self.site
        log = f"{str(self.folder).replace('%', '%%')}/%x-%j.out"
        return [
            "--job-name=hvdscale-preflight",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={site.devices_per_node}",
            f"--cpus-per-task={max(1, site.cpus_per_node // site.devices_per_node)}",
            *([f"--gres={site.gres}:{site.gpus_per_node}"] if site.gpus_per_node else []),
            *(["--exclusive"] if site.exclusive else []),
            f"--mem={site.memory}",
            f"--time={time_text(self.time_limit_s)}",
            *place_options(site),
            f"--output={log}",
            f"--chdir={self.results}",
            "--no-requeue",
            "--export=ALL",
            *site.options,
        ]

    def script(self) -> str:
        """Return the batch script."""
        command = [self.python, "-P", "-m", "harness", "preflight"]
        command += [self.sweep] if self.sweep is not None else []
        command += ["--workload", self.workload] if self.workload is not None else []
        command += ["--results", str(self.results)]
        return batch_script(
            f"a preflight of {self.nodes} nodes of {self.site.name}",
            __version__,
            self.site,
            self.data_dir,
            [f"exec {shlex.join(command)}"],
        )


def submit_preflight(
    site: Site,
    nodes: int,
    results: Path,
    *,
    source: str | None = None,
    sweep: Sweep | None = None,
    workload: str | None = None,
) -> tuple[str, Path]:
    """Submit a preflight of ``nodes`` nodes of ``site``; return the job's id and its log.

    ``source`` is what ``sweep`` was loaded from. Raises ConfigError where the site has fewer nodes,
    WorkloadError where there is no such workload, SchedulerError in Slurm's words where it refuses,
    StoreError where nothing can be written.
    """
    if not 1 <= nodes <= site.nodes:
        raise ConfigError(f"--nodes {nodes}: a job of site {site.name} has 1 to {site.nodes}")
    trained_config(sweep, workload, site.device)  # what it would refuse is refused now
    if not slurm.is_here():
        raise MissingDependencyError("sbatch is not here: submit from a login node of the cluster")
    job = Job(
        site=site,
        nodes=nodes,
        results=_named(results.absolute()),
        sweep=_findable(source),
        sweep_name=sweep.name if sweep is not None else None,
        workload=workload,
        data_dir=Path(site.data_dir) if site.data_dir is not None else default_data_dir(),
        python=site.python or sys.executable,
    )
    script = job.folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}.sh"
    with named_errors(script, "written"):
        job.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(script, job.script().encode())
    job_id = slurm.submit(job.options(), script)
    return job_id, job.folder / f"hvdscale-preflight-{job_id}.out"


def _findable(source: str | None) -> str | None:
    """Return a sweep's source as another folder finds it: the path of a file, a preset's name."""
    if source is None or not Path(source).is_file():
        return source
    return str(Path(source).absolute())


def _named(results: Path) -> Path:
    if any(character in str(results) for character in "\\\n"):
        raise ConfigError(
            f"--results {results}: sbatch cannot write logs into a folder with a backslash or a "
            "line break in its name; choose another"
        )
    return results
