"""Disks that are full, refuse, or answer as network file systems do."""

from __future__ import annotations

import errno
import json
import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults import disturbed, kills, mounts
from tests.faults.checkpoints import REPEATED, Checkpoints
from tests.faults.forks import forked

REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)


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


def really_full(folder: str) -> dict[str, Any]:
    """Run the sweep on a small disk that fills up in the middle of it; then make room, and go on.

    The disk is a real one, mounted where this process alone sees it.
    """
    root = Path(folder)
    expected = kills.undisturbed(root / "undisturbed")

    def work() -> int:
        mounts.leave_those_of_others()
        told = [_filled(root, room_kb, expected) for room_kb in (20, 40, 52, 64, 76, 88)]
        (root / "told").write_text(json.dumps(told))
        return 0

    assert forked(work, root / "log") == 0, (root / "log").read_text()
    told = json.loads((root / "told").read_text())
    return {name: [one[name] for one in told] for name in told[0]}


def _filled(root: Path, room_kb: int, expected: dict[str, Any]) -> dict[str, Any]:
    """Mount a disk with so much room; return what becomes of a sweep there."""
    there = kills.place(root / f"room-{room_kb}")
    there.results.mkdir()
    mounts.run(f"mount -t tmpfs -o size=1m none {there.results}")
    filler = there.results / "filler"
    filler.write_bytes(bytes(1024 * (1024 - room_kb)))
    code, committed = kills.run_and_check(there, there.run, {}, f"{room_kb} KB")
    said = there.log.read_text()
    temporaries = disturbed.temporaries(there.root)
    filler.unlink()
    kills.finished(there, expected, f"{room_kb} KB")
    disturbed.check(there.folder, committed)
    mounts.run(f"umount {there.results}")
    return {"codes": code, "measured": len(committed), "said": said, "left": temporaries}


def limited_file_size(folder: str) -> dict[str, Any]:
    """Let the kernel refuse what is larger than a limit; then lift it."""
    root = Path(folder)
    expected = kills.undisturbed(root / "undisturbed", short=True)
    codes = []
    for limit in (0, 100, 500, 1000, 2000, 3000, 4000):
        there = kills.place(root / str(limit), short=True)

        def work(there: kills.Place = there, limit: int = limit) -> int:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            return there.run()

        code, committed = kills.run_and_check(there, work, {}, f"{limit} bytes")
        assert code in (1, 2), f"{limit} bytes: {code}"
        kills.finished(there, expected, f"{limit} bytes")
        codes.append((code, len(committed)))
    return {"codes": codes}
