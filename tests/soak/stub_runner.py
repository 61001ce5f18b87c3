"""A runner of stub launches as a program, and those launches: with raw steps, unlike the others.

stub_runner.py run RESULTS PLAN HOST          PLAN: {"batches", "blocks", "timeout_s", "faults"}
stub_runner.py launch BEHAVIOUR RUN_FILE
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from harness.config import RunConfig, Sweep
from harness.errors import HarnessError
from harness.launch import Command
from harness.runner import point
from tests.unit import stub_launch, stub_sweep


def sweep_of(plan: dict[str, Any]) -> Sweep:
    return stub_sweep.make_sweep(tuple(plan["batches"]), plan["blocks"], plan["timeout_s"])


def run(results: Path, plan: dict[str, Any], host: str) -> int:
    faults = plan["faults"]

    def build(config: RunConfig, machine: object, run_file: str, *_: Any, **__: Any) -> Command:
        how = faults.get(str(config.batch_size), "ok")
        return Command((sys.executable, __file__, "launch", how, run_file), {})

    point.build = build
    socket.gethostname = lambda: host
    try:
        return stub_sweep.run(sweep_of(plan), results).exit_code
    except HarnessError as error:
        print(f"hvdscale: {error}", file=sys.stderr)
        return error.exit_code


def commit(run_file: Path, attempt: int | None = None) -> None:
    import pyarrow as pa

    from harness.spec import RunSpec
    from harness.store import Store

    spec = RunSpec.read(run_file)
    attempt = attempt or spec.attempt
    steps = pa.table({"step_s": [attempt + spec.block.repeat + k / 1000 for k in range(500)]})
    record = stub_launch.record_of(spec, attempt)
    Store.open(spec.results).commit(record, steps)


if __name__ == "__main__":
    word, *rest = sys.argv[1:]
    if word == "run":
        sys.exit(run(Path(rest[0]), json.loads(rest[1]), rest[2]))
    stub_launch.commit = commit
    sys.exit(stub_launch.main(rest[0], Path(rest[1])))
