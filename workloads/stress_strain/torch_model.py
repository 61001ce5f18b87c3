"""The stress-strain network in PyTorch: 153,441 parameters, mean squared error, Adam."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from workloads.api import Parts, Samples
from workloads.stress_strain.curves import CHANNELS, LABELS
from workloads.stress_strain.network import (
    FILTERS,
    HIDDEN,
    POOLED,
    POOLS,
    WIDTHS,
    flops_per_sample,
    initial_weights,
)
from workloads.torch_parts import batches, evaluating, make_parts, seeded

_EVALUATION_BATCH = 4096


class StressStrainNet(nn.Module):
    """Curves (n, 3, 200) to normalised G0 and a, (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(CHANNELS, FILTERS, WIDTHS[0], padding="same"),
            nn.ReLU(),
            nn.MaxPool1d(POOLS[0]),
            nn.Conv1d(FILTERS, FILTERS, WIDTHS[1], padding="same"),
            nn.ReLU(),
            nn.MaxPool1d(POOLS[1]),
            nn.Flatten(),
            nn.Linear(FILTERS * POOLED, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, LABELS),
        )

    def forward(self, curves: torch.Tensor) -> torch.Tensor:
        """Return the prediction, (n, 2)."""
        prediction: torch.Tensor = self.layers(curves)
        return prediction


def build(seed: int) -> Parts:
    """Build the network on the CPU, a pure function of ``seed``, with what trains it."""
    return make_parts(make_model(seed), nn.MSELoss(), _adam, evaluate, flops_per_sample())


def make_model(seed: int) -> StressStrainNet:
    """Return the network with the weights of ``seed``; the global random state stays as it was."""
    with seeded(seed):
        model = StressStrainNet()  # draws numbers that are not used
    weighted = [layer for layer in model.layers if isinstance(layer, nn.Conv1d | nn.Linear)]
    with torch.no_grad():
        for layer, values in zip(weighted, initial_weights(seed).values(), strict=True):
            for parameter, value in zip(layer.parameters(), values, strict=True):
                parameter.copy_(torch.from_numpy(value))
    return model


def evaluate(model: Any, samples: Samples) -> dict[str, float]:
    """Return ``{"mse": ...}``, the mean over samples and both labels; the model stays as it was.

    Runs on the device of the model's parameters, in batches, without gradients.
    """
    weight = next(model.parameters())
    total = 0.0
    with evaluating(model):
        for inputs, labels in batches(samples, _EVALUATION_BATCH, weight.device):
            wrong = model(inputs.to(weight.dtype)) - labels.to(weight.dtype)
            total += float(wrong.double().square().sum())
    return {"mse": total / (len(samples) * LABELS)}


def _adam(model: Any, learning_rate: float, fused: bool) -> torch.optim.Adam:
    """Return Adam over all trainable parameters of ``model``."""
    return torch.optim.Adam(model.parameters(), lr=learning_rate, fused=fused)
