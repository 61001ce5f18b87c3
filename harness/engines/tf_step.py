"""What all TensorFlow engines share: the compiled step, its marks, its checksum.

A step is one ``tf.function`` from the batch to the updated weights, traced once for each shape of a
batch. What is synchronised starts inside it as each gradient is ready. With ``execution.compile``
the local forward and backward pass is one XLA computation in it: gradients come out of that all at
once, and nothing can be marked within.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from harness.config.models import RunConfig
from harness.engines import active, tf_state
from harness.engines.active import Finding
from harness.engines.api import Reduced, Step
from harness.engines.tf_clock import Marks, TfClock
from harness.engines.tf_failures import out_of_memory, unimplemented
from harness.errors import LaunchError
from workloads.api import Parts, Samples


@dataclass
class Buffer:
    """A float32 tensor that collectives replace: TensorFlow's own cannot be written to."""

    value: Any


@dataclass(frozen=True)
class Traced:
    """One compiled function of a batch, and the bytes that a call hands to be reduced."""

    call: Callable[..., Any]
    reduced_bytes: int
    variables: tuple[Any, ...]


class TfStep(Step):
    """One compiled step. Engines differ in ``_reduce``.

    In a marked step the update begins when the last gradient is reduced; in a plain one each
    weight's update begins with its own gradient, as TensorFlow orders it.
    """

    gradient_allreduce = False

    def __init__(self, parts: Parts, optimiser: Any, config: RunConfig, device: str) -> None:
        self.gradient_bytes = parts.gradient_bytes
        self.wire_bytes = parts.gradient_bytes
        self.optimiser = optimiser
        self.device = device
        self._parts = parts
        self._weights = list(parts.model.trainable_variables)
        self._trained = [tf_state.plain(variable) for variable in self._weights]
        self._accumulate = config.execution.accumulate
        self._compile = config.execution.compile
        self._part = (
            tf.function(self._differentiate_part, jit_compile=True, autograph=False)
            if self._compile
            else self._differentiate_part
        )
        self.model = parts.model
        self.options: dict[str, str] = {}  # evidence of what is compiled in, by option
        self._traced: dict[Any, Traced] = {}
        self._last_batch: tuple[Any, ...] | None = None
        self._handed_bytes = 0  # by the graph that is being traced
        self._clock = TfClock(on_gpu="GPU" in device, deterministic=config.deterministic)
        self._reduced_steps = 0
        self._reduced_bytes = 0
        with tf.device(device):
            if not optimiser.built:
                optimiser.build(parts.model.trainable_variables)

    @override
    def run(self, batch: tuple[Any, ...], *, sync: bool = True) -> Any:
        loss, _ = self._train(batch, sync, marked=False)
        return loss

    @override
    def run_marked(self, next_batch: Callable[[], Any], *, sync: bool = True) -> Any:
        self._clock.start_step()
        batch = next_batch()
        self._clock.data()
        loss, stamps = self._train(batch, sync, marked=self._clock.in_graph)
        self.device_synchronise()
        self._clock.computed(stamps)
        return loss

    @override
    def expect_marks(self, steps: int) -> None:
        """Trace the marked step and run it once, with the last batch; training is put back.

        The first run of a graph takes as long as dozens of steps. All ranks call this together, as
        they run marked steps.
        """
        if self._last_batch is None:
            return
        before, reduced = self.snapshot(), self.reduced()
        self._train(self._last_batch, True, marked=self._clock.in_graph)
        self.restore(before)
        self._reduced_steps, self._reduced_bytes = reduced.steps, reduced.bytes

    @override
    def take_marks(self) -> NDArray[np.float64]:
        return self._clock.take()

    @override
    def snapshot(self) -> tf_state.Snapshot:
        return tf_state.take(self._state())

    @override
    def restore(self, snapshot: Any) -> None:
        tf_state.put_back(snapshot, self._state())

    @override
    def set_learning_rate(self, rate: float) -> None:
        # A variable of the optimiser: the compiled step reads it.
        self.optimiser.learning_rate = rate

    @override
    def start_epoch(self) -> None:
        if self._parts.start_epoch is not None:
            self._parts.start_epoch(self.model)

    @override
    def gradient(self, batch: tuple[Any, ...]) -> Buffer:
        traced = self._function("gradient", batch, self._flat_gradient)
        before = tf_state.take(self._untrained())
        try:
            return Buffer(_called(traced, batch))
        finally:
            tf_state.put_back(before, self._untrained())

    @override
    def evaluate(self, samples: Samples) -> dict[str, float]:
        before = tf_state.take(self._untrained())
        found = self._parts.evaluate(self.model, samples)
        tf_state.put_back(before, self._untrained())
        return found

    @override
    def weights(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for variable in self.model.weights:
            if variable.path in found:
                raise LaunchError(f"two weights of the model are named {variable.path}")
            found[variable.path] = np.array(tf_state.plain(variable).numpy(), dtype=np.float32)
        return found

    @override
    def reduced(self) -> Reduced:
        return Reduced(self._reduced_steps, self._reduced_bytes)

    @override
    def losses(self, values: Sequence[Any]) -> NDArray[np.float64]:
        if not values:
            return np.zeros(0)
        return np.asarray(tf.stack(list(values)), dtype=np.float64)

    @override
    def checksum(self) -> str:
        digest = hashlib.sha256()
        # In the order that they were made in, and without their names: Keras numbers layers over
        # the whole process.
        for variable in self._trained:
            value = np.ascontiguousarray(variable.numpy())
            digest.update(f"{value.dtype}{value.shape}".encode())
            digest.update(value.tobytes())
        return digest.hexdigest()

    @override
    def device_synchronise(self) -> None:
        if "GPU" in self.device:
            tf.test.experimental.sync_devices()

    def _train(self, batch: tuple[Any, ...], sync: bool, *, marked: bool) -> Any:
        sync = sync and self.gradient_allreduce
        self._last_batch = batch
        body = partial(self._update, sync=sync, marked=marked)
        traced = self._function((sync, marked), batch, body)
        found = _called(traced, batch)
        self._reduced_steps += int(sync)
        self._reduced_bytes += traced.reduced_bytes
        return found

    def _function(self, kind: Any, batch: tuple[Any, ...], body: Callable[..., Any]) -> Traced:
        """Return what runs ``body`` on such a batch, traced at the first one."""
        key = (kind, *((part.shape, part.dtype) for part in batch))
        if key not in self._traced:
            self._check_parts(len(batch[0]))
            self._handed_bytes = 0
            specs = [tf.TensorSpec(part.shape, part.dtype) for part in batch]
            with tf.device(self.device):
                made = tf.function(body, autograph=False).get_concrete_function(*specs)
            if kind != "gradient":
                self.options |= active.require(self._shown(made.graph, kind[0]))
            self._traced[key] = Traced(made, self._handed_bytes, tuple(made.variables))
        return self._traced[key]

    def _check_parts(self, size: int) -> None:
        if size % self._accumulate:
            raise LaunchError(
                f"execution.accumulate: a batch of {size} has no {self._accumulate} equal parts, "
                "and the mean over unequal ones is another loss"
            )

    def _update(self, inputs: Any, targets: Any, *, sync: bool, marked: bool) -> Any:
        """Train on a batch; return its loss, and the marks from ``forward`` on."""
        marks = Marks() if marked else None
        loss, gradients = self._differentiate(inputs, targets, marks)
        if sync:
            gradients = self._reduce(gradients)
        if marks is None:
            self._apply(gradients)
            return loss, ()
        marks.put(gradients)
        with tf.control_dependencies(marks.stamps[-1:]):
            marks.put(self._apply(gradients))
        return loss, tf.stack(marks.stamps)

    def _apply(self, gradients: list[Any]) -> list[Any]:
        """Clip the reduced gradients, all ranks alike, and update; return what does it."""
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        if self._parts.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._parts.clip_norm)
        self.optimiser.apply(gradients, self._weights)
        operations: list[Any] = graph.get_operations()[before:]
        return operations

    def _differentiate(
        self, inputs: Any, targets: Any, marks: Marks | None = None
    ) -> tuple[Any, list[Any]]:
        """Return the batch's mean loss and its local gradients, dense, of all trained variables.

        Parts of a batch follow each other, so that the memory of one is enough; all but the last
        one's backward pass fall into the forward phase.
        """
        parts = zip(
            tf.split(inputs, self._accumulate), tf.split(targets, self._accumulate), strict=True
        )
        *early, last = parts
        losses: list[Any] = []
        sums: list[Any] = []
        for part in early:
            with tf.control_dependencies(sums):
                loss, gradients = self._part(*part)
            losses.append(loss)
            sums = _added(sums, gradients)
        with tf.control_dependencies(sums):
            if marks is None or self._compile:
                loss, gradients = self._part(*last)
            else:
                loss, gradients = self._differentiate_part(*last, marks)
        sums = _added(sums, gradients)
        if marks is not None:
            if self._compile:
                marks.put((), possible=False)
            marks.put(sums)
        return tf.add_n([*losses, loss]), sums

    def _differentiate_part(
        self, inputs: Any, targets: Any, marks: Marks | None = None
    ) -> tuple[Any, list[Any]]:
        """Return this part's share of the batch's mean loss, and its gradients.

        A lookup's gradient, which TensorFlow keeps as a list of rows, is made dense: it is then
        reduced as every other one, and as in torch, instead of gathered from all ranks.
        """
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._trained)
            loss = self._parts.loss(self.model(inputs, training=True), targets)
            loss = loss / self._accumulate
        seed = tf.ones_like(loss)
        if marks is not None:
            marks.put([loss])
            # Much of the backward pass does not need the loss's value: it would run before.
            with tf.control_dependencies(marks.stamps):
                seed = tf.identity(seed)
        gradients = tape.gradient(
            loss,
            self._trained,
            output_gradients=seed,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def _flat_gradient(self, inputs: Any, targets: Any) -> Any:
        _, gradients = self._differentiate(inputs, targets)
        return tf.concat([tf.reshape(tf.cast(g, tf.float32), [-1]) for g in gradients], 0)

    def _reduce(self, gradients: list[Any]) -> list[Any]:
        """Return the gradients averaged over all ranks, in the graph that is being traced."""
        raise NotImplementedError("this engine synchronises nothing")

    def _shown(self, graph: Any, sync: bool) -> list[Finding]:
        """Read back from the graph of a training step what was asked for."""
        if not self._compile:
            return []
        calls = (op for op in graph.get_operations() if "PartitionedCall" in op.type)
        compiled = sum(op.node_def.attr["_XlaMustCompile"].b for op in calls)
        told = f"{compiled} calls in a step must be compiled by XLA"
        return [Finding("execution.compile: true", compiled == self._accumulate, told)]

    def _state(self) -> list[Any]:
        """Return all variables that training changes, as far as they are known by now."""
        touched = [one for traced in self._traced.values() for one in traced.variables]
        return tf_state.distinct(
            [*tf_state.of_model(self.model), *self.optimiser.variables, *touched]
        )

    def _untrained(self) -> list[Any]:
        """Return what a forward pass alone may change: statistics, carried state, seeds."""
        others = {id(tf_state.plain(one)) for one in (*self._trained, *self.optimiser.variables)}
        return [variable for variable in self._state() if id(variable) not in others]


def _added(sums: list[Any], gradients: list[Any]) -> list[Any]:
    return [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients


def _called(traced: Any, batch: tuple[Any, ...]) -> Any:
    """Run what was traced; LaunchError where there is no memory or no kernel for it."""
    try:
        return traced.call(*batch)
    except tf.errors.ResourceExhaustedError as error:
        raise LaunchError(out_of_memory(str(error), len(batch[0]))) from error
    except tf.errors.UnimplementedError as error:
        raise LaunchError(unimplemented(str(error))) from error
