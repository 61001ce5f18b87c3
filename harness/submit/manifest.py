"""What a submission froze: one file a job array, which its elements read.

A sweep that is edited after its submission changes no job that waits: an element does what its
manifest says, or nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from harness.config.faults import validated_json
from harness.config.models import Count, Frozen, Natural, RunConfig
from harness.errors import StoreError
from harness.spec import Resolved
from harness.store import write_atomic
from harness.store.files import named_errors
from harness.submit.site import Site

SCHEMA_VERSION = 1


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
    configs: tuple[RunConfig, ...]
    resolved: tuple[Resolved, ...]  # as long; hosts are placeholders
    elements: tuple[Element, ...]
    sha256: str = ""  # of this file, with this field empty

    @property
    def nodes(self) -> int:
        """Return how many nodes each element has."""
        return len(self.placement)

    def write(self, path: Path) -> None:
        """Write the manifest with its checksum; StoreError where that cannot be."""
        sealed = self.model_copy(update={"sha256": self._digest()})
        with named_errors(path, "written"):
            write_atomic(path, sealed.model_dump_json().encode())

    @classmethod
    def read(cls, path: Path) -> ArrayManifest:
        """Read what ``write`` wrote; StoreError where it is gone, or was changed since."""
        with named_errors(path, "read"):
            text = path.read_bytes()
        found = validated_json(cls, text, f"{path}: not the manifest of a job array")
        if found.sha256 != found._digest():
            raise StoreError(
                f"{path}: changed since it was submitted; submit the sweep again instead"
            )
        return found

    def _digest(self) -> str:
        empty = self.model_copy(update={"sha256": ""})
        return hashlib.sha256(empty.model_dump_json().encode()).hexdigest()
