"""The data of a sweep's workloads, made before its first launch instead of in a launch's time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from harness.clock import told_if_slow
from harness.config import RunConfig
from harness.runner.progress import Report
from workloads import registry


def prepare_data(configs: Iterable[RunConfig], data_dir: Path, report: Report) -> None:
    """Make what is missing of the data of every distinct workload; WorkloadError where it cannot.

    Several gigabytes may take a minute, of which a line tells; a workload in two frameworks has one
    set of data.
    """
    distinct = {}
    for workload in (config.workload for config in configs):
        options = json.dumps(workload.options, sort_keys=True)
        distinct[workload.name, options] = workload
    for (name, options), workload in distinct.items():
        made = registry.create(name, workload.options, data_dir)
        told = f" {options}" if workload.options else ""
        with told_if_slow(report.note, f"making the data of {name}{told} in {data_dir}"):
            made.prepare()
