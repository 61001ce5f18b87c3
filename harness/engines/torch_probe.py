"""Looks at a model in torch from outside: what its layers put out, what was compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from harness.engines.active import Finding

_IMAGES = 4  # dimensions: samples, channels, height, width


@dataclass(frozen=True)
class Activations:
    """What the layers of one forward pass put out."""

    dtypes: Counter[str]  # of floating-point outputs of single layers
    images: int  # outputs of convolutions over images, whose layout can be told
    channels_last: int  # of these


@contextmanager
def untouched_buffers(model: nn.Module) -> Iterator[None]:
    """Put every buffer back as it was: what is in it, and the very tensor where it was replaced."""
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, content in kept:
                buffer.copy_(content)
                module._buffers[name] = buffer


def look(model: nn.Module, forward: Callable[[], Any]) -> Activations:
    """Return what the layers of ``model`` put out in ``forward``; no gradients are made."""
    dtypes: Counter[str] = Counter()
    layouts: list[bool] = []

    def seen(module: nn.Module, _: Any, output: Any) -> None:
        tensors = output if isinstance(output, list | tuple) else (output,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                dtypes[str(tensor.dtype).removeprefix("torch.")] += 1
        if isinstance(module, nn.Conv2d) and is_telling(output):
            layouts.append(output.is_contiguous(memory_format=torch.channels_last))

    leaves = [module for module in model.modules() if not any(module.children())]
    handles = [module.register_forward_hook(seen) for module in leaves]
    try:
        with torch.no_grad(), untouched_buffers(model):
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return Activations(dtypes, len(layouts), sum(layouts))


def is_telling(output: Any) -> bool:
    """Say whether a tensor's layout can be told: one channel, or one pixel, has no order."""
    if not isinstance(output, torch.Tensor) or output.dim() != _IMAGES:
        return False
    _, channels, height, width = output.shape
    return channels > 1 and height * width > 1


def as_channels_last(images: torch.Tensor) -> torch.Tensor:
    """Return ``images`` (n, channels, height, width) with the channels of a pixel side by side.

    Its strides say so also where there is one channel: torch takes such an image for contiguous
    otherwise, and so does every layer after it.
    """
    laid_out = images.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = images.shape
    return laid_out.as_strided(
        images.shape, (channels * height * width, 1, width * channels, channels)
    )


def precision(seen: Activations) -> Finding:
    """Say whether bfloat16 is what layers compute in."""
    told = ", ".join(f"{count} {name}" for name, count in sorted(seen.dtypes.items())) or "none"
    return Finding(
        "execution.precision: bf16", seen.dtypes["bfloat16"] > 0, f"outputs of layers: {told}"
    )


def layout(seen: Activations) -> Finding:
    """Say whether images stay in channels_last from the first convolution to the last."""
    return Finding(
        "execution.channels_last: true",
        0 < seen.images == seen.channels_last,
        f"{seen.channels_last} of {seen.images} outputs of convolutions are in channels_last",
    )


def fused(optimiser: Any) -> Finding:
    """Say whether each group of the optimiser's parameters is updated by the fused kernel."""
    flags = [bool(group.get("fused")) for group in optimiser.param_groups]
    kind = type(optimiser).__name__
    return Finding(
        "execution.fused_optimiser: true",
        bool(flags) and all(flags),
        f"{sum(flags)} of {len(flags)} parameter groups of {kind} are fused",
    )


def compiled_graphs() -> tuple[int, int]:
    """Return how many graphs torch.compile has made in this process, and at how many breaks."""
    import torch._dynamo.utils as dynamo

    counters: Any = dynamo.counters
    return int(counters["stats"]["unique_graphs"]), sum(counters["graph_break"].values())


def compiled(before: tuple[int, int], after: tuple[int, int]) -> Finding:
    """Say whether a step was compiled, by ``compiled_graphs`` before and after it."""
    graphs, breaks = after[0] - before[0], after[1] - before[1]
    return Finding(
        "execution.compile: true",
        graphs > 0,
        f"torch.compile made {graphs} graphs, and broke off {breaks} times",
    )
