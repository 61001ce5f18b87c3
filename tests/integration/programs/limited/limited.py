"""A workload that is limited by what is planted in it, in every step and on real ranks."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from workloads.api import ArraySamples, Batch, Option, Parts, Samples, Workload, WorkloadInfo
from workloads.torch_parts import batches, evaluating, make_parts, seeded

DELAY_S = 0.08  # so long that a busy machine does not hide it
FEATURES = 16


@dataclass(frozen=True)
class Slow:
    """Samples of which a batch takes its time."""

    samples: ArraySamples

    def __len__(self) -> int:
        return len(self.samples)

    def gather(self, indices: np.ndarray) -> Batch:
        time.sleep(DELAY_S)
        return self.samples.gather(indices)

    def arrays(self) -> Batch | None:
        return None

    def files(self) -> tuple[Path, ...]:
        return ()


class SlowForward(nn.Linear):
    """One parameter tensor, and a forward pass that takes its time however large a batch is."""

    def forward(self, inputs: Any) -> Any:
        time.sleep(DELAY_S)
        return super().forward(inputs)


class SlowUpdate(torch.optim.SGD):
    """An optimiser that takes its time."""

    def step(self, closure: Any = None) -> Any:
        time.sleep(DELAY_S)
        return super().step(closure)


class Limited(Workload):
    info = WorkloadInfo(
        name="limited",
        title="A linear map, and something in its way",
        frameworks=("torch",),
        parameters=FEATURES,
        target_metric="mse",
        learning_rate=1e-3,
        learning_rate_batch=8,
        options={
            "plant": Option(
                "nothing",
                "what is slow",
                choices=("nothing", "data", "straggler", "transfer", "update", "overhead"),
            )
        },
    )

    def train_size(self) -> int:
        return 4_000

    def train(self) -> Samples:
        samples = drawn(self.train_size(), seed=1)
        return Slow(samples) if self.options["plant"] == "data" else samples

    def test(self) -> Samples:
        return drawn(100, seed=2)

    def parts(self, framework: str, seed: int) -> Parts:
        go_first()
        plant = self.options["plant"]
        late = plant == "straggler" and os.environ.get("OMPI_COMM_WORLD_RANK") == "1"
        with seeded(seed):
            kind = SlowForward if late or plant == "overhead" else nn.Linear
            model = kind(FEATURES, 1, bias=False)
        if plant == "transfer" and int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) > 1:
            slow_wire()
        optimiser = SlowUpdate if plant == "update" else torch.optim.SGD

        def made(model: Any, learning_rate: float, fused: bool) -> Any:
            return optimiser(model.parameters(), lr=learning_rate, fused=fused)

        return make_parts(model, nn.MSELoss(), made, mse, flops_per_sample=6 * FEATURES)


def go_first() -> None:
    """Let no other program of this machine take a rank's core, where this user may forbid it.

    A launch has a session of its own, so its scheduling group is not the caller's.
    """
    group = Path("/proc/self/autogroup")
    with suppress(PermissionError):
        for thread in os.listdir("/proc/self/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), -20)
        if group.exists():
            group.write_text("-20")


def slow_wire() -> None:
    """Let every all-reduce of this process take its time, alone or in a step."""
    from horovod.torch import mpi_ops

    wait = mpi_ops.mpi_lib.horovod_torch_wait_and_clear

    def slowed(handle: int) -> Any:
        time.sleep(DELAY_S)
        return wait(handle)

    mpi_ops.mpi_lib.horovod_torch_wait_and_clear = slowed


def drawn(count: int, seed: int) -> ArraySamples:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, FEATURES)).astype(np.float32)
    return ArraySamples(inputs, inputs.mean(axis=1, keepdims=True))


def mse(model: Any, samples: Samples) -> dict[str, float]:
    with evaluating(model):
        errors = [
            (model(x) - y).square().mean() for x, y in batches(samples, 100, torch.device("cpu"))
        ]
    return {"mse": torch.stack(errors).mean().item()}
