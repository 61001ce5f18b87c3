"""What a search remembers beside its records, in ``RESULTS/<name>/tune.json``.

The records tell what was measured; this file how long launches took from start to end, and where a
search of which request ended, so that the same command, given again, does nothing twice.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic import ValidationError as PydanticError

from harness.bounded import UnfitError, read_file
from harness.config.models import Frozen
from harness.errors import StoreError
from harness.store import write_atomic
from harness.store.files import named_errors

FILE = "tune.json"
VERSION = 1


class State(Frozen):
    """One search."""

    version: int = VERSION
    request: str  # ``Request.key``
    spent_s: float = 0.0  # on search and validation, all runs of the command together
    wall_s: dict[str, float] = Field(
        default_factory=dict
    )  # by run id: of a launch of the search, start to end
    blocks: int | None = None  # of the validation, once that is planned
    autotune: bool = False  # in the validation
    note: str = ""  # about that plan
    tried: int | None = None  # trials of a search that is over
    ended_by: str = ""  # what ended it

    @property
    def search_is_over(self) -> bool:
        """Say whether the search of this request has come to its end."""
        return self.tried is not None

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all; StoreError where it cannot be written."""
        path = folder / FILE
        with named_errors(path, "written"):
            write_atomic(path, self.model_dump_json(indent=1).encode())


def load_state(folder: Path, request: str) -> State:
    """Return what is remembered of ``request``: nothing yet, if it is another request's.

    How long launches took is true of any request. StoreError where the file is not ours.
    """
    path = folder / FILE
    try:
        text = read_file(path)
    except FileNotFoundError:
        return State(request=request)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    except UnfitError as error:
        raise StoreError(f"{path}: {error}; remove it, or give another --name") from None
    try:
        found = State.model_validate_json(text)
    except PydanticError:
        raise StoreError(
            f"{path}: not what this hvdscale wrote; remove it (records stay), or give another "
            "--name"
        ) from None
    if found.version != VERSION:
        raise StoreError(f"{path}: of version {found.version}; give another --name")
    if found.request == request:
        return found
    return State(request=request, wall_s=found.wall_s)


class Memory:
    """The state of a search while it goes on: each change is in the file at once."""

    def __init__(self, folder: Path, request: str) -> None:
        self._folder = folder
        self._started_s = time.monotonic()
        self.state = load_state(folder, request)
        self._before_s = self.state.spent_s

    @property
    def now_s(self) -> float:
        """Return the time spent so far, that of earlier runs of the command included."""
        return self._before_s + time.monotonic() - self._started_s

    def update(self, *, spending: bool = True, **changes: Any) -> None:
        """Change the state; ``spending`` says whether this run of the command did anything."""
        spent = {"spent_s": self.now_s} if spending else {}
        self.state = self.state.model_copy(update={**spent, **changes})
        self.state.save(self._folder)
