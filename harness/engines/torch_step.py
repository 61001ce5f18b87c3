"""What all torch engines share: the eager step, its marks, its checksum."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from harness.config.models import Execution
from harness.engines import active, torch_probe
from harness.engines.api import Reduced, Step
from harness.engines.torch_clock import TorchClock
from harness.engines.torch_memory import raise_if_memory
from harness.errors import LaunchError
from workloads.api import Parts, Samples


def nothing() -> None:
    """The mark of a step that is not marked."""


def copied(value: Any) -> Any:
    """Return a state with every tensor in it copied, on the device that it is on."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(inner) for inner in value)
    return value


#: What else can be lowered where a gradient is estimated beside training.
_LESS = ", or set train.noise_scale to false"


class TorchStep(Step):
    """One eager step. Engines differ in ``_backward``, ``_synchronise`` and ``_update``.

    ``zero_grad`` counts into the forward phase: it readies the step, and frees memory for it.
    """

    gradient_allreduce = False

    def __init__(
        self, parts: Parts, model: Any, optimiser: Any, execution: Execution, device: torch.device
    ) -> None:
        self.device = device
        self.gradient_bytes = parts.gradient_bytes
        self.wire_bytes = parts.gradient_bytes
        self.optimiser = optimiser
        self._plain = parts.model  # without what an engine wraps around it
        self._plain_optimiser = optimiser
        self._parameters = dict(parts.model.named_parameters())
        self._trained = [p for p in self._parameters.values() if p.requires_grad]
        self._model = model  # with it
        self._loss = parts.loss
        self._parts = parts
        self._accumulate = execution.accumulate
        self._execution = execution
        # Before this step has made any: an estimate of the gradient may come before the first step.
        self._graphs_before = torch_probe.compiled_graphs() if execution.compile else (0, 0)
        #: Evidence of what was asked for, by option; None until a first step has shown it.
        self.options: dict[str, str] | None = None
        self._clock = TorchClock(device)
        self._reduced_steps = 0
        self._reduced_bytes = 0

    @override
    def run(self, batch: tuple[Any, ...], *, sync: bool = True) -> Any:
        if self.options is None:
            return self._first_step(batch, sync)
        return self._step(lambda: batch, nothing, sync)

    def _first_step(self, batch: tuple[Any, ...], sync: bool) -> Any:
        """Make a step, and look whether it is the one that was asked for: LaunchError if not."""
        wanted = self._execution
        findings = [torch_probe.fused(self.optimiser)] if wanted.fused_optimiser else []
        if wanted.precision == "bf16" or wanted.channels_last:
            # As much as one pass has: what fits with accumulation must fit here.
            seen = self._look(self._split(*batch)[0][0])
            findings += [torch_probe.precision(seen)] if wanted.precision == "bf16" else []
            findings += [torch_probe.layout(seen)] if wanted.channels_last else []
        shown = active.require(findings)
        loss = self._step(lambda: batch, nothing, sync)
        if wanted.compile:
            after = torch_probe.compiled_graphs()
            shown |= active.require([torch_probe.compiled(self._graphs_before, after)])
        self.options = shown
        return loss

    def _look(self, inputs: Any) -> torch_probe.Activations:
        """Look at what the model's layers make of a batch, the compiled ones left alone."""
        before = self._random_state()
        try:
            with self._autocast():
                seen = torch_probe.look(self._plain, lambda: self._plain(self._laid_out(inputs)))
        except (RuntimeError, MemoryError) as error:
            raise_if_memory(error, len(inputs))
            raise
        self._set_random_state(before)
        return seen

    @override
    def run_marked(self, next_batch: Callable[[], Any], *, sync: bool = True) -> Any:
        self._clock.start_step()
        return self._step(next_batch, self._clock.mark, sync)

    @override
    def expect_marks(self, steps: int) -> None:
        self._clock.expect(steps)

    @override
    def take_marks(self) -> NDArray[np.float64]:
        return self._clock.take()

    @override
    def snapshot(self) -> Any:
        return {
            "model": copied(self._plain.state_dict()),
            # A state has no buffers that are not to be saved; training changes them all the same.
            "buffers": copied(dict(self._plain.named_buffers())),
            "optimiser": copied(self._plain_optimiser.state_dict()),
            "random": self._random_state(),
        }

    @override
    def restore(self, snapshot: Any) -> None:
        self._plain.load_state_dict(snapshot["model"])
        with torch.no_grad():
            for name, content in snapshot["buffers"].items():
                owner, _, leaf = name.rpartition(".")
                buffers = self._plain.get_submodule(owner)._buffers
                buffer = buffers.get(leaf)
                if buffer is not None and buffer.shape == content.shape:
                    buffer.copy_(content)
                else:  # carried state of another number of rows
                    buffers[leaf] = content.clone()
        self._load_optimiser(snapshot["optimiser"])
        self.optimiser.zero_grad()
        self._set_random_state(snapshot["random"])

    def _load_optimiser(self, state: Any) -> None:
        # A copy: the optimiser would go on in the very tensors it is given.
        self._plain_optimiser.load_state_dict(copied(state))

    def _random_state(self) -> dict[str, Any]:
        device = self.device if self.device.type == "cuda" else None
        return {
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "device": torch.cuda.get_rng_state(device) if device else None,
        }

    def _set_random_state(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        if state["device"] is not None:
            torch.cuda.set_rng_state(state["device"], self.device)

    @override
    def set_learning_rate(self, rate: float) -> None:
        for group in self._plain_optimiser.param_groups:
            group["lr"] = rate

    @override
    def start_epoch(self) -> None:
        if self._parts.start_epoch is not None:
            self._parts.start_epoch(self._plain)

    @override
    def gradient(self, batch: tuple[Any, ...]) -> torch.Tensor:
        before = self._random_state()
        inputs, targets = batch
        try:
            with torch_probe.untouched_buffers(self._plain):
                self._differentiate(inputs, targets, nothing, sync=False)
            flat = self._flat_gradient()
        except (RuntimeError, MemoryError) as error:
            raise_if_memory(error, len(inputs), _LESS)
            raise
        self._set_random_state(before)
        self.optimiser.zero_grad()
        return flat

    def _flat_gradient(self) -> torch.Tensor:
        parts = []
        for name in sorted(self._parameters):
            parameter = self._parameters[name]
            if parameter.requires_grad:
                grad = parameter.grad
                parts.append(torch.zeros_like(parameter) if grad is None else grad)
        return torch.cat([part.detach().flatten().float() for part in parts])

    @override
    def evaluate(self, samples: Samples) -> dict[str, float]:
        before = self._random_state()
        with self._autocast():  # in the precision of the steps, as Keras's policy has it
            found = self._parts.evaluate(self._plain, samples)
        self._set_random_state(before)
        return found

    @override
    def weights(self) -> dict[str, NDArray[Any]]:
        state = self._plain.state_dict()
        return {name: value.detach().cpu().float().numpy().copy() for name, value in state.items()}

    @override
    def reduced(self) -> Reduced:
        return Reduced(self._reduced_steps, self._reduced_bytes)

    @override
    def losses(self, values: Sequence[Any]) -> NDArray[np.float64]:
        if not values:
            return np.zeros(0)
        return torch.stack(list(values)).double().cpu().numpy()

    @override
    def checksum(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self._parameters):
            value = self._parameters[name].detach().cpu().contiguous()
            digest.update(name.encode())
            digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @override
    def device_synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _step(self, next_batch: Callable[[], Any], mark: Callable[[], None], sync: bool) -> Any:
        inputs, targets = next_batch()
        mark()
        try:
            loss = self._differentiate(inputs, targets, mark, sync)
            mark()
            self._clip()
            self._update()
        except (RuntimeError, MemoryError) as error:
            raise_if_memory(error, len(inputs))
            raise
        mark()
        return loss

    def _differentiate(
        self, inputs: Any, targets: Any, mark: Callable[[], None], sync: bool
    ) -> torch.Tensor:
        """Leave the gradients of a batch, reduced where ``sync``, in the parameters."""
        self.optimiser.zero_grad()
        *early, last = self._split(inputs, targets)
        loss_so_far = 0.0
        for part in early:
            # Accumulated parts fall into the forward phase whole: only the last backward pass can
            # hide an all-reduce.
            with self._local_only():
                loss = self._forward(*part)
                loss.backward()
            loss_so_far = loss_so_far + loss.detach()
        with nullcontext() if sync else self._local_only():
            loss = self._forward(*last)
            mark()
            self._backward(loss, mark)
        self._synchronise(sync)
        total: torch.Tensor = loss_so_far + loss.detach()
        return total

    def _split(self, inputs: Any, targets: Any) -> list[tuple[Any, Any]]:
        if self._accumulate == 1:
            return [(inputs, targets)]
        if len(inputs) % self._accumulate:
            raise LaunchError(
                f"execution.accumulate: a batch of {len(inputs)} has no {self._accumulate} equal "
                "parts, and the mean over unequal ones is another loss"
            )
        chunks = inputs.chunk(self._accumulate), targets.chunk(self._accumulate)
        return list(zip(*chunks, strict=True))

    def _forward(self, inputs: Any, targets: Any) -> Any:
        """Return this part's share of the batch's mean loss."""
        with self._autocast():
            loss = self._loss(self._model(self._laid_out(inputs)), targets)
        return loss if self._accumulate == 1 else loss / self._accumulate

    def _autocast(self) -> AbstractContextManager[None]:
        if self._execution.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _laid_out(self, inputs: Any) -> Any:
        """Return the batch in the layout that was asked for; the weights stay contiguous.

        The layers after it keep to the layout of what they are given. Gradients have the layout of
        their weights, and Horovod 0.28.1 refuses those that are not contiguous.
        """
        return torch_probe.as_channels_last(inputs) if self._execution.channels_last else inputs

    def _local_only(self) -> AbstractContextManager[None]:
        """Make a scope whose backward pass starts no all-reduce."""
        return nullcontext()

    def _backward(self, loss: Any, mark: Callable[[], None]) -> None:
        """Backward, and the mark for 'the last local gradient is ready'."""
        loss.backward()
        mark()

    def _synchronise(self, sync: bool) -> None:
        """Wait until all gradients are reduced; nothing to do where nothing is synchronised."""

    def _clip(self) -> None:
        """Clip the reduced gradients, all ranks alike; its time is the update's."""
        if self._parts.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, self._parts.clip_norm)

    def _update(self) -> None:
        self.optimiser.step()
