"""What models in PyTorch share: counting, initialising, evaluating."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from workloads.api import Parts, Samples


def make_parts(
    model: nn.Module,
    loss: Callable[[Any, Any], Any],
    optimiser: Callable[[Any, float, bool], Any],
    evaluate: Callable[[Any, Samples], dict[str, float]],
    flops_per_sample: float,
    *,
    clip_norm: float | None = None,
    start_epoch: Callable[[Any], None] | None = None,
) -> Parts:
    """Return the parts of a model, its trainable parameters and their bytes counted."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return Parts(
        framework="torch",
        model=model,
        loss=loss,
        optimiser=optimiser,
        evaluate=evaluate,
        parameters=sum(p.numel() for p in trained),
        gradient_bytes=sum(p.numel() * p.element_size() for p in trained),
        flops_per_sample=flops_per_sample,
        clip_norm=clip_norm,
        start_epoch=start_epoch,
    )


@contextmanager
def seeded(seed: int) -> Iterator[torch.Generator]:
    """Give a generator of ``seed``; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode without gradients; every module's own mode is put back."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def batches(
    samples: Samples, size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield all samples in order as (inputs, targets) on ``device``, ``size`` at a time."""
    for start in range(0, len(samples), size):
        stop = min(start + size, len(samples))
        inputs, targets = samples.gather(np.arange(start, stop, dtype=np.int64))
        yield torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device)
