"""The invariants of a results folder: what a runner, however disturbed, must have kept."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import StoreError
from harness.store import Store

_RECORD = re.compile(r"([A-Za-z0-9_-]{1,64}?)(?:\.attempt-\d+)?\.json")
_RETRACTED = "attempt "  # what is said of a record whose own launch failed after it
FOLDER = "a folder"  # in place of a checksum


@dataclass(frozen=True)
class Fault:
    """An invariant that does not hold."""

    kind: str  # "lost", "duplicated", "leaked", "broken"
    text: str


@dataclass(frozen=True)
class Snapshot:
    """What lies in a sweep's folder at one moment."""

    records: dict[str, str] = field(default_factory=dict)  # file in runs/ → checksum
    quarantine: dict[str, str] = field(default_factory=dict)  # record there → checksum
    attempts: dict[str, int] = field(default_factory=dict)  # run id → log folders

    @classmethod
    def take(cls, folder: Path) -> Snapshot:
        """Look at ``folder``, which may not be there yet."""
        logs = folder / "logs"
        return cls(
            records=_sums(folder / "runs"),
            quarantine=_sums(folder / "quarantine"),
            attempts={one.name: len(os.listdir(one.path)) for one in _entries(logs)},
        )


def after_run(
    before: Snapshot, after: Snapshot, damaged: dict[str, str], wanted: Iterable[str]
) -> list[Fault]:
    """Return what a run did wrong: between two looks every sound record stays as it is.

    ``damaged`` are files in ``runs/`` that were damaged before, with their checksums since, or that
    of a record whose raw steps were damaged. Only what is in ``wanted`` is looked for there.
    """
    faults = []
    held = Counter(after.quarantine.values())
    for name, digest in before.records.items():
        if after.records.get(name) == digest:
            continue
        if name in damaged and held[digest]:
            continue
        faults.append(Fault("lost", f"{name} was there before the run, and is not what it was"))
    sound = {_run_id(name) for name in before.records if _is_done(name) and name not in damaged}
    for name in sorted(sound & set(wanted)):
        if after.attempts.get(name, 0) > before.attempts.get(name, 0):
            faults.append(Fault("duplicated", f"{name} was done, and was launched once more"))
    return faults


def at_end(folder: Path, wanted: Iterable[str], damaged: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return what is wrong with a folder whose sweep was run to its end.

    ``damaged`` are (file, checksum) of all records that were damaged, ever, and had to be found.
    """
    store, wanted = Store.open(folder), set(wanted)
    done = store.done_ids()
    faults = [Fault("lost", f"{name} was never measured") for name in sorted(wanted - done)]
    faults += [Fault("broken", f"{name} was not asked for") for name in sorted(done - wanted)]
    seen: list[str] = []
    whole = store.verify(sorted(done), lambda broken: seen.append(str(broken)))
    faults += [Fault("broken", text) for text in seen]
    for name in sorted(whole):
        record = store.read(name)
        if record.status != "ok":
            faults.append(Fault("broken", f"{name}.json has the status {record.status}"))
    faults += list(_failed_attempts(store))
    faults += _quarantined(folder / "quarantine", Counter(damaged))
    return faults


def leftovers(folder: Path, kills: int) -> list[Fault]:
    """Return temporary files; one of a log folder's a kill, which may hit while it is written."""
    found = list(folder.rglob(".*.tmp"))
    in_logs = [path for path in found if path.name.startswith(".run.json.")]
    bad = [path for path in found if path not in in_logs] + in_logs[kills:]
    return [Fault("broken", f"{path.relative_to(folder)}: was left behind") for path in bad]


def digest_of(path: Path) -> str:
    """Return the checksum of a file; FOLDER of a folder."""
    return FOLDER if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()


def _failed_attempts(store: Store) -> Iterable[Fault]:
    for name, attempt in sorted(store.attempts()):
        try:
            record = store.read_failure(name, attempt)
        except StoreError as error:
            yield Fault("broken", str(error))
            continue
        if record.status == "ok":
            yield Fault("duplicated", f"{name} attempt {attempt} is a second measurement")
        if record.error is None or not record.error.cause:
            yield Fault("broken", f"{name} attempt {attempt} has no cause")


def _quarantined(folder: Path, damaged: Counter[tuple[str, str]]) -> list[Fault]:
    """Quarantine has what was damaged, each once, and what was retracted; nothing else."""
    faults, left = [], damaged.copy()
    for name, digest in _sums(folder).items():
        reason = folder / f"{Path(name).stem}.reason.txt"
        said = reason.read_text() if reason.is_file() else ""
        key = f"{_run_id(name)}.json", digest
        if left[key]:
            left[key] -= 1
            if not said:
                faults.append(Fault("broken", f"quarantine/{name} has no reason beside it"))
        elif not said.startswith(_RETRACTED):
            why = said.strip() or "without a reason"
            faults.append(Fault("lost", f"quarantine/{name} was sound: {why}"))
    missing = left.elements()
    faults += [Fault("lost", f"{name} was damaged and is not kept") for name, _ in missing]
    return faults


def _sums(folder: Path) -> dict[str, str]:
    found = {}
    for one in _entries(folder):
        if one.name.endswith(".json") and not one.name.startswith("."):
            try:
                found[one.name] = digest_of(Path(one.path))
            except FileNotFoundError:  # a runner that is asked to end is still at work
                continue
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _is_done(name: str) -> bool:
    return _RECORD.fullmatch(name) is not None and ".attempt-" not in name


def _run_id(name: str) -> str:
    return name.split(".", 1)[0]
