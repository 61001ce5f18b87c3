"""The step as CUDA graphs: forward with backward, and the update, each replayed by one launch.

The first steps run eagerly, through the very functions that are captured afterwards, and train as
any other: libraries choose their algorithms in them, the optimiser makes its state, torch.compile
compiles. Capturing runs nothing, so training goes on as if there had been none.

    batch → static place → [gather, forward, backward] → all-reduce → [update]

What is in brackets is captured. Marked steps have forward and backward apart, with marks between.
A gradient may be reduced in pieces, each as soon as backward has made it: a graph records an event
for each, and what starts the all-reduce waits for that.

The end of a step may be left to the next one: see ``torch_unfinished``.

Capture is of this thread alone: threads of Horovod and NCCL go on using the device meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from typing_extensions import override

from harness.config.models import Execution
from harness.engines import active, torch_probe
from harness.engines.active import Finding
from harness.engines.torch_memory import raise_if_memory
from harness.engines.torch_recorder import CudaRecorder, Recorder, Replay
from harness.engines.torch_step import nothing
from harness.engines.torch_unfinished import UnfinishedStep
from harness.errors import LaunchError
from harness.feed.torch_copy import TorchBatch
from harness.feed.torch_feed import Picked
from workloads.api import Parts

#: Enough for cuDNN to choose, for the optimiser's state, and for a first compilation.
EAGER_STEPS = 3


@dataclass(frozen=True)
class _Program:
    """Captured graphs of one kind of step."""

    forward: Replay | None  # None: in ``backward``
    backward: Replay
    update: Replay


def capturable_optimiser(
    parts: Parts, model: Any, learning_rate: float, execution: Execution, device: torch.device
) -> Any:
    """Make the workload's optimiser with its learning rate in device memory.

    A captured update has its numbers for ever, so one that changes must be read from memory. The
    fused kernels do so, and so does a compiled update, which ``GraphStep`` makes of the plain form
    where ``execution`` has compile and not fused_optimiser.
    """
    rate = torch.tensor(learning_rate, dtype=torch.float32, device=device)
    optimiser = parts.optimiser(model, rate, not compiles_update(execution))
    for group in optimiser.param_groups:
        if "capturable" in group and device.type == "cuda":  # of those that count their steps
            group["capturable"] = True
    return optimiser


def compiles_update(execution: Execution) -> bool:
    """Say whether the update is compiled instead of fused.

    A fused kernel gives each of its blocks 65,536 numbers: a small model's update has few blocks,
    and most of the device waits for them.
    """
    return execution.compile and not execution.fused_optimiser


class GraphStep(UnfinishedStep):
    """One step by replays. Engines differ in ``_collect``, ``_reduce`` and ``_before_update``."""

    #: Whether the all-reduce is captured with the backward pass, so that a step without it is
    #: another program, and the end of local work cannot be marked.
    _reduces_in_backward = False

    def __init__(
        self,
        parts: Parts,
        model: Any,
        optimiser: Any,
        execution: Execution,
        device: torch.device,
        *,
        recorder: Recorder | None = None,
        eager_steps: int = EAGER_STEPS,
    ) -> None:
        super().__init__(parts, model, optimiser, execution, device)
        self._recorder = recorder or CudaRecorder(device)
        self._eager_steps = self._eager_left = eager_steps
        self._programs: dict[tuple[bool, bool], _Program] = {}
        self._batch: TorchBatch | Picked | None = None  # where the graphs read it
        self._updates = 0
        self._compiled_update: Any = None
        if compiles_update(execution):
            self._compiled_update = torch.compile(optimiser.step)
        self._total = torch.zeros((), device=device)
        self._loss_so_far: Any = 0.0
        self._last_loss: Any = None

    @override
    def _step(self, next_batch: Callable[[], Any], mark: Callable[[], None], sync: bool) -> Any:
        if mark is not nothing:
            self._finish()
        batch = next_batch()
        size = len(_read_by_graphs(batch)[0])
        try:
            self._load(batch)
            mark()
            self._finish()
            if self._eager_left > 0:
                self._eager_left -= 1
                program = self._eager_program(sync)
            else:
                program = self._captured_program(mark is not nothing, sync)
            loss = self._run(program, mark, sync)
        except (RuntimeError, MemoryError) as error:
            raise_if_memory(error, size)
            raise
        mark()
        return loss

    def _run(self, program: _Program, mark: Callable[[], None], sync: bool) -> torch.Tensor:
        if program.forward is not None:
            program.forward()
        mark()
        program.backward()
        loss = self._total.clone()  # while the device is busy: later, it would wait for this
        if mark is not nothing:
            self._mark_local_end(mark)
        if mark is nothing and self._start_reduce(sync):
            self._unfinished = program.update
            return loss
        self._reduce(sync)
        mark()
        program.update()
        return loss

    def _mark_local_end(self, mark: Callable[[], None]) -> None:
        if self._reduces_in_backward:
            self._clock.skip()
        else:
            mark()

    def _load(self, batch: TorchBatch | Picked) -> None:
        """Bring a batch to where the graphs read it."""
        new = _read_by_graphs(batch)
        if self._batch is None:
            kept = [one.clone() for one in new]
            if isinstance(batch, Picked):
                self._batch = Picked(batch.arrays, kept[0])
            else:
                self._batch = kept[0], kept[1]
            return
        for mine, other in zip(_read_by_graphs(self._batch), new, strict=True):
            if mine.shape != other.shape:
                raise LaunchError(
                    f"execution.graph: a batch of shape {tuple(other.shape)} after one of "
                    f"{tuple(mine.shape)}; a graph has one shape, set it to false"
                )
            mine.copy_(other)

    def _eager_program(self, sync: bool) -> _Program:
        def run(stage: Callable[[], None]) -> Replay:
            def at_once() -> None:
                with self._recorder.eager():
                    stage()

            return at_once

        return _Program(
            run(lambda: self._forward_stage(sync)),
            run(lambda: self._backward_stage(sync)),
            run(self._update_stage),
        )

    def _captured_program(self, marked: bool, sync: bool) -> _Program:
        key = (marked, sync or not self._reduces_in_backward)
        if key not in self._programs:
            self._programs[key] = self._capture(marked, sync)
            self._show()
        return self._programs[key]

    def _capture(self, marked: bool, sync: bool) -> _Program:
        record = self._recorder.record

        def both() -> None:
            self._forward_stage(sync)
            self._backward_stage(sync)

        try:
            forward = record(lambda: self._forward_stage(sync)) if marked else None
            backward = record((lambda: self._backward_stage(sync)) if marked else both)
            return _Program(forward, backward, record(self._update_stage))
        except RuntimeError as error:
            raise_if_memory(error, len(_read_by_graphs(self._batch)[0]) if self._batch else 0)
            said = str(error).partition("\n")[0]
            raise LaunchError(
                f"execution.graph: the step cannot be captured ({said}); set it to false"
            ) from error

    def _show(self) -> None:
        fused = torch_probe.fused(self.optimiser)
        update = "fused" if self._compiled_update is None else "compiled"
        told = (
            f"forward with backward, and the {update} update, captured after {self._eager_steps} "
            f"eager steps; {fused.evidence}"
        )
        fits = fused.active == (self._compiled_update is None)
        shown = active.require([Finding("execution.graph: true", fits, told)])
        self.options = {**(self.options or {}), **shown}

    def _forward_stage(self, sync: bool) -> None:
        for parameter in self._trained:
            parameter.grad = None  # gradients are written, and not added to what was there
        assert self._batch is not None  # loaded before
        inputs, targets = self._batch
        *early, last = self._split(inputs, targets)
        self._loss_so_far = 0.0
        for part in early:
            with self._local_only():
                loss = self._forward(*part)
                self._to_differentiate(loss).backward()
            self._loss_so_far = self._loss_so_far + loss.detach()
        with nullcontext() if sync else self._local_only():
            self._last_loss = self._forward(*last)

    def _backward_stage(self, sync: bool) -> None:
        loss, self._last_loss = self._last_loss, None
        with nullcontext() if sync else self._local_only():
            self._to_differentiate(loss).backward()
        self._total.copy_(self._loss_so_far + loss.detach())
        self._loss_so_far = 0.0
        self._collect()

    def _update_stage(self) -> None:
        self._before_update()
        self._clip()
        self._updates += 1
        # The first one makes the optimiser's state, which is nothing to compile.
        if self._compiled_update is None or self._updates == 1:
            self.optimiser.step()
        else:
            self._compiled_update()

    def forget_graphs(self) -> None:
        """Let the captured graphs go, and with them what they hold of a communicator.

        The next steps are eager again: what makes graphs unfit may have left a state to be made,
        which a graph would make anew in each replay.
        """
        self.device_synchronise()
        self._programs.clear()
        self._eager_left = self._eager_steps

    def _to_differentiate(self, loss: Any) -> Any:
        """Return what of ``loss`` backward begins with; itself by default."""
        return loss

    def _collect(self) -> None:
        """Bring the gradients to where they are reduced; they stay where they are by default."""

    def _before_update(self) -> None:
        """Make of what was reduced the gradients that the update takes; nothing by default."""

    @override
    def expect_marks(self, steps: int) -> None:
        self._finish()
        if self._eager_left == 0 and self._batch is not None:
            self._captured_program(True, True)  # else the first marked step would be the capture
        super().expect_marks(steps)

    @override
    def set_learning_rate(self, rate: float) -> None:
        self._finish()
        for group in self._plain_optimiser.param_groups:
            group["lr"].fill_(rate)

    @override
    def restore(self, snapshot: Any) -> None:
        self._finish()
        before = list(self._plain.buffers())
        super().restore(snapshot)
        after = list(self._plain.buffers())
        if any(one is not other for one, other in zip(before, after, strict=True)):
            self.forget_graphs()  # they would go on with tensors that are no longer used

    @override
    def _load_optimiser(self, state: Any) -> None:
        if not self._write_optimiser(state):
            super()._load_optimiser(state)
            self.forget_graphs()

    def _write_optimiser(self, state: Any) -> bool:
        """Copy an optimiser's state into the very tensors that the graphs use, if it fits them."""
        own = self._plain_optimiser.state_dict()
        if own["state"].keys() != state["state"].keys():
            return False
        pairs = list(zip(own["param_groups"], state["param_groups"], strict=True))
        pairs += [(own["state"][key], state["state"][key]) for key in own["state"]]
        tensors = [
            (mine[name], value)
            for mine, other in pairs
            for name, value in other.items()
            if isinstance(value, torch.Tensor)
        ]
        with torch.no_grad():
            for mine, value in tensors:
                mine.copy_(value)
        return True


def _read_by_graphs(batch: TorchBatch | Picked) -> tuple[torch.Tensor, ...]:
    """Return what of a batch is another one in each step."""
    return (batch.index,) if isinstance(batch, Picked) else batch
