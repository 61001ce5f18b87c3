"""Disks that are full, refuse, or answer as network file systems do."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults import disturbed, kills
from tests.faults.checkpoints import REPEATED, Checkpoints

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
TRACEBACK = 70  # of forks.fork: an exception that nobody expected


def each_operation_refused(folder: str, every: int) -> dict[str, int]:
    """Refuse each file operation of a sweep once, and from every few on all that take room."""
    root = Path(folder)
    expected = kills.undisturbed(root / "undisturbed", short=True)
    names = kills.count(root / "counted", short=True).done
    found = {"operations": len(names), "tried": 0, "told": 0}
    once = [("fail", at) for at in range(1, len(names) + 1)]
    full = [("full", at) for at in range(1, len(names) + 1, every)]
    for plan, at in once + full:
        number = errno.ENOSPC if plan == "full" else REFUSALS[at % len(REFUSALS)]
        there = kills.place(root / f"{plan}-{at}", short=True)
        points = Checkpoints(there.folder, plan, at, number)
        where = f"{plan} at {at} ({names[at - 1]}): errno {number}"
        code, _ = kills.run_and_check(there, partial(_run, there, points), {}, where)
        said = there.log.read_text()
        assert code in (1, 2), f"{where}: {said}"
        told = os.strerror(number).lower() in said.lower()
        # A temporary file that cannot be removed stands in nobody's way.
        assert told or names[at - 1] == "unlink", f"{where}: {said}"
        if names[at - 1] != "unlink":
            assert not disturbed.temporaries(there.root), where
        assert ".tmp" not in said, f"{where}: {said}"
        kills.finished(there, expected, where)
        found["tried"] += 1
        found["told"] += told
    return found


def _run(there: kills.Place, points: Checkpoints) -> int:
    points.install()
    return there.run()


def replies_lost(folder: str) -> dict[str, Any]:
    """Answer each operation, once, as a server does that was asked twice; and each read as stale.

    None of it may be seen: the sweep is as undisturbed as any.
    """
    root = Path(folder)
    expected = kills.undisturbed(root / "undisturbed", short=True)
    counted = kills.count(root / "counted", short=True)
    names = [None, *counted.done]
    plans = [("lost", at) for at, name in enumerate(names) if name in REPEATED]
    plans += [("stale", at) for at in range(1, counted.reads + 1)]
    for plan, at in plans:
        there = kills.place(root / f"{plan}-{at}", short=True)
        points = Checkpoints(there.folder, plan, at)
        where = f"{plan} at {at} ({names[at] if plan == 'lost' else 'read'})"
        code, _ = kills.run_and_check(there, partial(_run, there, points), {}, where)
        said = there.log.read_text()
        assert code == 1, f"{where}: {said}"
        assert disturbed.results_of(there.folder) == expected, f"{where}: {said}"
        assert len(disturbed.measured(there.ledger)) == 2, f"{where}: {said}"
        assert not disturbed.temporaries(there.root), where
    return {"plans": len(plans), "reads": counted.reads}
