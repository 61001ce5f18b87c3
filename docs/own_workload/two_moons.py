"""A workload of one's own: two half moons, told apart by a small network."""

import numpy as np
import torch
from torch import nn

from workloads.api import ArraySamples, Workload, WorkloadInfo
from workloads.torch_parts import batches, evaluating, make_parts, seeded


class TwoMoons(Workload):
    info = WorkloadInfo(
        name="two_moons", title="Two half moons, told apart", frameworks=("torch",),
        parameters=1_218, target_metric="accuracy", lower_is_better=False,
        learning_rate=1e-2, learning_rate_batch=64,
    )  # fmt: skip

    def train_size(self):
        return 8_000

    def train(self):
        return moons(self.train_size(), seed=1)

    def test(self):
        return moons(2_000, seed=2)

    def parts(self, framework, seed):
        with seeded(seed):
            hidden = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            model = nn.Sequential(hidden, nn.Linear(32, 2))
        return make_parts(model, nn.CrossEntropyLoss(), adam, accuracy, flops_per_sample=6_912)


def moons(count, seed):
    random = np.random.default_rng(seed)
    moon, angle = random.integers(0, 2, count), random.uniform(0, np.pi, count)
    x = np.where(moon, 1 - np.cos(angle), np.cos(angle))
    y = np.where(moon, 0.5 - np.sin(angle), np.sin(angle))
    points = np.stack([x, y], axis=1) + random.normal(0, 0.1, (count, 2))
    return ArraySamples(points.astype(np.float32), moon)


def adam(model, learning_rate, fused):
    return torch.optim.Adam(model.parameters(), lr=learning_rate, fused=fused)


def accuracy(model, samples):
    device = next(model.parameters()).device
    with evaluating(model):
        right = [model(x).argmax(1) == y for x, y in batches(samples, 1024, device)]
    return {"accuracy": torch.cat(right).double().mean().item()}
