"""What is kept of a launch: one JSON record, with the raw steps in a Parquet file beside it.

Times are in seconds, sizes in bytes. A field that was not measured is None, never zero.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from harness.config.models import Frozen, RunConfig
from harness.spec import BlockRef, Resolved

SCHEMA_VERSION = 1

Status = Literal["ok", "failed", "timeout", "stalled", "preempted", "cancelled"]
Kind = Literal["bench", "train", "allreduce"]

#: Columns of the Parquet file of raw steps, one row a rank and step (or all-reduce).
STEP_COLUMNS = (
    "instrument",  # "none": the window; "phases"; "allreduce": the isolated all-reduce
    "rank",
    "step",
    "step_s",
    "data_s",
    "forward_s",
    "backward_s",
    "exposed_sync_s",
    "transfer_s",
    "wait_s",
    "update_s",
)


class WorkloadFacts(Frozen):
    """What the workload said of itself."""

    train_samples: int
    parameters: int
    gradient_bytes: int
    flops_per_sample: float
    learning_rate: float  # in force, after the rule


class BackendProof(Frozen):
    """What moved the gradient bytes, and how that is known."""

    requested: str | None
    proven: str | None
    controller: str | None
    evidence: dict[str, str]


class Window(Frozen):
    """The timed steps: uninstrumented, the source of throughput."""

    steps: int
    warmup_steps: int
    warmup_s: float
    samples: int  # of all ranks
    wall_s: float  # the longest rank's
    rank_wall_s: tuple[float, ...]
    rank_started_at_s: tuple[float, ...]  # of the window, seconds since the epoch on each's clock
    throughput_samples_per_s: float
    step_median_s: float  # over all ranks and steps; diagnostic, hides periodic stalls
    first_loss: float
    last_loss: float
    parameter_checksum: str  # equal on all ranks, or there is no record
    gradient_allreduce: bool  # False where one rank trains alone, also under Horovod at size 1
    bytes_reduced: int  # by one rank over the window


class Phases(Frozen):
    """Means over ranks and instrumented steps, after the window, overlap left as it is."""

    steps: int
    step_s: float
    data_s: float | None  # None where the engine cannot mark its ends
    forward_s: float | None
    backward_s: float | None
    exposed_sync_s: float | None  # None, too, where nothing is synchronised
    transfer_s: float | None
    wait_s: float | None
    update_s: float | None
    overhead: float  # instrumented step / window step − 1, of this launch


class AllReduce(Frozen):
    """The gradient's bytes reduced with nothing else running."""

    bytes: int
    iterations: int
    latency_p50_s: float  # of the slowest rank of each iteration
    latency_p99_s: float
    algbw_bytes_per_s: float  # bytes / p50
    busbw_bytes_per_s: float  # algbw × 2(N−1)/N, as nccl-tests defines it


class RunError(Frozen):
    """Why a launch gave no measurement."""

    cause: str  # one line, the likely one
    exit_code: int | None = None
    rank_tails: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # last lines by rank
    launcher_tail: tuple[str, ...] = ()


class RunRecord(Frozen):
    """One attempt at one launch. Only ``status: ok`` is done."""

    schema_version: int = SCHEMA_VERSION
    kind: Kind = "bench"
    run_id: str
    attempt: int
    status: Status
    sweep: str
    block: BlockRef
    config: RunConfig
    resolved: Resolved
    started_at: str  # ISO 8601, UTC
    ended_at: str
    argv: tuple[str, ...] = ()  # what started the ranks
    workload: WorkloadFacts | None = None
    backend: BackendProof | None = None
    window: Window | None = None
    phases: Phases | None = None
    allreduce: AllReduce | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)
    telemetry: dict[str, Any] | None = None
    slurm: dict[str, Any] | None = None
    evaluations: tuple[dict[str, Any], ...] | None = None
    error: RunError | None = None
    steps_sha256: str | None = None  # of the Parquet file
    sha256: str = ""  # of this record, with this field empty

    def sealed(self) -> RunRecord:
        """Return the record with its own checksum filled in."""
        return self.model_copy(update={"sha256": digest(self.model_dump(mode="json"))})


def digest(data: Mapping[str, Any]) -> str:
    """Return the checksum of a record's plain data, in which its field ``sha256`` has no part.

    The data as it is written, of whatever version: it is compared before any migration.
    """
    text = json.dumps({**data, "sha256": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
