"""Where this process's threads may run, now and not as it was asked for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.detect import usable_cores
from harness.provenance.host import cpu_list, numa_cpus, parse_cpus
from harness.provenance.notes import Notes


def collect(notes: Notes, bound: Sequence[int]) -> dict[str, Any]:
    """Return the affinity of this thread and of all others; ``bound`` is what it was bound to.

    A library that binds threads itself (an MPI, an OpenMP run-time, NCCL's proxy) shows here;
    the main thread moved off its cores is a note too.
    """
    now = os.sched_getaffinity(0)
    if now != set(bound):
        notes.add("binding", f"bound to {cpu_list(bound)}, and now on {cpu_list(now)}")
    threads = _threads()
    found = {
        "affinity": cpu_list(now),
        "usable_cores": usable_cores(),
        "numa_nodes": [node for node, cpus in numa_cpus().items() if cpus & now],
        "os_threads": sum(threads.values()),
    }
    # One entry where all threads may run in the same place, which says nothing new.
    return found | ({"thread_affinity": threads} if len(threads) > 1 else {})


def _threads() -> dict[str, int]:
    """Return list of CPUs → the number of this process's threads that may run on just those."""
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "status").read_text(encoding="ascii", errors="replace")
        except OSError:
            continue  # it has ended since
        for line in text.splitlines():
            if line.startswith("Cpus_allowed_list:"):
                found[cpu_list(parse_cpus(line.partition(":")[2]))] += 1
    return dict(sorted(found.items()))
