"""One sweep's folder.

::

    RESULTS/<sweep>/
        sweep.json, sweep.yaml, sweep.<n>.yaml          what this is; earlier configs, numbered
        runs/<run_id>.steps.parquet, <run_id>.json      raw steps, then the record: the commit
        runs/<run_id>.series.parquet                    raw telemetry, where it was taken
        runs/<run_id>.attempt-<n>.json                  an attempt that gave no measurement
        logs/<run_id>/<attempt>/                        run.json, launcher.log, rank-K.log
        quarantine/                                     what was found broken, and why
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.clock import utc_now
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION, RunRecord
from harness.store.files import locked, move_aside, named_errors, sync_folder, write_atomic
from harness.store.migrate import check_version
from harness.store.raw import RAW, parquet_bytes, raw_fault, raw_path, read_raw
from harness.store.reading import BrokenError, MissingError, read_record, read_sealed

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DONE = re.compile(r"([A-Za-z0-9_-]{1,64})\.json")
_FAILED = re.compile(r"([A-Za-z0-9_-]{1,64})\.attempt-(\d{1,9})\.json")


@dataclass(frozen=True)
class Broken:
    """A record that cannot be used, and where it is now."""

    run_id: str
    reason: str
    path: Path  # in quarantine/, or where it was if the folder cannot be written

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; the point counts as missing"


class Store:
    """The results of one sweep, made by ``Store.open``; many processes may share a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.logs = path / "logs"
        self.quarantine = path / "quarantine"

    @classmethod
    def open(cls, path: Path | str, *, create: bool = False) -> Store:
        """Open a sweep's folder; with ``create``, make what is missing and prove it can be written.

        Raises StoreError where it is not there, is no folder, cannot be written (with ``create``),
        or is of a newer schema.
        """
        store = cls(Path(path))
        if store.path.exists() and not store.path.is_dir():
            raise StoreError(f"{path}: is a file, not a results folder; choose another --results")
        with named_errors(store.path, "read"):
            store._check_identity(create)
        if create:
            with named_errors(store.path, "written"):
                store._create()
        return store

    @property
    def name(self) -> str:
        """Return the sweep's name: the folder's."""
        return self.path.name

    def save_config(self, text: str) -> None:
        """Keep the resolved config as ``sweep.yaml``; an earlier, different one gets a number."""
        path = self.path / "sweep.yaml"
        with named_errors(path, "written"), locked(self.path / ".lock"):
            if path.exists():
                if path.read_bytes() == text.encode():
                    return
                move_aside(path, self._next_config())
            write_atomic(path, text.encode())

    def claim_attempt(self, run_id: str) -> tuple[int, Path]:
        """Return the next attempt number of a run, from 1, and its new log folder.

        The number is claimed by making the folder, so two runners never share one.
        """
        folder = self.logs / _checked(run_id)
        with named_errors(folder, "written"):
            folder.mkdir(parents=True, exist_ok=True)
            attempt = self.next_attempt(run_id)
            while True:
                try:
                    (folder / str(attempt)).mkdir()
                except FileExistsError:
                    attempt += 1
                else:
                    return attempt, folder / str(attempt)

    def next_attempt(self, run_id: str) -> int:
        """Return the number that ``claim_attempt`` would try first."""
        try:
            names = [entry.name for entry in os.scandir(self.logs / _checked(run_id))]
        except FileNotFoundError:
            return 1
        except OSError as error:
            place = self.logs / run_id
            raise StoreError(f"{place}: cannot be read: {error.strerror}") from error
        return max((int(name) for name in names if name.isdigit()), default=0) + 1

    def done_ids(self) -> set[str]:
        """Return the ids of all committed runs, from one listing of the folder.

        What is in the files is not looked at: ``verify`` does that.
        """
        return {match[1] for name in self._listing() if (match := _DONE.fullmatch(name))}

    def is_done(self, run_id: str) -> bool:
        """Say whether a run is committed now, by whoever; one look at a name."""
        return self._record_path(run_id).exists()

    def attempts(self) -> set[tuple[str, int]]:
        """Return (run id, attempt) of all attempts that gave no measurement, from one listing."""
        found = (_FAILED.fullmatch(name) for name in self._listing())
        return {(match[1], int(match[2])) for match in found if match}

    def commit(
        self, record: RunRecord, steps: pa.Table | None, series: pa.Table | None = None
    ) -> RunRecord:
        """Write a measurement: raw steps and series, then the record, which makes the run done.

        Returns the record as written, with all checksums. Raises StoreError where the run is done
        already (a measurement is never overwritten) or the folder cannot be written.
        """
        if record.status != "ok":
            raise ValueError(f"only an ok record is a measurement, not {record.status}")
        path = self._record_path(record.run_id)
        raw = {
            raw_path(self.runs, record.run_id, kind): (f"{kind}_sha256", parquet_bytes(table))
            for kind, table in (("steps", steps), ("series", series))
            if table is not None
        }
        sums = {field: hashlib.sha256(data).hexdigest() for field, data in raw.values()}
        sealed = record.model_copy(update=sums).sealed()
        with named_errors(path, "written"), locked(self.path / ".lock"):
            if path.exists():
                raise StoreError(f"{path}: this run is done already; nothing was overwritten")
            for place, (_, data) in raw.items():
                write_atomic(place, data)
            write_atomic(path, sealed.text())
        return sealed

    def add_failure(self, record: RunRecord) -> RunRecord:
        """Write an attempt that gave no measurement beside the runs; return it with its checksum.

        An attempt belongs to one launch, so what the same attempt wrote before is replaced.
        """
        if record.status == "ok":
            raise ValueError("an ok record is committed, not added as a failure")
        path = self._failure_path(record.run_id, record.attempt)
        sealed = record.sealed()
        with named_errors(path, "written"):
            write_atomic(path, sealed.text())
        return sealed

    def read(self, run_id: str) -> RunRecord:
        """Return a committed record; StoreError: missing, broken, or of a newer schema."""
        return read_record(self._record_path(run_id), run_id)

    def read_failure(self, run_id: str, attempt: int) -> RunRecord:
        """Return an attempt that gave no measurement; errors as of ``read``."""
        return read_record(self._failure_path(run_id, attempt), run_id)

    def read_steps(self, run_id: str) -> pa.Table:
        """Return the raw steps of a committed run, one row a rank and step.

        Raises StoreError where they are missing or not what the record was written with.
        """
        return read_raw(self.runs, self.read(run_id), "steps")

    def read_series(self, run_id: str) -> pa.Table | None:
        """Return a run's raw telemetry; None where none was taken. Errors as of ``read_steps``."""
        record = self.read(run_id)
        return None if record.series_sha256 is None else read_raw(self.runs, record, "series")

    def records(self) -> Iterator[RunRecord]:
        """Yield all records, done runs and failed attempts, in the order of their file names.

        A broken one is left out with a warning, and where it is. Raw steps are not opened.
        """
        for name in sorted(self._listing()):
            match = _DONE.fullmatch(name) or _FAILED.fullmatch(name)
            if match is None:
                continue
            try:
                yield read_record(self.runs / name, match[1])
            except BrokenError as error:
                log.warning("%s; the point counts as missing", error)
            except MissingError:
                continue  # somebody else's quarantine since the listing

    def verify(
        self,
        run_ids: Iterable[str],
        report: Callable[[Broken], None] | None = None,
        check: Callable[[RunRecord], None] | None = None,
    ) -> set[str]:
        """Return those of ``run_ids`` that are done and whole, checksums and raw steps included.

        Broken ones go to quarantine, each reported. A record of a newer schema is a StoreError, and
        ``check``, which gets every whole record, may raise one; then nothing has been moved.
        """
        done = self.done_ids()
        whole: set[str] = set()
        broken: list[tuple[str, str]] = []
        for run_id in run_ids:
            if run_id not in done:
                continue
            try:
                record = read_record(self._record_path(run_id), run_id)
            except BrokenError as error:
                broken.append((run_id, str(error)))
                continue
            except MissingError:
                continue  # somebody else's quarantine since the listing
            fault = raw_fault(self.runs, record)
            if fault:
                broken.append((run_id, fault))
                continue
            if check is not None:
                check(record)
            whole.add(run_id)
        for run_id, fault in broken:
            found = self._set_aside(self._record_path(run_id), run_id, fault)
            (report or (lambda item: log.warning("%s", item)))(found)
        return whole

    def sound_ids(self) -> set[str]:
        """Return the ids of all committed runs whose records are whole; changes nothing.

        Raw steps are not looked at. NewerSchemaError where a record is of a newer schema.
        """
        sound = set()
        for run_id in self.done_ids():
            try:
                data = read_sealed(self._record_path(run_id))
            except (BrokenError, MissingError):
                continue  # ``run`` will find it, say so and measure again
            if data.get("run_id") == run_id:
                sound.add(run_id)
        return sound

    def retract(self, run_id: str, reason: str) -> Broken:
        """Move a committed run to quarantine, because its launch failed after all."""
        return self._set_aside(self._record_path(run_id), run_id, reason)

    def _check_identity(self, create: bool) -> None:
        path = self.path / "sweep.json"
        try:
            data = json.loads(path.read_bytes())
            check_version(data["schema_version"], str(path))
        except FileNotFoundError:
            if not create:
                raise StoreError(
                    f"{self.path}: no results here (there is no sweep.json); "
                    "`hvdscale ls` lists what there is"
                ) from None
        except NotADirectoryError:
            raise StoreError(
                f"{self.path}: a part of this path is a file; choose another --results"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError, IsADirectoryError):
            raise StoreError(
                f"{path}: not what hvdscale wrote; restore it, or choose another --results"
            ) from None

    def _create(self) -> None:
        for folder in (self.runs, self.logs, self.quarantine):
            folder.mkdir(parents=True, exist_ok=True)
        path = self.path / "sweep.json"
        if not path.exists():
            data = {"schema_version": SCHEMA_VERSION, "name": self.name, "created": utc_now()}
            write_atomic(path, json.dumps(data, indent=1).encode())
        # Found out now rather than after the first measurement.
        for folder in (self.path, self.runs, self.logs):
            _prove_writable(folder)

    def _next_config(self) -> Path:
        numbers = [
            int(m[1])
            for entry in os.scandir(self.path)
            if (m := re.fullmatch(r"sweep\.(\d+)\.yaml", entry.name))
        ]
        return self.path / f"sweep.{max(numbers, default=0) + 1}.yaml"

    def _listing(self) -> list[str]:
        try:
            with os.scandir(self.runs) as entries:
                return [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{self.runs}: cannot be read: {error.strerror}") from error

    def _record_path(self, run_id: str) -> Path:
        return self.runs / f"{_checked(run_id)}.json"

    def _failure_path(self, run_id: str, attempt: int) -> Path:
        return self.runs / f"{_checked(run_id)}.attempt-{attempt}.json"

    def _set_aside(self, path: Path, run_id: str, reason: str) -> Broken:
        try:
            self.quarantine.mkdir(exist_ok=True)
            # The record first: without it the run is not done, whatever happens next.
            kept = move_aside(path, self.quarantine / path.name)
            for kind in RAW if _DONE.fullmatch(path.name) else ():
                raw = raw_path(self.runs, run_id, kind)
                if raw.exists():
                    move_aside(raw, kept.with_name(f"{kept.stem}.{kind}.parquet"))
            write_atomic(kept.with_suffix(".reason.txt"), f"{reason}\n".encode())
            sync_folder(self.runs)
        except OSError as error:
            return Broken(run_id, f"{reason} (left where it is: {error.strerror})", path)
        return Broken(run_id, reason, kept)


def _prove_writable(folder: Path) -> None:
    probe = folder / f".probe.{os.getpid()}.tmp"
    try:
        write_atomic(probe, b"")
        probe.unlink()
    except OSError as error:
        # The user knows the folder; the probe is nobody's file.
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _checked(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise StoreError(f"{run_id!r} is no run id")
    return run_id
