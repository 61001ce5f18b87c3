"""What becomes of records that cannot be used: they are moved away, with what belongs to them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.bounded import UnfitError, read_file
from harness.errors import StoreError
from harness.store.files import move_aside, put_back, sync_folder, write_atomic
from harness.store.raw import raw_fault, raw_of_text
from harness.store.reading import BrokenError, Decided, Memo, read_decided


@dataclass(frozen=True)
class Broken:
    """A record that cannot be used, and where it is now."""

    run_id: str
    reason: str
    path: Path  # in quarantine/, or where it was if the folder cannot be written

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}; the point counts as missing"


@dataclass(frozen=True)
class Quarantine:
    """Where the records of one sweep go that cannot be used."""

    folder: Path
    runs: Path
    lock: Path  # of ``put_back``

    def set_aside_broken(self, path: Path, run_id: str, reason: str) -> Broken | None:
        """Move a record that ``judge`` found wanting; None where it is another by now, or gone."""
        return self._set_aside(path, run_id, reason, lambda kept: self._is_bad(kept, run_id))

    def set_aside(self, path: Path, run_id: str, reason: str) -> Broken | None:
        """Move a record that may be good; None as of ``set_aside_broken``."""
        meant = text_of(path)
        return self._set_aside(path, run_id, reason, lambda kept: text_of(kept) == meant)

    def judge(self, path: Path, run_id: str, memo: Memo | None = None) -> Decided | str:
        """Return what matters of a record with sound raw samples, or what is wrong with either.

        Raises MissingError, NewerSchemaError, or StoreError where the disk refuses.
        """
        try:
            record = read_decided(path, run_id, memo)
        except BrokenError as error:
            return str(error).removeprefix(f"{path}: ")  # who asks knows the path
        return raw_fault(self.runs, record) or record

    def _is_bad(self, path: Path, run_id: str) -> bool:
        try:
            return isinstance(self.judge(path, run_id), str)
        except StoreError:
            return False  # of a newer schema, or the disk's fault: no matter for quarantine

    def _set_aside(
        self, path: Path, run_id: str, reason: str, is_meant: Callable[[Path], bool]
    ) -> Broken | None:
        """Move a record and its raw samples.

        Between the look that found it wanting and the move, another process may have put a new one
        in its place: what was moved is looked at again, and goes back where it is not meant.
        """
        place = path
        try:
            self.folder.mkdir(exist_ok=True)
            try:
                # The record first: without it the run is not done, whatever happens next.
                place = move_aside(path, self.folder / path.name)
            except FileNotFoundError:
                return None
            if not is_meant(place) and put_back(place, path, self.lock):
                return None
            self._move_raw(place, run_id)
            write_atomic(place.with_suffix(".reason.txt"), f"{reason}\n".encode())
            sync_folder(self.runs)
        except OSError as error:
            where = "left where it is" if place == path else "not all of it moved"
            return Broken(run_id, f"{reason} ({where}: {error.strerror})", place)
        return Broken(run_id, reason, place)

    def _move_raw(self, kept: Path, run_id: str) -> None:
        for kind, raw in list(raw_of_text(self.runs, run_id, text_of(kept))):
            with suppress(FileNotFoundError):  # another process was faster
                move_aside(raw, kept.with_name(f"{kept.stem}.{kind}.parquet"))


def text_of(path: Path) -> bytes:
    """Return a record's text, whatever it is; nothing of what is no file, a bad link, or gone."""
    try:
        return read_file(path)
    except (IsADirectoryError, UnfitError):
        return b""
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        return b""
