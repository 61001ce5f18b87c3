"""The data of a sweep's workloads, made before its first launch instead of in a launch's time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.config import RunConfig
from harness.runner.progress import Report
from workloads import registry

NOTE_AFTER_S = 1.0  # what is there already takes less, and then there is nothing to tell


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
        with _told_if_slow(report, f"making the data of {name}{told} in {data_dir}"):
            made.prepare()


@contextmanager
def _told_if_slow(report: Report, text: str) -> Iterator[None]:
    timer = threading.Timer(NOTE_AFTER_S, report.note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a line that is being written is written whole, before what comes next
