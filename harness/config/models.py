"""The config as frozen types. A field's default is what the README documents.

``RunConfig`` holds only what changes a measurement; what organises a campaign (name, blocks, order,
timeouts, base) lives in ``Sweep``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from harness.config.placement import Placement

LAUNCHERS = ("inline", "horovodrun", "mpirun", "srun", "torchrun")


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value}")
    return value


def _cores(value: object) -> object:
    number = isinstance(value, int | float | str) and str(value).removesuffix(".0").isdigit()
    if value in ("fixed", "share") or (number and float(str(value)) > 0):
        return value
    raise ValueError(f"{value!r} is neither 'fixed' nor 'share' nor a number of cores above 0")


def _once(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _at_most(limit: float) -> AfterValidator:
    """A bound of what may be asked for. No part of a record's schema, unlike ``Field(le=...)``."""

    def check(value: Any) -> Any:
        if value > limit:
            raise ValueError(f"should be at most {limit:g}, got {value:g}")
        return value

    return AfterValidator(check)


Count = Annotated[int, BeforeValidator(_no_bool), Field(gt=0, le=10**12)]
Natural = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=10**12)]
Positive = Annotated[float, BeforeValidator(_no_bool), Field(gt=0)]
NotNegative = Annotated[float, BeforeValidator(_no_bool), Field(ge=0)]
# More than any measurement needs; beyond is an overflow, or a loop without an end.
MAX_STEPS = 10**7
MAX_BLOCKS = 10**4


#: ``timeline`` is a launch of its own; the others follow the window of the same launch.
Instrument = Literal["phases", "ablation", "clocks", "telemetry", "data", "timeline"]


class Frozen(BaseModel):
    """Base of all config and record types: immutable, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WorkloadConfig(Frozen):
    """Which training job, in which framework; every other key is an option of the workload."""

    name: str
    framework: Literal["torch", "tensorflow"] = "torch"
    options: dict[str, int | float | str | bool] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"name": data}
        if not isinstance(data, dict):
            return data
        known = {"name", "framework", "options"}
        extra = {key: value for key, value in data.items() if key not in known}
        options = data.get("options", {})
        if not isinstance(options, dict):
            return data
        rest = {key: value for key, value in data.items() if key in known - {"options"}}
        return rest | {"options": {**options, **extra}}


class Execution(Frozen):
    """How a step is computed, beside what it computes."""

    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    graph: bool = False
    compile: bool = False
    channels_last: bool = False
    accumulate: Count = 1  # local batches whose gradients are summed before one all-reduce
    fused_optimiser: bool = False  # the framework's optimiser, one kernel for many parameters
    cudnn_benchmark: bool = False  # cuDNN tries its algorithms for each new shape, keeps the best


#: What ``horovod.autotune`` chooses at run time.
AUTOTUNED = ("cycle_time_ms", "fusion_threshold_mb", "cache_capacity")


class HorovodTuning(Frozen):
    """Horovod's own knobs; the defaults are those of Horovod 0.28.1 unless a comment says so."""

    controller: Literal["mpi", "gloo"] | None = None  # None: the first that fits the launcher
    cycle_time_ms: Annotated[NotNegative, _at_most(1e6)] = 1.0
    fusion_threshold_mb: Annotated[NotNegative, _at_most(1e6)] = 128.0
    async_completion: bool = False
    # 0: no groups, tensors are fused as they become ready
    groups: Annotated[Natural, _at_most(10**6)] = 0
    compression: Literal["none", "fp16", "bf16"] = "none"
    cache_capacity: Annotated[Natural, _at_most(10**6)] = 1024  # of tensors, 0: negotiate them all
    op: Literal["average", "adasum"] = "average"
    hierarchical_allreduce: bool = False
    torus_allreduce: bool = False
    # Horovod looks for cycle time, fusion threshold and use of the cache by itself, at run time
    autotune: bool = False

    @model_validator(mode="before")
    @classmethod
    def _by_preset(cls, data: Any) -> Any:
        if not isinstance(data, str) and not (isinstance(data, dict) and "preset" in data):
            return data
        from harness.config.tuning_presets import with_preset  # which knows this class
        from harness.errors import ConfigError

        try:
            return with_preset(data)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _chosen_once(self) -> HorovodTuning:
        for name in AUTOTUNED if self.autotune else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"autotune chooses {name} by itself; leave {name} out, or set autotune to false"
                )
        return self


class DdpTuning(Frozen):
    """DistributedDataParallel's own knobs, at torch's defaults."""

    # None: torch's own, a first bucket of 1 MiB and others of 25; a number is for all buckets
    bucket_mb: Annotated[Positive, _at_most(1e6)] | None = None
    gradient_as_bucket_view: bool = False  # gradients live in the buckets, and are not copied back
    static_graph: bool = False  # every step uses the same parameters, in the same order


class LearningRate(Frozen):
    """Base rate (None: the workload's own) and how it follows the global batch."""

    base: Positive | None = None
    base_batch: Count | None = None
    rule: Literal["none", "sqrt", "linear"] = "none"
    warmup_epochs: NotNegative = 0.0  # of a training: the rate grows linearly to what the rule says


class Loader(Frozen):
    """How ``data: disk`` reads ahead; it has no meaning elsewhere."""

    workers: Annotated[Natural, _at_most(256)] = 2  # threads; 0: a batch is read when asked for
    prefetch: Annotated[Count, _at_most(1024)] = 2  # batches that lie ready at most


class Train(Frozen):
    """Training to an epoch count or a target (``hvdscale train``), instead of a window."""

    epochs: Positive = 1.0  # at most, where there is a target
    target: float | None = None  # of the workload's target metric, on the test split
    evaluate_every: Positive = 1.0  # epochs
    checkpoint: bool = False  # the weights, at each evaluation
    noise_scale: bool = True  # estimate it at each evaluation


class Measure(Frozen):
    """What a launch measures. The window lasts ``window_s``, but never under ``min_steps``.

    The warm-up has at least ``warmup_steps``: it goes on until the pace that the window is planned
    from is that of warm steps.
    """

    warmup_steps: Annotated[Natural, _at_most(MAX_STEPS)] = 20
    window_s: Annotated[Positive, _at_most(1e6)] = 5.0
    min_steps: Annotated[Count, _at_most(MAX_STEPS)] = 50
    instruments: Annotated[tuple[Instrument, ...], AfterValidator(_once)] = ("phases",)
    timeline_steps: Annotated[Count, _at_most(10**4)] = 20


class SweepMeasure(Measure):
    """``Measure``, and how often a launch is repeated."""

    blocks: Annotated[Count, _at_most(MAX_BLOCKS)] = 5
    ci_target: Positive | None = None  # relative half width of the interval that ends a sweep
    max_blocks: Annotated[Count, _at_most(MAX_BLOCKS)] = 10
    timeout_s: Annotated[Positive, _at_most(1e7)] = 600.0

    @model_validator(mode="after")
    def _room_for_more_blocks(self) -> SweepMeasure:
        if self.ci_target is not None and self.max_blocks < self.blocks:
            raise ValueError(
                f"max_blocks {self.max_blocks} is below blocks {self.blocks}; "
                "with ci_target it is how far blocks may grow"
            )
        return self


class Base(Frozen):
    """What speedup divides by; ``placement: node`` is one full node of the machine."""

    engine: Literal["horovod", "ddp", "none"] = "none"
    placement: Placement | Literal["node"] = Placement(1, (1,))

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        if isinstance(data, str):
            if data == "node":
                return {"engine": "horovod", "placement": "node"}
            engine, at, size = data.partition("@")
            if not at or size != "1":
                raise ValueError(f"base '{data}' is not one of none@1, horovod@1, ddp@1, node")
            return {"engine": engine}
        return data


class RunConfig(Frozen):
    """One point: everything that changes what is measured, and nothing else."""

    workload: WorkloadConfig
    engine: Literal["horovod", "ddp", "none"] = "horovod"
    backend: Literal["nccl", "mpi", "mpi-host", "gloo"] | None = None
    launcher: Literal["inline", "horovodrun", "mpirun", "srun", "torchrun"] | None = None
    placement: Placement = Placement(1, (1,))
    placement_policy: Literal["pack", "spread"] = "pack"
    scaling: Literal["weak", "strong"] = "weak"
    batch_size: Count | None = None
    global_batch_size: Count | None = None
    data: Literal["device", "host", "disk"] = "device"
    loader: Loader = Loader()
    execution: Execution = Execution()
    horovod: HorovodTuning = HorovodTuning()
    ddp: DdpTuning = DdpTuning()
    learning_rate: LearningRate = LearningRate()
    cores_per_rank: Annotated[Literal["fixed", "share"] | Count, BeforeValidator(_cores)] = "fixed"
    seed: Natural = 1
    deterministic: bool = False
    measure: Measure = Measure()
    train: Train | None = None  # set by ``hvdscale train`` alone

    @model_validator(mode="after")
    def _drop_what_has_no_meaning(self) -> RunConfig:
        """``engine: none`` has no backend and no tuning, other engines only their own; explicit
        placements have no policy, and only the disk has a loader. Dropping them, once they are
        checked, makes equal points equal.
        """
        drop = {"none": ["backend", "horovod", "ddp"], "ddp": ["horovod"], "horovod": ["ddp"]}[
            self.engine
        ]
        if self.engine == "none" and self.launcher not in ("inline", "srun"):
            drop.append("launcher")
        if self.placement.devices:
            drop.append("placement_policy")
        if self.data != "disk":
            drop.append("loader")
        for name in drop:
            self.__dict__[name] = type(self).model_fields[name].default  # frozen for all others
            self.__pydantic_fields_set__.discard(name)
        return self

    @model_validator(mode="after")
    def _one_batch(self) -> RunConfig:
        mine, other = (
            ("batch_size", "global_batch_size")
            if self.scaling == "weak"
            else ("global_batch_size", "batch_size")
        )
        if getattr(self, mine) is None:
            raise ValueError(f"scaling: {self.scaling} needs {mine}")
        if getattr(self, other) is not None:
            raise ValueError(f"scaling: {self.scaling} takes {mine}, not {other}")
        n = self.placement.count
        if self.global_batch_size is not None and self.global_batch_size % n:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} cannot be divided by {n} ranks"
            )
        return self

    @property
    def world_size(self) -> int:
        """Return N, the number of ranks."""
        return self.placement.count

    @property
    def rank_batch(self) -> int:
        """Return the samples of one rank and step."""
        if self.batch_size is not None:
            return self.batch_size
        assert self.global_batch_size is not None  # one of the two is there, see _one_batch
        return self.global_batch_size // self.world_size

    @property
    def global_batch(self) -> int:
        """Return the samples of all ranks and one step."""
        return self.rank_batch * self.world_size


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            f"'{name[:100]}' cannot name a folder of results: letters, digits, '.', '_' and '-', "
            "at most 100, the first a letter or digit"
        )
    return name


class Sweep(Frozen):
    """A campaign as a user writes it, after ``load``: the raw point keys, lists being axes."""

    name: Annotated[str, AfterValidator(_folder_name)]
    point: dict[str, Any]  # the keys of RunConfig; a list of values is an axis
    measure: SweepMeasure = SweepMeasure()
    train: Train = Train()
    base: Base | None = Base()
    include: tuple[dict[str, Any], ...] = ()
    exclude: tuple[dict[str, Any], ...] = ()
    zip: tuple[tuple[str, ...], ...] = ()
