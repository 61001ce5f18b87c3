"""The stress-strain network in PyTorch: 153,441 parameters, mean squared error, Adam."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from workloads.api import Parts, Samples
from workloads.stress_strain.curves import CHANNELS, LABELS, POINTS
from workloads.torch_parts import batches, evaluating, make_parts, seeded

_EVALUATION_BATCH = 4096


class StressStrainNet(nn.Module):
    """Curves (n, 3, 200) to normalised G0 and a, (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(CHANNELS, 32, kernel_size=9, padding="same"),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(32, 32, kernel_size=7, padding="same"),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Flatten(),
            nn.Linear(32 * POINTS // 8, 181),
            nn.ReLU(),
            nn.Linear(181, LABELS),
        )

    def forward(self, curves: torch.Tensor) -> torch.Tensor:
        """Return the prediction, (n, 2)."""
        prediction: torch.Tensor = self.layers(curves)
        return prediction


def build(seed: int) -> Parts:
    """Build the network on the CPU, a pure function of ``seed``, with what trains it."""
    return make_parts(make_model(seed), nn.MSELoss(), _adam, evaluate, flops_per_sample())


def make_model(seed: int) -> StressStrainNet:
    """Return the network with weights and biases uniform in +-1/sqrt(fan-in), PyTorch's default.

    The numbers come from a generator of their own, and the global random state, which PyTorch's own
    initialisation draws from, is put back: it stays as it was.
    """
    with seeded(seed) as generator:
        model = StressStrainNet()
    with torch.no_grad():
        for layer in model.layers:
            if isinstance(layer, nn.Conv1d | nn.Linear):
                bound = 1 / math.sqrt(layer.weight[0].numel())
                for parameter in layer.parameters():
                    parameter.uniform_(-bound, bound, generator=generator)
    return model


def flops_per_sample() -> float:
    """Return the floating-point operations of one training step, a sample.

    Convention: a multiply-add is two; convolutions and matrix products alone are counted, not
    biases, activations, pooling, loss and optimiser. Backward takes each product twice more, for
    the gradients of weights and of inputs; the first layer's inputs need none.
    """
    first = 2 * POINTS * 32 * (CHANNELS * 9)
    second = 2 * (POINTS // 2) * 32 * (32 * 7)
    dense = 2 * (32 * POINTS // 8) * 181 + 2 * 181 * LABELS
    return float(2 * first + 3 * (second + dense))


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
