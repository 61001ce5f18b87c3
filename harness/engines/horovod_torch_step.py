"""One step with Horovod's optimiser in torch: what is reduced is counted, the wait is apart.

Read against Horovod 0.28.1's ``horovod/torch/optimizer.py``.
"""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from typing_extensions import override

from harness.config.models import RunConfig
from harness.engines.active import Finding
from harness.engines.torch_step import TorchStep
from harness.errors import LaunchError
from workloads.api import Parts

COMPRESSION = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class HorovodStep(TorchStep):
    """The eager step with Horovod's optimiser; the wait is apart from the update."""

    def __init__(
        self, parts: Parts, model: Any, optimiser: Any, config: RunConfig, device: torch.device
    ) -> None:
        super().__init__(parts, model, optimiser, config.execution, device)
        if config.horovod.compression == "fp16":
            self.wire_bytes = self.gradient_bytes // 2
        # At size 1 Horovod registers no hooks, so nothing is reduced.
        self.gradient_allreduce = hvd.size() > 1
        self._passes = config.execution.accumulate
        self._asynchronous = config.horovod.async_completion
        if self.gradient_allreduce:
            self._count_what_is_reduced()

    def _count_what_is_reduced(self) -> None:
        """Every all-reduce that Horovod starts goes through one of these two; count its bytes."""
        one = self.optimiser._allreduce_grad_async

        def counted_one(parameter: Any) -> Any:
            self._reduced_bytes += parameter.nbytes
            return one(parameter)

        self.optimiser._allreduce_grad_async = counted_one
        if isinstance(self, AdasumStep):
            return  # has no groups
        group = self.optimiser._grouped_allreduce_grad_async

        def counted_group(parameters: Any) -> Any:
            self._reduced_bytes += sum(parameter.nbytes for parameter in parameters)
            return group(parameters)

        self.optimiser._grouped_allreduce_grad_async = counted_group

    @override
    def _differentiate(self, inputs: Any, targets: Any, mark: Any, sync: bool) -> Any:
        if sync or not self.gradient_allreduce:
            return super()._differentiate(inputs, targets, mark, sync)
        # Hooks cannot be taken off, but one pass more than will come keeps them waiting.
        self.optimiser.set_backward_passes_per_step(self._passes + 1)
        try:
            return super()._differentiate(inputs, targets, mark, sync)
        finally:
            self.optimiser.set_backward_passes_per_step(self._passes)

    @override
    def _synchronise(self, sync: bool) -> None:
        if not self.gradient_allreduce:
            return
        if sync:
            if self._asynchronous:
                check_stream("horovod.async_completion", self.device)
            self.optimiser.synchronize()
            self._reduced_steps += 1
        else:
            # Place holders of all-reduces that were never started; zero_grad refuses to see them.
            self.optimiser._handles.clear()

    @override
    def _update(self) -> None:
        if not self.gradient_allreduce:
            self.optimiser.step()
            return
        with self.optimiser.skip_synchronize():
            self.optimiser.step()


class AdasumStep(HorovodStep):
    """The step with Horovod's Adasum optimiser, which combines updates and not gradients.

    Its hooks update one parameter at a time as backward goes on, and start to reduce the change, so
    the optimiser's work is in the backward phase. Horovod's own ``step`` waits for the changes and
    adds them up, one by one; here all are waited for first, so that the wait is apart.
    """

    def __init__(
        self, parts: Parts, model: Any, optimiser: Any, config: RunConfig, device: torch.device
    ) -> None:
        if parts.clip_norm is not None:
            raise LaunchError(
                "horovod.op: adasum updates each parameter before the gradients are all there, so "
                f"they cannot be clipped to a norm of {parts.clip_norm:g}, as this workload asks; "
                "set horovod.op: average"
            )
        super().__init__(parts, model, optimiser, config, device)
        self._changes: list[tuple[Any, Any]] = []

    @override
    def _synchronise(self, sync: bool) -> None:
        if not sync:
            self.optimiser._handles.clear()
            return
        if self._asynchronous:
            check_stream("horovod.async_completion", self.device)
        made, handles = self.optimiser, self.optimiser._handles
        for parameter in made._requires_update:
            if handles.get(parameter, (None, None))[0] is None:  # it got no gradient
                handles[parameter] = made._allreduce_grad_async(parameter)
        self._changes = [
            (parameter, made._compression.decompress(hvd.synchronize(handle), context))
            for parameter, (handle, context) in handles.items()
        ]
        handles.clear()
        self._reduced_steps += 1

    @override
    def _update(self) -> None:
        made = self.optimiser
        if not self._changes:  # nothing was reduced: the optimiser that Horovod's is made of
            base: Any = type(made).__mro__[1]
            base.step(made)
            return
        for parameter, change in self._changes:
            start = made._starting_models[parameter]
            start.data.add_(change.data)
            parameter.data.copy_(start)
            made._allreduce_delay[parameter] = made.backward_passes_per_step
        self._changes = []


def check_stream(key: str, device: torch.device) -> None:
    """Raise LaunchError where a step is queued on another stream than the default one.

    With async completion Horovod has the default stream wait, and no other, for what was reduced.
    ``key`` is what of the config asks for it.
    """
    if device.type != "cuda":
        return
    current: Any = torch.cuda.current_stream(device)
    if current != torch.cuda.default_stream(device):
        raise LaunchError(
            f"{key}: a step runs on another stream than the default one, the only one that waits "
            "for what Horovod reduces"
        )


def findings(optimiser: Any, config: RunConfig) -> list[Finding]:
    """Read back from Horovod's optimiser what it was asked for; one rank alone reduces nothing."""
    wanted, found = config.horovod, []
    if hvd.size() == 1:
        return []
    if wanted.compression != "none":
        name = optimiser._compression.__name__
        active = optimiser._compression is COMPRESSION[wanted.compression]
        found.append(Finding(f"horovod.compression: {wanted.compression}", active, name))
    if wanted.op == "adasum":
        active = hasattr(optimiser, "_starting_models")
        kind = "updates are combined" if active else "gradients are averaged"
        found.append(Finding("horovod.op: adasum", active, f"{kind} by Horovod's optimiser"))
    if wanted.groups:
        groups = sum(1 for group in optimiser._group_counts if group)
        told = f"Horovod made {groups} groups of {len(optimiser._requires_update)} gradients"
        found.append(Finding(f"horovod.groups: {wanted.groups}", groups == wanted.groups, told))
    return found
