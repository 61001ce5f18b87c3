"""The job of Slurm that a launch ran in, as a record keeps it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.nodelist import NodeListError, expand_hosts

#: Key of a record → variable of a job's environment (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
#: Nothing else of Slurm's is kept, and what is not set has no key.
_TEXTS = {
    "job_id": "SLURM_JOB_ID",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "partition": "SLURM_JOB_PARTITION",
    "job_name": "SLURM_JOB_NAME",
    "cluster": "SLURM_CLUSTER_NAME",
}
_NUMBERS = {"nodes": "SLURM_JOB_NUM_NODES", "cpus_on_node": "SLURM_CPUS_ON_NODE"}
_NUMBER = re.compile(r"[0-9]{1,9}")
_NODES = "SLURM_JOB_NODELIST"
_RESTARTS = "SLURM_RESTART_COUNT"


def slurm_facts(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the facts of the job that ``environ`` is of; None outside of a job.

    Ids are texts as Slurm prints them, ``nodelist`` is a list of single names, ``restart_count`` is
    0 where the job was never requeued. Whether nodes were exclusive no variable tells.
    """
    if not environ.get("SLURM_JOB_ID"):
        return None
    found: dict[str, Any] = {
        key: environ[name] for key, name in _TEXTS.items() if environ.get(name)
    }
    for key, name in _NUMBERS.items():
        if _NUMBER.fullmatch(environ.get(name, "")):
            found[key] = int(environ[name])
    restarts = environ.get(_RESTARTS, "")
    found["restart_count"] = int(restarts) if _NUMBER.fullmatch(restarts) else 0
    if environ.get(_NODES):
        found["nodelist"] = _expanded(environ[_NODES])
    return found


def _expanded(text: str) -> list[str]:
    try:
        return expand_hosts(text)
    except NodeListError:
        return [text]  # provenance fails no run: as it is
