"""``hvdscale preflight``: is every node and link of an allocation as good as the others?"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.config import Sweep


def command_preflight(
    sweep: str | None,
    site: str | None,
    nodes: int | None,
    workload: str | None,
    results: Path,
    as_json: bool,
) -> int:
    """Look at the nodes of this allocation, or submit a job that does.

    Returns 0 where nothing is wrong (or the job is submitted), 1 where something was found, 130
    where interrupted.
    """
    from harness.config import load_sweep

    loaded = load_sweep(sweep) if sweep is not None else None
    if site is not None and not os.environ.get("SLURM_JOB_ID"):
        return _submit(sweep, loaded, site, nodes, workload, results, as_json)
    from harness.detect import detect_machine
    from harness.submit.preflight.render import render
    from harness.submit.preflight.run import run_preflight

    machine = detect_machine()
    if machine.slurm is None and nodes is not None and nodes > 1:
        raise ConfigError(
            f"preflight: --nodes {nodes}, but this is one machine and no allocation: give --site "
            "NAME to submit a job, or run it inside one (salloc)"
        )
    written = run_preflight(
        machine, results, sweep=loaded, workload=workload, nodes=nodes, tell=_tell
    )
    if as_json:
        sys.stdout.write(written.path.read_text(encoding="utf-8"))
    else:
        print(render(written.record))
        print(f"\n{written.path}")
    return written.record.exit_code


def _tell(text: str) -> None:
    print(f"preflight: {text}", file=sys.stderr, flush=True)


def _submit(
    source: str | None,
    sweep: Sweep | None,
    site: str,
    nodes: int | None,
    workload: str | None,
    results: Path,
    as_json: bool,
) -> int:
    from harness.submit.preflight.submission import submit_preflight
    from harness.submit.site_files import find_site

    found = find_site(site)
    job_id, log = submit_preflight(
        found, nodes or found.nodes, results, source=source, sweep=sweep, workload=workload
    )
    if as_json:
        print(json.dumps({"job": job_id, "log": str(log)}))
    else:
        print(job_id)
        _tell(f"submitted; its output will be in {log}")
    return 0
