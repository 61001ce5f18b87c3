"""What a submission froze: one file a job array, which its elements read.

A sweep that is edited after its submission changes no job that waits: an element does what its
manifest says, or nothing.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from pydantic import Field

from harness.bounded import MAX_LIST_BYTES, read_file
from harness.config.faults import validated_json
from harness.config.models import Count, Frozen, Natural, RunConfig
from harness.errors import StoreError
from harness.spec import Resolved
from harness.store import write_atomic
from harness.store.files import named_errors
from harness.submit.site import Site

SCHEMA_VERSION = 1
COMMENT = "hvdscale"
#: What an element file gives as its reason where a signal ended the element before its work did.
ASKED_TO_END = "asked to end"
JOBS_FILE = "jobs.json"
_COMMENT = re.compile(rf"{COMMENT}:([A-Za-z0-9_-]+):(\d{{1,6}})", re.ASCII)


class Element(Frozen):
    """One element of a job array: launches of one repeat, in one allocation."""

    repeat: Natural
    points: tuple[int, ...]  # places in ``ArrayManifest.configs``
    bases: tuple[int, ...] = ()  # measured here, too; none where the base is an array of its own
    timelines: tuple[int, ...] = ()


class ArrayManifest(Frozen):
    """One job array: elements that share node count and time limit."""

    schema_version: int = SCHEMA_VERSION
    version: str  # of hvdscale that submitted
    sweep: str
    submission: str  # its folder's name below RESULTS/<sweep>/slurm
    number: Natural  # of the array in the submission
    site: Site
    results: Path  # the sweep's folder, absolute
    data_dir: Path
    placement: tuple[Count, ...]  # devices per node of every point here
    time_limit_s: Count  # of an element
    timeout_s: float  # of a launch
    training: bool = False
    sequential: bool = False  # blocks go on until ci_target is reached
    shared_base: bool = False  # bases are points of an array of their own; elements have none
    bases: tuple[int, ...] = ()  # places in ``configs`` of what is a base, point or not
    devices: tuple[Count, ...] = ()  # devices per node to ask for; empty: ``placement``
    configs: tuple[RunConfig, ...]
    resolved: tuple[Resolved, ...]  # as long; hosts are placeholders
    elements: tuple[Element, ...]
    sha256: str = ""  # of this file, with this field empty

    @property
    def room(self) -> tuple[int, ...]:
        """Return devices per node of an element: a base may need more than the points do."""
        return self.devices or self.placement

    @property
    def nodes(self) -> int:
        """Return how many nodes each element has."""
        return len(self.room)

    @property
    def comment(self) -> str:
        """Return what its jobs carry in Slurm's queue, also where no id of theirs was stored."""
        return f"{COMMENT}:{self.submission}:{self.number}"

    def write(self, path: Path) -> None:
        """Write the manifest with its checksum; StoreError where that cannot be."""
        sealed = self.model_copy(update={"sha256": self._digest()})
        with named_errors(path, "written"):
            write_atomic(path, sealed.model_dump_json().encode())

    @classmethod
    def read(cls, path: Path) -> ArrayManifest:
        """Read what ``write`` wrote; StoreError where it is gone, or was changed since."""
        with named_errors(path, "read"):
            text = read_file(path, MAX_LIST_BYTES)
        found = validated_json(cls, text, f"{path}: not the manifest of a job array")
        if found.sha256 != found._digest():
            raise StoreError(
                f"{path}: changed since it was submitted; submit the sweep again instead"
            )
        return found

    def _digest(self) -> str:
        empty = self.model_copy(update={"sha256": ""})
        return hashlib.sha256(empty.model_dump_json().encode()).hexdigest()


class Jobs(Frozen):
    """The jobs of a submission, as far as Slurm has answered: written anew after each answer."""

    schema_version: int = SCHEMA_VERSION
    arrays: dict[int, str] = Field(default_factory=dict)  # number of an array → job id
    collect: str | None = None  # job id

    def write(self, folder: Path) -> None:
        """Write ``jobs.json`` of a submission's folder; StoreError where that cannot be."""
        path = folder / JOBS_FILE
        with named_errors(path, "written"):
            write_atomic(path, self.model_dump_json(indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Jobs:
        """Read what ``write`` wrote, no jobs where nothing was; StoreError, ConfigError."""
        path = folder / JOBS_FILE
        with named_errors(path, "read"):
            try:
                text = read_file(path)
            except FileNotFoundError:
                return cls()
        return validated_json(cls, text, f"{path}: not the jobs of a submission")


def slurm_folder(results: Path) -> Path:
    """Return where a sweep's folder keeps its submissions and the logs of their jobs."""
    return results / "slurm"


def manifest_path(results: Path, submission: str, number: int) -> Path:
    """Return the manifest of a job array; ``results`` is the sweep's folder."""
    return slurm_folder(results) / submission / f"array-{number}.json"


def parse_comment(text: str) -> tuple[str, int] | None:
    """Return submission and number of the array that a job's comment names; None for another."""
    match = _COMMENT.fullmatch(text)
    return (match[1], int(match[2])) if match else None
