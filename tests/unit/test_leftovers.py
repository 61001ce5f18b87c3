from __future__ import annotations

import os
from pathlib import Path

from harness.store import Store
from harness.store.files import LEFTOVER_S

NAME = ".0123456789abcdef.json.fedcba9876543210.tmp"


def test_what_killed_processes_left_is_removed_by_a_later_run(tmp_path: Path) -> None:
    """By age, on the file system's clock: a fresh one may be another host's, still at work."""
    store = Store.open(tmp_path / "sweep", create=True)
    now_s = (store.path / "sweep.json").stat().st_mtime
    kept, gone = [], []
    for folder in (store.path, store.runs, store.quarantine):
        for name, age_s, stays in (
            (NAME, LEFTOVER_S + 60, False),
            (NAME.replace("0", "1"), LEFTOVER_S - 600, True),
            ("0123456789abcdef.tmp", LEFTOVER_S + 60, True),  # not of our making
            (".mine.tmp", LEFTOVER_S + 60, True),
        ):
            path = folder / name
            path.touch()
            os.utime(path, (now_s - age_s, now_s - age_s))
            (kept if stays else gone).append(path)
    Store.open(store.path)
    assert all(path.exists() for path in gone)  # who only reads removes nothing
    Store.open(store.path, create=True)
    assert [path for path in gone if path.exists()] == []
    assert all(path.exists() for path in kept)
