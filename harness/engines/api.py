"""The engine contract: an engine builds the whole training step, and the harness only runs it.

An engine joins the ranks into a world (``start``), and ``build`` makes a ``Step`` of a workload's
parts. Nothing outside an engine knows how gradients are synchronised, and nothing in an engine
knows why a step is run. A compiled graph, a CUDA graph and a plain eager loop all fit
behind ``run``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.config.models import RunConfig
from harness.errors import LaunchError
from harness.feed.shard import Feed, Shard
from harness.record import BackendProof
from harness.spec import Resolved
from workloads.api import Parts, Samples

#: Boundaries of a marked step, in order; a phase is the time between two neighbours.
BOUNDARIES = ("start", "data", "forward", "backward", "sync", "update")
PHASES = ("data_s", "forward_s", "backward_s", "exposed_sync_s", "update_s")


@dataclass(frozen=True)
class World:
    """Where this rank stands, as the engine's own runtime says (not the launcher's variables)."""

    rank: int
    size: int
    local_rank: int
    local_size: int


@dataclass(frozen=True)
class Reduced:
    """What an engine has synchronised since it was built, as seen by this rank."""

    steps: int
    bytes: int


class Step(ABC):
    """One training step of one rank, built by an engine.

    Loss values stay on the device: ``losses`` brings them over, so that reading them never puts a
    synchronisation into a timed step.
    """

    gradient_bytes: int
    wire_bytes: int  # of one set of gradients as it is sent: less where it is compressed
    gradient_allreduce: bool  # False where one rank trains alone

    @abstractmethod
    def run(self, batch: tuple[Any, ...], *, sync: bool = True) -> Any:
        """Forward, backward, all-reduce, update; return the local loss, still on the device.

        ``batch`` is what the feed made: tensors on the step's device. With ``sync=False`` the step
        is the same without the all-reduce; engines that cannot do that raise NotImplementedError.
        What is returned is not overwritten by a later step: the window keeps every step's loss.
        """

    @abstractmethod
    def run_marked(self, next_batch: Any, *, sync: bool = True) -> Any:
        """As ``run``, with all of ``BOUNDARIES`` marked; ``next_batch()`` gives the batch.

        Marks stay on the device too, until ``take_marks``.
        """

    def expect_marks(self, steps: int) -> None:
        """Ready what the marks of so many steps need, outside of them; nothing by default."""
        return

    @abstractmethod
    def take_marks(self) -> NDArray[np.float64]:
        """Return and forget the marks: (steps, len(BOUNDARIES)) seconds of this host's clock.

        The clock is ``time.perf_counter`` of the host, which all its processes share; marks that
        were taken on a device are mapped to it. A boundary that this engine cannot mark is NaN, and
        so are the phases on both sides of it: absent in the record, never zero.
        """

    @abstractmethod
    def snapshot(self) -> Any:
        """Return copies of what training changes: weights, buffers, optimiser, random state."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Put back what ``snapshot`` returned: training goes on from there, bit for bit.

        The position in the data is the feed's (``Feed.position``), and put back by the caller.
        """

    @abstractmethod
    def set_learning_rate(self, rate: float) -> None:
        """Let the next step be at ``rate``; a compiled step stays compiled."""

    @abstractmethod
    def start_epoch(self) -> None:
        """Forget what the model carries from batch to batch, where it carries anything."""

    @abstractmethod
    def gradient(self, batch: tuple[Any, ...]) -> Any:
        """Return this rank's own gradient of one batch, flat, as ``Engine.make_buffer`` makes one.

        In float32, parameters in the order of ``checksum``, nothing reduced or clipped. Weights,
        buffers and random state are as before.
        """

    @abstractmethod
    def evaluate(self, samples: Samples) -> dict[str, float]:
        """Return the workload's metrics of this rank's model; training goes on as if never."""

    @abstractmethod
    def weights(self) -> dict[str, NDArray[Any]]:
        """Return copies of all weights and buffers by name, on the host."""

    @abstractmethod
    def reduced(self) -> Reduced:
        """Return what was synchronised so far."""

    @abstractmethod
    def losses(self, values: Sequence[Any]) -> NDArray[np.float64]:
        """Bring losses that ``run`` returned to the host, (len(values),)."""

    @abstractmethod
    def checksum(self) -> str:
        """Return a digest of all trainable parameters, bit by bit.

        Buffers are left out: no engine here broadcasts them, so a BatchNorm's running statistics
        are each rank's own.
        """

    @abstractmethod
    def device_synchronise(self) -> None:
        """Wait for everything this rank has queued on its device; nothing to do on a CPU."""


class Engine(ABC):
    """How ranks are joined and their gradients synchronised, in one framework."""

    name: str
    framework: str

    def __init__(self, config: RunConfig, resolved: Resolved) -> None:
        self.config = config
        self.resolved = resolved

    @abstractmethod
    def start(self) -> World:
        """Join the world; raises LaunchError where the launcher started something else."""

    @abstractmethod
    def build(self, parts: Parts, learning_rate: float) -> Step:
        """Make the step: parameters are broadcast from rank 0, so that all ranks start alike."""

    @abstractmethod
    def feed(self, kind: str, samples: Samples, shard: Shard) -> Feed:
        """Make what brings this rank's batches to its device: ``device``, ``host`` or ``disk``."""

    @abstractmethod
    def make_buffer(self, count_bytes: int) -> Any:
        """Return a float32 buffer of ``count_bytes`` (a multiple of 4) on the device."""

    @abstractmethod
    def fill(self, buffer: Any, value: float) -> None:
        """Set every element of ``buffer``; on a device, wait until it is done."""

    @abstractmethod
    def allreduce(self, buffer: Any) -> None:
        """Sum ``buffer`` over the ranks in place, and wait until the result can be read."""

    @abstractmethod
    def to_host(self, buffer: Any) -> NDArray[np.float32]:
        """Return a buffer's values."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return the picklable ``value`` of every rank, in rank order, on every rank."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has called it."""

    @abstractmethod
    def proof(self) -> BackendProof:
        """Say what moves the gradient bytes, with evidence; ``proven`` is None if it is unknown."""

    def start_timeline(self, path: Path) -> None:
        """Begin the engine's own account of what it does, rank 0's, in ``path``."""
        raise LaunchError(f"engine {self.name} writes no timeline")

    def stop_timeline(self) -> None:
        """End the account; the file is as complete as it will be."""
        raise LaunchError(f"engine {self.name} writes no timeline")

    @abstractmethod
    def device_uuid(self) -> str | None:
        """Return the UUID of this rank's physical GPU as NVML writes it; None on a CPU."""

    def facts(self) -> dict[str, Any]:
        """Return what else this rank's provenance should say of the running framework."""
        return {}

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Return versions of what this engine runs on, for the record."""

    @abstractmethod
    def stop(self) -> None:
        """Leave the world; called once, last."""
