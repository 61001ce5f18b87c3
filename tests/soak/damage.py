"""Damage to records between runs, as bad disks and careless people do it."""

from __future__ import annotations

import random
from pathlib import Path

from tests.faults.spoil import cut, flip
from tests.soak.check import digest_of


def damage(folder: Path, how: str, dice: random.Random, spare: set[str]) -> tuple[str, str] | None:
    """Damage one record that is done, and not in ``spare``; return its file and checksum since.

    None where there is none, or none with raw steps to damage. Of raw steps that are damaged the
    record is the one to be found in quarantine, as it was.
    """
    runs = folder / "runs"
    records = sorted(p for p in runs.glob("*.json") if ".attempt-" not in p.name)
    records = [path for path in records if path.name not in spare]
    if not records:
        return None
    path = dice.choice(records)
    if how == "steps":
        raw = sorted(runs.glob(f"{path.stem}.*.steps.parquet"))
        text = path.read_text()
        own = [one for one in raw if f'"steps_sha256": "{one.name.split(".")[1]}' in text]
        if not own:
            return None
        flip(own[0], dice)
    elif how == "flip":
        flip(path, dice)
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "cut":
        cut(path, dice)
    else:
        path.write_bytes(b"")
    return path.name, digest_of(path)
