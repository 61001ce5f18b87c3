"""A step of CUDA graphs with Horovod between them: one buffer of gradients, one all-reduce.

One tensor of one name is one bit in Horovod's response cache: the negotiation is as short as it
gets, nothing is copied into a fusion buffer, and nothing depends on the order of gradients. What
is given up is overlap: the all-reduce begins when backward has ended.
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from typing_extensions import override

from harness.config.models import RunConfig
from harness.engines.active import Finding
from harness.engines.torch_graph import FlatGraphStep, Recorder
from workloads.api import Parts

_WIRE = {"none": torch.float32, "fp16": torch.float16}
_NAME = "hvdscale.gradients"


class HorovodGraphStep(FlatGraphStep):
    """The captured step, its flat gradient summed by Horovod between two graphs."""

    def __init__(
        self,
        parts: Parts,
        model: Any,
        optimiser: Any,
        config: RunConfig,
        device: torch.device,
        *,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(
            parts,
            model,
            optimiser,
            config.execution,
            device,
            world_size=hvd.size(),
            wire_dtype=_WIRE[config.horovod.compression],
            recorder=recorder,
        )
        self.gradient_allreduce = hvd.size() > 1
        self._handle = 0  # of the last all-reduce
        self._compression = config.horovod.compression

    @override
    def _reduce(self, sync: bool) -> None:
        if self._start_reduce(sync):
            self._wait_reduced()

    @override
    def _start_reduce(self, sync: bool) -> bool:
        if not (sync and self.gradient_allreduce):
            return False
        # A sum of shares of the mean: an average would be one more pass over the buffer.
        self._handle = hvd.allreduce_async_(self._wire, op=hvd.Sum, name=_NAME)
        self._reduced_steps += 1
        self._reduced_bytes += self._flat.nbytes
        return True

    @override
    def _wait_reduced(self) -> None:
        hvd.synchronize(self._handle)

    def findings(self) -> list[Finding]:
        """Return what shows the options of Horovod's that this step itself puts in force."""
        if self._compression == "none" or not self.gradient_allreduce:
            return []
        sent = str(self._wire.dtype).removeprefix("torch.")
        told = f"one buffer of {self._wire.nbytes} bytes, {sent}"
        option = f"horovod.compression: {self._compression}"
        return [Finding(option, self._wire.dtype is _WIRE[self._compression], told)]
