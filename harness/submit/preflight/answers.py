"""What the programs on the nodes write into the shared folder, and where; no framework in here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from harness.config.faults import validated_json
from harness.config.models import Frozen
from harness.store import write_atomic
from harness.submit.preflight.record import NodeReport, Speed, Way


class Trained(Frozen):
    """One device's program: ``speed``."""

    speed: Speed
    uuid: str | None  # of a GPU, as NVML writes it
    facts: dict[str, str]  # of what is loaded in a process that trains


class Linked(Frozen):
    """One rank's links: ``links``. Ends are ranks, as text: only all answers tell their nodes."""

    node: str
    ways: tuple[Way, ...] = ()
    interface: str = ""
    address: str = ""
    interface_bits_per_s: float | None = None
    facts: dict[str, str] = Field(default_factory=dict)  # what moved the bytes, by its own words
    finished: bool = False


class Keeper:
    """A rank's links so far, in its file."""

    def __init__(self, path: Path, node: str) -> None:
        self._path, self.found = path, Linked(node=node)

    def keep(self, **fields: Any) -> None:
        """Replace fields and write."""
        self.found = self.found.model_copy(update=fields)
        write_atomic(self._path, self.found.model_dump_json().encode())


def trained_path(folder: Path, rank: int, device: int) -> Path:
    """Return where one device's answer is."""
    return folder / f"speed-{rank}-{device}.json"


def linked_path(folder: Path, rank: int) -> Path:
    """Return where a rank's links are."""
    return folder / f"links-{rank}.json"


def report_path(folder: Path, rank: int) -> Path:
    """Return where a node's report is."""
    return folder / f"node-{rank}.json"


def ready_path(folder: Path, rank: int, device: int) -> Path:
    """Return the file whose being there says that a device's program is not to be waited for."""
    return folder / f"ready-{rank}-{device}"


def log_path(folder: Path, program: str, name: str) -> Path:
    """Return where a program prints to."""
    return folder / f"{program}-{name}.log"


def read_trained(path: Path) -> Trained | None:
    """Return an answer; None where there is none."""
    return validated_json(Trained, path.read_bytes(), str(path)) if path.exists() else None


def read_linked(path: Path) -> Linked | None:
    """Return an answer; None where there is none."""
    return validated_json(Linked, path.read_bytes(), str(path)) if path.exists() else None


def read_report(path: Path) -> NodeReport | None:
    """Return a report; None where there is none."""
    return validated_json(NodeReport, path.read_bytes(), str(path)) if path.exists() else None
