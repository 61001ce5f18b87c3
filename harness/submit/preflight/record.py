"""What is kept of one preflight: findings, and every sample that they come from.

Times are in seconds, sizes in bytes. What was not measured is absent, never zero.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field

from harness.bounded import read_file
from harness.config.faults import validated_json
from harness.config.models import Frozen, RunConfig
from harness.errors import StoreError
from harness.record import digest
from harness.store import write_atomic
from harness.store.files import named_errors
from harness.store.migrate import check_version

SCHEMA_VERSION = 1
FOLDER = "preflight"

Kind = Literal[
    "dead-node", "dead-link", "slow-node", "slow-device", "slow-link", "one-way", "unlike",
    "throttled", "busy", "failed",
]  # fmt: skip


class Speed(Frozen):
    """One device of a node, training alone; every look is blocks of equally many steps."""

    device: int
    batch: int
    block_steps: int
    looks_step_s: tuple[tuple[float, ...], ...]  # by look, seconds a step of its blocks in order

    @property
    def step_s(self) -> float:
        """Return the median block's seconds a step, over all looks."""
        return median(value for look in self.looks_step_s for value in look)

    @property
    def samples_per_s(self) -> float:
        """Return the speed."""
        return self.batch / self.step_s


class Clock(Frozen):
    """A device's clock while it worked: of a GPU its multiprocessors', of a CPU the fastest."""

    device: str  # "GPU 0", "CPU"
    mhz: tuple[float, ...]  # samples in order; empty where it cannot be read
    max_mhz: float | None = None
    throttle: dict[str, float] = Field(default_factory=dict)  # reason -> share of the samples, 0..1


class NodeReport(Frozen):
    """One node, as its own program found it."""

    node: str
    facts: dict[str, str] = Field(default_factory=dict)  # what has to be the same on all nodes
    cores: int = 0
    load_1min: float | None = None  # before anything of ours ran
    speeds: tuple[Speed, ...] = ()
    clocks: tuple[Clock, ...] = ()
    interface: str = ""  # by which it reaches the others, and its address
    interface_bits_per_s: float | None = None  # what the interface says of itself
    notes: tuple[str, ...] = ()
    error: str = ""  # why it is not whole
    tail: tuple[str, ...] = ()  # its last lines, where something failed

    @property
    def samples_per_s(self) -> float | None:
        """Return the median over its devices; None where none was measured."""
        return median(one.samples_per_s for one in self.speeds) if self.speeds else None


class Way(Frozen):
    """One direction of one link by one library, as the sending node saw it."""

    library: Literal["gloo", "nccl", "mpi"]
    source: str
    target: str
    look: int = 0
    round_trip_s: tuple[float, ...] = ()  # of 8 bytes there and back, in order
    bytes: int = 0  # of one transfer
    transfer_s: tuple[float, ...] = ()  # each until the target's word is back
    error: str = ""

    @property
    def latency_s(self) -> float:
        """Return the median round trip / 2."""
        return median(self.round_trip_s) / 2

    @property
    def bytes_per_s(self) -> float:
        """Return the median transfer's bandwidth."""
        return self.bytes / median(self.transfer_s)


class Finding(Frozen):
    """One thing that is wrong, in one plain sentence."""

    kind: Kind
    nodes: tuple[str, ...]
    text: str
    tail: tuple[str, ...] = ()  # last lines of what failed


class Preflight(Frozen):
    """One preflight; the order of nodes is the allocation's."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["preflight"] = "preflight"
    version: str  # of hvdscale
    sweep: str | None
    started_at: str  # ISO 8601, UTC
    ended_at: str
    allocation: str
    launcher: str  # that started the programs on the nodes
    device: Literal["cpu", "cuda"]
    config: RunConfig  # of the steps that every node trained
    nodes: tuple[NodeReport, ...]
    links: tuple[Way, ...] = ()
    transports: dict[str, dict[str, str]] = Field(
        default_factory=dict
    )  # by library, in its own words
    absent: tuple[str, ...] = ()  # what was not measured, and why
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()  # worth knowing, and nothing wrong
    sha256: str = ""  # of this record, with this field empty

    @property
    def exit_code(self) -> int:
        """Return 0 where nothing was found, else 1."""
        return int(bool(self.findings))

    def sealed(self) -> Preflight:
        """Return the record with its own checksum filled in."""
        return self.model_copy(update={"sha256": digest(self.model_dump(mode="json"))})

    def write(self, path: Path) -> None:
        """Write the sealed record, whole or not at all; StoreError where that cannot be."""
        with named_errors(path, "written"):
            write_atomic(path, (self.sealed().model_dump_json(indent=1) + "\n").encode())


def read_preflight(path: Path) -> Preflight:
    """Return the record in ``path``.

    Raises StoreError where it is no such record, was changed, or a newer hvdscale wrote it.
    """
    with named_errors(path, "read"):
        text = read_file(path)
    data = _plain(path, text)
    try:
        check_version(data.get("schema_version"), str(path), newest=SCHEMA_VERSION)
    except ValueError as error:
        raise StoreError(f"{path}: {error}; run the preflight again") from None
    if data.get("sha256") != digest(data):
        raise StoreError(f"{path}: changed since it was written (wrong checksum); run it again")
    return validated_json(Preflight, text, f"{path}: not a record of hvdscale preflight")


def _plain(path: Path, text: bytes) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise StoreError(f"{path}: no JSON; run the preflight again") from None
    if not isinstance(data, dict) or data.get("kind") != "preflight":
        raise StoreError(f"{path}: not a record of hvdscale preflight")
    return data
