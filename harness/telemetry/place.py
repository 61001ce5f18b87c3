"""Where the sampler runs: not on a core that a rank is bound to, if the launch has another."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from harness.processes import read_process


def leave_the_ranks_cores(parent: int, pids: Iterable[int]) -> None:
    """Move this process, which its rank ``parent`` has bound with itself.

    To the cores of what started the rank, less those of ranks if any are left. A user's ``taskset``
    is kept to. Where the launcher is another user's (Slurm's daemon is root's, and may be on cores
    that are not this job's) or gone, all that is known of the launch are its ranks' cores, and the
    sampler shares them.
    """
    ranks = set[int]().union(*(_cores(pid) for pid in pids))
    launcher = _launcher_cores(parent)
    wanted = (launcher - ranks) or (launcher | ranks)
    if wanted:
        # A cgroup may allow this process less than its launcher; then it stays where it is.
        with suppress(OSError):
            os.sched_setaffinity(0, wanted)


def _launcher_cores(rank: int) -> set[int]:
    process = read_process(rank)
    if process is None or process.parent <= 1:  # 1: whoever started the rank is gone
        return set()
    try:
        if os.stat(f"/proc/{process.parent}").st_uid != os.getuid():
            return set()
    except FileNotFoundError:
        return set()
    return _cores(process.parent)


def _cores(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()  # gone, or hidden
