"""Horovod for TensorFlow: each gradient's all-reduce is an operation of the compiled step.

Read against Horovod 0.28.1's ``horovod/tensorflow/__init__.py`` and ``mpi_ops.cc``. Its wrappers
for Keras do not work with Keras 3, and ``DistributedGradientTape`` asks in the graph, for every
gradient, whether there is more than one rank; so ``allreduce`` and ``grouped_allreduce`` are called
as that tape calls them, on gradients of plain ``tf.Variable``s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import horovod
import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.util import split_list
from typing_extensions import override

from harness.config.models import HorovodTuning, RunConfig
from harness.engines import active, tf_state
from harness.engines.active import Finding
from harness.engines.horovod_common import HorovodEngine
from harness.engines.tf_engine import TfEngine
from harness.engines.tf_step import Buffer, TfStep
from harness.errors import LaunchError
from workloads.api import Parts

COMPRESSION = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16}
_REDUCING = ("HorovodAllreduce", "HorovodGroupedAllreduce")


class HorovodTfStep(TfStep):
    """The compiled step with an all-reduce of each gradient, or of each group of gradients.

    With ``op: adasum`` gradients are combined (as Horovod's gradient tape does it), not updates (as
    its torch optimiser does).
    """

    def __init__(self, parts: Parts, optimiser: Any, config: RunConfig, device: str) -> None:
        super().__init__(parts, optimiser, config, device)
        self._tuning: HorovodTuning = config.horovod
        if self._tuning.compression == "fp16":
            self.wire_bytes = self.gradient_bytes // 2
        # At size 1 Horovod's own tape reduces nothing, and no more is done here.
        self.gradient_allreduce = hvd.size() > 1
        self._names = [_name(variable.path) for variable in parts.model.trainable_variables]

    @override
    def _reduce(self, gradients: list[Any]) -> list[Any]:
        """Ranks find each other's tensors by name, so names are the model's, on all ranks."""
        self._handed_bytes = sum(g.shape.num_elements() * g.dtype.size for g in gradients)
        options = {
            "op": hvd.Adasum if self._tuning.op == "adasum" else hvd.Average,
            "compression": COMPRESSION[self._tuning.compression],
        }
        if not self._tuning.groups:
            return [
                hvd.allreduce(gradient, name=name, **options)
                for gradient, name in zip(gradients, self._names, strict=True)
            ]
        groups = [group for group in split_list(gradients, self._tuning.groups) if group]
        reduced: list[Any] = []
        for number, group in enumerate(groups):
            reduced += hvd.grouped_allreduce(group, name=f"gradients.{number}", **options)
        return reduced

    @override
    def _shown(self, graph: Any, sync: bool) -> list[Finding]:
        """Read back from the graph what Horovod was asked for."""
        found = super()._shown(graph, sync)
        operations = [op for op in graph.get_operations() if op.type in _REDUCING]
        if not sync or not self.gradient_allreduce:
            return found
        wanted = self._tuning
        if wanted.compression != "none":
            types = {op.get_attr("T").name for op in operations}
            told = f"{', '.join(sorted(types))} is handed over"
            active_ = types == {"float16"}
            found.append(Finding(f"horovod.compression: {wanted.compression}", active_, told))
        if wanted.op == "adasum":
            adasum = sum(op.get_attr("reduce_op") == hvd.Adasum for op in operations)
            told = f"{adasum} of {len(operations)} operations combine gradients by Adasum"
            found.append(Finding("horovod.op: adasum", adasum == len(operations), told))
        if wanted.groups:
            grouped = sum(op.type == "HorovodGroupedAllreduce" for op in operations)
            told = f"{grouped} groups of {len(self._trained)} gradients"
            found.append(
                Finding(f"horovod.groups: {wanted.groups}", grouped == wanted.groups, told)
            )
        return found


class HorovodTf(TfEngine, HorovodEngine):
    """Joins the ranks through Horovod; the workload's own optimiser gets reduced gradients."""

    hvd = hvd

    @override
    def build(self, parts: Parts, learning_rate: float) -> HorovodTfStep:
        if self.config.horovod.compression not in COMPRESSION:
            raise LaunchError(
                f"horovod.compression: {self.config.horovod.compression} is not among the types "
                "that Horovod 0.28.1 reduces; use fp16 or none"
            )
        hvd.broadcast_variables(list(map(tf_state.plain, parts.model.weights)), root_rank=0)
        optimiser = self.optimiser(parts, learning_rate)
        step = HorovodTfStep(parts, optimiser, self.config, self.device)
        runtime = active.HorovodRuntime.of(hvd)
        return self.keep(step, active.of_horovod(self.config.horovod, runtime, os.environ))

    @override
    def allreduce(self, buffer: Buffer) -> None:
        # Into a tensor of its own, as the gradients are reduced, too.
        buffer.value = hvd.allreduce(buffer.value, op=hvd.Sum, name="hvdscale.isolated")
        self._wait()

    @override
    def gather(self, value: Any) -> list[Any]:
        with tf.device("/CPU:0"):
            gathered: list[Any] = hvd.allgather_object(value, name="hvdscale.gather")
        return gathered

    @override
    def barrier(self) -> None:
        """Gather one number of each: Horovod has no barrier for TensorFlow.

        No all-reduce, which a timeline would count among those of the gradients.
        """
        self._wait()
        with tf.device("/CPU:0"):
            hvd.allgather(tf.zeros(1), name="hvdscale.barrier")

    @override
    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), "horovod": str(horovod.__version__)}

    @override
    def stop(self) -> None:
        super().stop()
        hvd.shutdown()


def _name(path: str) -> str:
    """Return what a variable's gradient is called in Horovod and in its timeline."""
    return "gradient." + re.sub(r"[^A-Za-z0-9_.-]", ".", path)
