"""What ``sbatch`` is told, and the scripts it is given. Pure: nothing is written or asked.

The study's policy: whole nodes, all of their memory, and a node's CPUs shared out to its ranks.

Jobs begin with the environment of the shell that submits (``--export=ALL``, said here so that no
setting of a user changes it): clusters' modules and activated environments work that way. What is
the harness's own does not come from there: the scripts drop all ``HVDSCALE_*`` and set what the
site says, and they drop what tells of a step that the shell itself may be in. A site that wants the
clean environment of a login adds ``--export=NONE`` to its ``options``; steps of the job still get
what its set-up made.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.detect import INTERFACE, LAUNCHER, PYTHON_PREFIX
from harness.errors import ConfigError
from harness.paths import DATA_DIR
from harness.scratch import VARIABLE as SCRATCH
from harness.submit.arrays import placement_text
from harness.submit.manifest import COMMENT, ArrayManifest, slurm_folder
from harness.submit.site import Site, time_text

#: Before the time limit: what an element's launch takes to end (SIGTERM, 5 s, SIGKILL, 5 s), and
#: its record to be written to a slow file system. Slurm may send it as much as a minute earlier.
WARNING_S = 60
COLLECT_TIME_S = 1800
#: What the shell that submits may have set, and no job is to see: the harness's own, which only the
#: site says, and the step of another job that ``srun --pty`` put the shell in. A rank would take
#: that step's number for its own, and MPI its server.
_UNSET = (
    'unset "${!HVDSCALE_@}" "${!SLURM_STEP@}" "${!SLURM_CPU_BIND@}" \\',
    "    SLURM_DISTRIBUTION SLURM_EXPORT_ENV \\",
    '    "${!PMI_@}" "${!PMIX_SERVER_@}" PMIX_NAMESPACE PMIX_RANK "${!OMPI_COMM_@}"',
)


def options(
    array: ArrayManifest, *, throttle: int | None = None, after: str | None = None
) -> list[str]:
    """Return sbatch's options for a job array; the site's own come last and win."""
    site = array.site
    last = len(array.elements) - 1
    found = [
        f"--job-name={array.sweep}-{placement_text(array.placement)}",
        f"--array=0-{last}" + (f"%{throttle}" if throttle is not None else ""),
        f"--nodes={array.nodes}",
        f"--ntasks-per-node={max(array.room)}",
        f"--cpus-per-task={cpus_per_task(array)}",
    ]
    if site.gpus_per_node:
        gpus = site.gpus_per_node if site.exclusive else max(array.room)
        found.append(f"--gres={site.gres}:{gpus}")
    found += ["--exclusive"] if site.exclusive else []
    found += [f"--mem={site.memory}", f"--time={time_text(array.time_limit_s)}"]
    found += place_options(site)
    found += [
        f"--output={_log(array.results, '%x-%A_%a.out')}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{warning_s(array.time_limit_s)}",
        "--kill-on-invalid-dep=yes",
        f"--comment={array.comment}",
        f"--chdir={array.results}",
        "--export=ALL",
    ]
    found += [f"--dependency={after}"] if after is not None else []
    return [*found, *site.options]


def cpus_per_task(array: ArrayManifest) -> int:
    """Return the CPUs of a task: a node's, shared out to the ranks of the fullest node.

    Where nodes are shared with others, no more than a rank is given: who asks for one GPU of eight
    does not take the CPUs of all.
    """
    share = max(1, array.site.cpus_per_node // max(array.room))
    if array.site.exclusive:
        return share
    return min(share, max(one.cores_per_rank for one in array.resolved))


def warning_s(time_limit_s: int) -> int:
    """Return how long before its time limit an element is warned, in seconds."""
    return max(1, min(WARNING_S, time_limit_s // 4))


def script(array: ArrayManifest, manifest: Path, python: str) -> str:
    """Return the batch script of a job array.

    ``exec``, because Slurm's warning goes to the process of the script alone.
    """
    command = shlex.join([python, "-P", "-m", "harness", "run-point", str(manifest)])
    return _script(
        f"array {array.number} of submission {array.submission} of the sweep {array.sweep}",
        array,
        [f'exec {command} "$SLURM_ARRAY_TASK_ID"'],
    )


def collect_options(array: ArrayManifest, job_ids: Iterable[str]) -> list[str]:
    """Return sbatch's options for the job that collects when all jobs ``job_ids`` are over.

    However they ended: what is there is collected. ``array`` is any of the submission.
    """
    site = array.site
    limit_s = min(COLLECT_TIME_S, site.max_time or COLLECT_TIME_S)
    return [
        f"--job-name={array.sweep}-collect",
        "--nodes=1",
        "--ntasks=1",
        f"--time={time_text(limit_s)}",
        *place_options(site),
        f"--output={_log(array.results, '%x-%j.out')}",
        "--open-mode=append",
        "--kill-on-invalid-dep=yes",
        f"--comment={COMMENT}:{array.submission}:collect",
        f"--chdir={array.results}",
        "--export=ALL",
        f"--dependency=afterany:{':'.join(job_ids)}",
        *site.options,
    ]


def collect_script(array: ArrayManifest, python: str) -> str:
    """Return the batch script of the job that collects; ``array`` is any of the submission."""
    run = [python, "-P", "-m", "harness"]
    return _script(
        f"the collection after submission {array.submission} of the sweep {array.sweep}",
        array,
        [shlex.join([*run, name, str(array.results)]) for name in ("collect", "report")],
    )


def _script(what: str, array: ArrayManifest, commands: Sequence[str]) -> str:
    return batch_script(what, array.version, array.site, array.data_dir, commands)


def batch_script(
    what: str, version: str, site: Site, data_dir: Path, commands: Sequence[str]
) -> str:
    """Return a script that runs ``commands`` as ``site`` wants jobs to be set up."""
    lines = [
        "#!/bin/bash",
        f"# Made by hvdscale {version}: {what}.",
        "set -e",
        *_UNSET,
        *site.setup,
        # Not before the set-up: modules and activate scripts use variables that are not set.
        "set -uo pipefail",
        *(f"export {name}={shlex.quote(value)}" for name, value in _exports(site, data_dir)),
        *commands,
    ]
    return "\n".join([*lines, ""])


def _exports(site: Site, data_dir: Path) -> list[tuple[str, str]]:
    named: list[tuple[str, str | None]] = [
        (DATA_DIR, str(data_dir)),
        (LAUNCHER, site.launcher),
        (INTERFACE, site.interface),
        (SCRATCH, site.scratch),  # as written: its variables are the node's, which expands them
        *(
            (f"{PYTHON_PREFIX}{backend.upper().replace('-', '_')}", python)
            for backend, python in site.python_by_backend.items()
        ),
        *site.environment.items(),
    ]
    return [(name, value) for name, value in named if value is not None]


def place_options(site: Site) -> list[str]:
    """Return the options that say whose nodes, and which."""
    named = (
        ("partition", site.partition),
        ("account", site.account),
        ("qos", site.qos),
        ("constraint", site.constraint),
    )
    return [f"--{name}={value}" for name, value in named if value is not None]


def log_folder(results: Path) -> Path:
    """Return the folder of the jobs' logs; ConfigError where sbatch could not be told of it."""
    folder = slurm_folder(results) / "logs"
    if "\\" in str(folder) or "\n" in str(folder):
        raise ConfigError(
            f"--results {results}: sbatch cannot write logs into a folder with a backslash or a "
            "line break in its name; choose another"
        )
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"--results {results!a}: the name is no UTF-8 text, as manifests are; choose another"
        ) from None
    return folder


def _log(results: Path, name: str) -> str:
    """Return a log's path as a pattern of sbatch."""
    return f"{str(log_folder(results)).replace('%', '%%')}/{name}"
