"""What a workload is: indexed samples, and a model with its loss, optimiser and evaluation.

A workload knows nothing of ranks, of gradient synchronisation or of timing. It hands over parts,
and whoever trains puts them together. Importing this module, or a workload's package, imports no
framework; only ``Workload.parts`` does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

OptionValue = int | float | str | bool

#: Inputs and targets of some samples; the first axis of each array counts the samples.
Batch = tuple[NDArray[Any], NDArray[Any]]


class WorkloadError(Exception):
    """A workload cannot be made as asked; the message is one line: what, where, what to do."""


@dataclass(frozen=True)
class Option:
    """One setting of a workload, as written under ``workload:`` in a sweep."""

    default: OptionValue
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[OptionValue, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A size of a workload that has a name of its own, and the options that make it."""

    name: str
    options: Mapping[str, OptionValue]
    parameters: int  # trainable
    flops_per_sample: float


#: ``shuffled``: every epoch has its own order. ``streams``: each row of a batch goes on, step by
#: step, where it was, because the model carries state from batch to batch.
Order = Literal["shuffled", "streams"]


@dataclass(frozen=True)
class WorkloadInfo:
    """What is known of a workload without importing a framework or touching data."""

    name: str
    title: str
    frameworks: tuple[str, ...]
    parameters: int  # trainable, at the default options
    target_metric: str  # a key of what ``Parts.evaluate`` returns
    learning_rate: float
    learning_rate_batch: int  # the global batch that ``learning_rate`` was found for
    options: Mapping[str, Option] = field(default_factory=dict)
    flops_per_sample: float | None = None  # as ``Parts`` has it, at the default options
    data: str = ""  # what the samples are and how large, in a few words
    variants: tuple[Variant, ...] = ()
    lower_is_better: bool = True  # of the target metric
    order: Order = "shuffled"
    image_inputs: bool = False  # inputs are (n, channels, height, width)


class Samples(Protocol):
    """One split of a data set, by index."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return copies of the samples at ``indices``, in that order."""

    def arrays(self) -> Batch | None:
        """Return the whole split as (memory-mapped) arrays, or None where it has no such form."""

    def files(self) -> tuple[Path, ...]:
        """Return the files that ``gather`` reads; none where the samples are in memory."""


@dataclass(frozen=True)
class ArraySamples:
    """One split in memory, or memory-mapped from ``source``; (n, ...) and (n, ...)."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    source: Path | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.inputs)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return copies of the samples at ``indices``, in that order.

        Raises IndexError for an index outside 0..n-1: a negative one, too, is a mistake here.
        """
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"indices {indices.min()}..{indices.max()} of {len(self)} samples")
        return self.inputs[indices], self.targets[indices]

    def arrays(self) -> Batch:
        """Return the whole split."""
        return self.inputs, self.targets

    def files(self) -> tuple[Path, ...]:
        """Return the file that the arrays are mapped from, if there is one."""
        return (self.source,) if self.source is not None else ()


@dataclass(frozen=True)
class Parts:
    """A workload in one framework, ready to be trained by somebody else.

    ``loss(model(inputs), targets)`` is the mean over the samples of a batch, so that the mean over
    equal shards is the loss of the global batch. ``optimiser(model, learning_rate, fused)`` makes
    the framework's own optimiser over all trainable parameters, in its fused form where that is
    asked for (WorkloadError where there is none); in torch, the learning rate may be a tensor of no
    dimension, on the device. ``evaluate(model, samples)`` returns metrics by name and leaves
    the model as it found it. A model that carries state from batch to batch does so in buffers
    (torch) or untrained variables (TensorFlow) of its own; ``start_epoch(model)`` forgets what is
    carried.
    """

    framework: str
    model: Any
    loss: Callable[[Any, Any], Any]
    optimiser: Callable[[Any, Any, bool], Any]
    evaluate: Callable[[Any, Samples], dict[str, float]]
    parameters: int
    gradient_bytes: int  # of one full set of gradients, as the framework holds them
    flops_per_sample: float  # forward and backward of one training step, counted analytically
    clip_norm: float | None = None  # gradients, averaged over all ranks, get at most this L2 norm
    start_epoch: Callable[[Any], None] | None = None  # there where state is carried


class Workload(ABC):
    """A training job at given options. Construction is cheap; data is made by ``prepare``."""

    info: WorkloadInfo

    def __init__(self, options: Mapping[str, OptionValue], data_dir: Path) -> None:
        self.options = resolve_options(self.info, options)
        self.data_dir = data_dir

    @abstractmethod
    def train_size(self) -> int:
        """Return the number of training samples, without touching the data."""

    def prepare(self) -> None:  # noqa: B027 - what is in memory needs none
        """Make the data where it is not there yet; safe when many processes call it at once."""

    def data_files(self) -> tuple[Path, ...]:
        """Return the files below ``data_dir`` that the splits are read from; ``prepare`` must have
        run.

        They may be copied to a folder of a node's own, with the same names, and a workload that is
        made with that folder as its ``data_dir`` reads them there. None where the data is
        elsewhere: in memory, in a package, in a folder of the user's.
        """
        return ()

    @abstractmethod
    def train(self) -> Samples:
        """Return the training split; ``prepare`` must have run."""

    @abstractmethod
    def test(self) -> Samples:
        """Return the test split; ``prepare`` must have run."""

    @abstractmethod
    def parts(self, framework: str, seed: int) -> Parts:
        """Build the model (initialised from ``seed``), loss, optimiser and evaluation.

        WorkloadError for a framework that is not among ``info.frameworks``. The model is on the
        CPU (torch), or where TensorFlow puts it; in Keras, in the policy that is in force.
        """


def resolve_options(info: WorkloadInfo, given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Fill in defaults and check ``given``; raise WorkloadError, one line, on the first fault."""
    resolved = {name: option.default for name, option in info.options.items()}
    for name, value in given.items():
        if name not in info.options:
            known = ", ".join(sorted(info.options)) or "none"
            raise WorkloadError(f"workload {info.name} has no option '{name}' (it has: {known})")
        resolved[name] = _check_option(info.name, name, info.options[name], value)
    return resolved


def _check_option(workload: str, name: str, option: Option, value: OptionValue) -> OptionValue:
    where = f"workload {workload}, option {name}"
    wanted = type(option.default)
    value = _as_number(where, wanted, value)
    if type(value) is not wanted:
        raise WorkloadError(f"{where}: expected {wanted.__name__}, got {value!r}")
    if option.choices and value not in option.choices:
        raise WorkloadError(f"{where}: {value!r} is not one of {list(option.choices)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if option.minimum is not None and value < option.minimum:
            raise WorkloadError(f"{where}: {value!r} is below the minimum of {option.minimum:g}")
        if option.maximum is not None and value > option.maximum:
            raise WorkloadError(f"{where}: {value!r} is above the maximum of {option.maximum:g}")
    return value


def _as_number(where: str, wanted: type, value: OptionValue) -> OptionValue:
    """Return 2 as 2.0 where a float is wanted, and 1e3 as 1000 where an int is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an int that is larger than every float
        raise WorkloadError(f"{where}: a number of {len(str(value))} digits is too large") from None
    if not finite:
        raise WorkloadError(f"{where}: {value!r} is not a finite number")
    if wanted is float:
        return float(value)
    if wanted is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
