"""A step of CUDA graphs with Horovod between them: one buffer of gradients, in one piece or a few.

One tensor of one name is one bit in Horovod's response cache: the negotiation is as short as it
gets, nothing is copied into a fusion buffer, and nothing depends on the order of gradients. In one
piece the all-reduce begins when backward has ended; of ``horovod.groups`` pieces all but the last
are reduced while it goes on.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import horovod.torch as hvd
import torch
from typing_extensions import override

from harness.config.models import RunConfig
from harness.engines import active
from harness.engines.active import Finding
from harness.engines.horovod_torch_step import check_stream
from harness.engines.torch_flat import FlatGraphStep
from harness.engines.torch_recorder import Recorder
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
            count=max(1, config.horovod.groups),
            recorder=recorder,
        )
        self.gradient_allreduce = hvd.size() > 1
        self._groups = config.horovod.groups
        self._handles: list[int] = []  # of all-reduces that go on
        self._compression = config.horovod.compression

    @override
    def _start_reduce(self, sync: bool) -> bool:
        if not (sync and self.gradient_allreduce):
            return False
        check_stream("execution.graph", self.device)
        # A sum of shares of the mean: an average would be one more pass over the buffer.
        for number, piece in enumerate(self._pieces):
            ready = nullcontext() if piece.ready is None else self._recorder.after(piece.ready)
            with ready:  # Horovod takes the tensor as ready where the current stream is now
                name = f"{_NAME}.{number}"
                self._handles.append(hvd.allreduce_async_(piece.wire, op=hvd.Sum, name=name))
        self._reduced_steps += 1
        self._reduced_bytes += self._flat.nbytes
        return True

    @override
    def _wait_reduced(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            hvd.synchronize(handle)

    def findings(self) -> list[Finding]:
        """Return what shows the options of Horovod's that this step itself puts in force."""
        if not self.gradient_allreduce:
            return []
        found = []
        if self._compression != "none":
            sent = str(self._wire.dtype).removeprefix("torch.")
            told = f"one buffer of {self._wire.nbytes} bytes, {sent}"
            fits = self._wire.dtype is _WIRE[self._compression]
            found.append(Finding(f"horovod.compression: {self._compression}", fits, told))
        return found + (self._grouped() if self._pieces else [])

    def _grouped(self) -> list[Finding]:
        if not self._groups:
            return []
        sizes = ", ".join(str(piece.wire.nbytes) for piece in self._pieces)
        cut = f"{len(self._pieces)} pieces of {sizes} bytes"
        told = f"the buffer is reduced in {cut}"
        if not self.gradient_allreduce:  # the step is cut for them nevertheless
            told = f"the buffer has {cut}; one rank reduces none"
        fits = len(self._pieces) == self._groups
        return [Finding(f"horovod.groups: {self._groups}", fits, told)]

    @override
    def _show(self) -> None:
        super()._show()  # by now the pieces of a compiled model, too, are known
        self.options = {**(self.options or {}), **active.require(self._grouped())}
