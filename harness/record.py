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

SCHEMA_VERSION = 5

_SHA256_CHARS = 64

Status = Literal["ok", "failed", "timeout", "stalled", "preempted", "cancelled"]
#: What a launch is for: only ``bench`` has a window, and is a source of speedup.
Kind = Literal["bench", "train", "allreduce", "timeline"]

#: Columns of the Parquet file of raw steps, one row a rank and step (or all-reduce).
STEP_COLUMNS = (
    # "none": the window; "phases"; "allreduce": the isolated all-reduce; "ablation", "telemetry":
    # blocks, each the mean of its steps, beside "ablation_without" and "telemetry_without"
    "instrument",
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
    "ready_s",  # last local gradient ready, on the host's monotonic clock
)


#: An instrument that costs more than this part of a step is named wherever its point is shown,
COSTLY = 0.05
#: with what it then says less of. Telemetry runs beside the window, the others after it.
CONSEQUENCE = {
    "phases": "its phases are not the window's",
    "ablation": "its steps with and without all-reduce are not the window's",
    "telemetry": "the window itself had it beside it",
    "timeline": "its steps are not the window's",
}


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


class Steadiness(Frozen):
    """Whether the window's pace was one pace, and what stands out of it; of the slowest rank."""

    segments: int  # parts of the window that are compared, each of many steps
    change: float | None  # of a step's time from the window's start to its end, relative
    p_value: float | None  # that no trend gives as much; None where there are too few segments
    drifting: bool
    outliers: int  # steps of any rank, see measure/steadiness.py
    outlier_time_share: float  # of all ranks' time that outliers took beyond a median step


class Window(Frozen):
    """The timed steps, source of throughput: no instrument in them, at most a sampler beside."""

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
    steadiness: Steadiness | None = None


class Phases(Frozen):
    """Means over ranks and instrumented steps, after the window, overlap left as it is."""

    steps: int
    step_s: float
    sum_s: float | None  # of the phases: their difference from the window's step is not hidden
    data_s: float | None  # None where the engine cannot mark its ends
    forward_s: float | None
    backward_s: float | None
    exposed_sync_s: float | None  # None, too, where nothing is synchronised
    transfer_s: float | None
    wait_s: float | None
    update_s: float | None


class Ablation(Frozen):
    """Steps with and without the all-reduce, in ABBA blocks after the window."""

    block_steps: int  # timed steps of one block; the first ones after a switch are not timed
    with_s: tuple[float, ...]  # a step of each block, mean over ranks
    without_s: tuple[float, ...]
    difference_s: float  # mean of (with − without) over the pairs
    error_s: float  # standard error of the difference, from the pairs' scatter
    exposed_sync_s: float | None  # of the phases of this launch
    interference_s: float | None  # difference − exposed: what communication costs besides waiting


class ClockCheck(Frozen):
    """Wait from the ranks' arrival times on one clock, to check the wait that needs no clock."""

    method: str
    offsets_s: tuple[float, ...]  # of each rank's clock from rank 0's, in the middle of the block
    error_s: float  # the largest: half of the least round trip; 0 inside a host
    drift: float  # the largest change of an offset, seconds a second
    skew_s: float  # mean over steps of last arrival − first arrival
    wait_s: float  # mean over ranks and steps of last arrival − own arrival
    resolved: bool  # False: the skew is below the error


class Timeline(Frozen):
    """A bounded number of steps in Horovod's own account (rank 0's); means a step."""

    steps: int
    step_s: float  # while it was written, of the longest rank
    plain_step_s: float  # in the same launch, before and after
    negotiation_s: float | None  # of all tensors, from the first request to the last rank's
    queue_s: float | None
    copy_in_s: float | None  # into the fusion buffer
    allreduce_s: float | None
    copy_out_s: float | None
    cycles: float | None
    tensors: float
    allreduces: float  # fused operations
    tensors_fused: float  # in one operation
    file: str  # in the launch's log folder


class DeviceTelemetry(Frozen):
    """One device over the window. What the device does not tell is None."""

    index: int
    uuid: str
    name: str
    samples: int
    utilisation_mean: float | None  # 0..1, NVML's: share of time in which any kernel ran
    sm_activity_mean: float | None  # 0..1
    memory_used_max_bytes: int | None
    power_mean_w: float | None
    energy_j: float | None
    energy_per_sample_j: float | None  # a sample of the ranks on this device
    sm_clock_mean_mhz: float | None
    throttle_reasons: tuple[str, ...] | None  # seen in any sample; None: not told


class NodeTelemetry(Frozen):
    """One node over the window."""

    host: str
    samples: int
    interval_s: float
    cpu_utilisation_mean: float | None  # 0..1 of the node's cores; None in too short a window
    rank_cpu_mean: tuple[float | None, ...]  # cores busy for each rank of the node
    rank_rss_max_bytes: tuple[int | None, ...]
    devices: tuple[DeviceTelemetry, ...] = ()


class Telemetry(Frozen):
    """What the nodes did during the window, by a sampler beside the ranks."""

    nodes: tuple[NodeTelemetry, ...]
    power_mean_w: float | None  # of all devices
    energy_per_sample_j: float | None  # of all devices


class FeedTimes(Frozen):
    """Batches brought to the device with nothing else running; means over ranks.

    A batch's time is that of a pass / its batches, read ahead as in training: with workers batches
    come in bursts, and a median would be one of what lay ready.
    """

    batches: int  # of the warm pass, the least of any rank
    batch_bytes: int  # of one rank
    files: int  # that batches are read from; 0: they are in memory
    file_bytes: int
    warm_s: float  # a batch, the file cache as training left it
    cold_batches: int | None
    cold_s: float | None  # the same batches after the kernel dropped the files; None where not
    cached_warm: float | None  # share of the files in the kernel's cache before the pass, of the
    cached_cold: float | None  # node with most; None where it does not tell, or nothing is read


class Evaluation(Frozen):
    """The test split at one moment of a training; times are the longest rank's, from its start."""

    step: int  # steps done; 0: the weights as they were initialised
    epoch: float  # of the training set
    train_s: float  # in training steps alone
    wall_s: float  # until the metrics were known: with evaluations and checkpoints
    learning_rate: float | None  # of the last step; None at step 0
    loss: float | None  # mean over ranks and the steps since the evaluation before
    metrics: dict[str, float]  # of rank 0's model


class NoiseEstimate(Frozen):
    """The gradient's noise at one moment of a training, from local and reduced gradients."""

    step: int
    batches: int
    small_batch: int  # samples of a local gradient
    large_batch: int  # of a reduced one
    gradient_norm_sq: float  # of the true gradient, estimated without bias: it may be negative
    noise_trace: float  # trace of a sample's covariance
    noise_scale: float | None  # samples; None where noise hides the gradient


class Training(Frozen):
    """A training to an epoch count or a target metric; times are the longest rank's."""

    steps: int
    epochs: float
    samples: int  # of all ranks
    steps_per_epoch: int
    metric: str
    lower_is_better: bool
    target: float | None
    reached: bool | None  # None without a target
    steps_to_target: int | None
    train_s_to_target: float | None  # at the first evaluation that reached it
    wall_s_to_target: float | None
    train_s: float
    evaluation_s: float
    checkpoint_s: float
    noise_s: float
    wall_s: float  # all of these, and what lies between them
    evaluations: tuple[Evaluation, ...]
    noise: tuple[NoiseEstimate, ...]
    parameter_checksum: str  # equal on all ranks, or there is no record
    gradient_allreduce: bool  # False where one rank trains alone
    bytes_reduced: int  # by one rank
    checkpoint: str | None = None  # the last one's file, in the launch's log folder


class AllReduce(Frozen):
    """The gradient's bytes reduced with nothing else running."""

    bytes: int
    iterations: int
    latency_p50_s: float  # of the slowest rank of each iteration
    latency_p99_s: float
    algbw_bytes_per_s: float  # bytes / p50
    busbw_bytes_per_s: float  # algbw × 2(N−1)/N, as nccl-tests defines it


class Placed(Frozen):
    """Where the ranks were, as they saw it; ``resolved`` has what was asked for."""

    hosts: tuple[str, ...]  # by their own names, in the order of their first ranks
    ranks_per_host: tuple[int, ...]
    local_ranks: tuple[int, ...]  # of every rank, in order


class DataSource(Frozen):
    """Where the ranks read the workload's files."""

    folder: str  # rank 0's; each node's own where it is scratch
    scratch: str | None = None  # as it was asked for, variables left in; None: the shared folder
    copied_bytes: int | None = None  # to all nodes together; 0: good copies were there before
    copy_s: float | None = None  # of the node that took longest; None where nothing is copied


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
    ablation: Ablation | None = None
    clocks: ClockCheck | None = None
    timeline: Timeline | None = None
    allreduce: AllReduce | None = None
    telemetry: Telemetry | None = None
    #: By instrument: a step with it / a step without it in this launch − 1.
    overheads: dict[str, float] = Field(default_factory=dict)
    #: Their standard errors, from the scatter of blocks; of one that has a single block, none.
    overhead_errors: dict[str, float] = Field(default_factory=dict)
    provenance: dict[str, Any] = Field(default_factory=dict)
    slurm: dict[str, Any] | None = None  # the job, see provenance/slurm.py; None outside of one
    placed: Placed | None = None
    data_source: DataSource | None = None
    feed: FeedTimes | None = None
    training: Training | None = None
    error: RunError | None = None
    steps_sha256: str | None = None  # of the Parquet file
    series_sha256: str | None = None  # of the Parquet file of telemetry
    sha256: str = ""  # of this record, with this field empty

    def sealed(self) -> RunRecord:
        """Return the record with its own checksum filled in."""
        empty = self.model_copy(update={"sha256": ""})
        return empty.model_copy(update={"sha256": hashlib.sha256(empty.text()).hexdigest()})

    def text(self) -> bytes:
        """Return the record as its file has it."""
        return self.model_dump_json(indent=1).encode()


def is_whole(text: bytes, data: Mapping[str, Any]) -> bool:
    """Say whether ``text``, which was parsed to ``data``, is what a record was sealed with.

    Of whatever version it is: that is asked before any migration. The checksum is of the text with
    an empty ``sha256``, which is the last field; in version 1 it was of the plain data, as of
    ``digest``.
    """
    found = data.get("sha256")
    if data.get("schema_version") == 1:
        return bool(found == digest(data))
    if not isinstance(found, str) or len(found) != _SHA256_CHARS:
        return False
    at = text.rfind(found.encode())
    empty = text[:at] + text[at + _SHA256_CHARS :]
    return at >= 0 and hashlib.sha256(empty).hexdigest() == found


def digest(data: Mapping[str, Any]) -> str:
    """Return the checksum of plain data, in which its field ``sha256`` has no part."""
    text = json.dumps({**data, "sha256": ""}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
