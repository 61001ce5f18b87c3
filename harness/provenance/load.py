"""Other work on the node, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path


def collect(file: Path = Path("/proc/loadavg")) -> dict[str, float]:
    """Return the load averages of 1, 5 and 15 minutes, and the threads that run right now.

    To be asked at a rank's start: from then on the ranks themselves are the load. Averages still
    hold what ran minutes ago, an earlier launch among it (proc_loadavg(5)).
    """
    one, five, fifteen, running, _ = file.read_text(encoding="ascii").split()
    return {
        "load_1min": float(one),
        "load_5min": float(five),
        "load_15min": float(fifteen),
        "running_threads": int(running.split("/")[0]),
    }
