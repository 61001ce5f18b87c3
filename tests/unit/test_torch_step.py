"""The eager step: whole batches and parts of them, bfloat16, marks, and no all-reduce."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.config.models import Execution
from harness.errors import LaunchError
from workloads.api import Parts

torch = pytest.importorskip("torch")

from harness.engines.torch_step import TorchStep  # noqa: E402

RATE = 0.5


def parts(seed: int = 0) -> Parts:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    count = sum(p.numel() for p in model.parameters())
    return Parts(
        framework="torch",
        model=model,
        loss=torch.nn.MSELoss(),
        optimiser=lambda made, rate, fused: torch.optim.SGD(made.parameters(), lr=rate),
        evaluate=lambda made, samples: {},
        parameters=count,
        gradient_bytes=4 * count,
        flops_per_sample=0.0,
    )


def batch(size: int = 12, seed: int = 1) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=generator), torch.randn(size, 2, generator=generator)


def make(kind: type[TorchStep] = TorchStep, **execution: Any) -> TorchStep:
    made = parts()
    optimiser = made.optimiser(made.model, RATE, False)
    return kind(made, made.model, optimiser, Execution(**execution), torch.device("cpu"))


def gradients(step: TorchStep) -> list[Any]:
    return [p.grad.clone() for p in step._parameters.values()]


class Recorded(TorchStep):
    """Tells which backward passes were local, and what was asked of the all-reduce."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.passes: list[str] = []
        self.synchronised: list[bool] = []
        self._local = False

    @contextmanager
    def _local_only(self) -> Iterator[None]:
        self._local = True
        yield
        self._local = False

    def _forward(self, inputs: Any, targets: Any) -> Any:
        self.passes.append(f"{len(inputs)} {'local' if self._local else 'reduced'}")
        return super()._forward(inputs, targets)

    def _synchronise(self, sync: bool) -> None:
        self.synchronised.append(sync)


def test_a_step_is_the_one_a_user_would_write() -> None:
    step, plain = make(), parts()
    optimiser = torch.optim.SGD(plain.model.parameters(), lr=RATE)
    for seed in range(3):
        inputs, targets = batch(seed=seed)
        optimiser.zero_grad()
        loss = plain.loss(plain.model(inputs), targets)
        loss.backward()
        optimiser.step()
        assert step.run((inputs, targets)).item() == loss.item()
    for mine, theirs in zip(step._parameters.values(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_loss_stays_on_the_device_and_out_of_the_graph() -> None:
    loss = make().run(batch())
    assert isinstance(loss, torch.Tensor)
    assert not loss.requires_grad


@pytest.mark.parametrize("accumulate", [2, 3, 4, 12])
def test_equal_parts_give_the_gradients_of_the_whole_batch(accumulate: int) -> None:
    whole, split = make(), make(accumulate=accumulate)
    for seed in range(3):  # more than one step: old gradients must not be left in
        losses = [step.run(batch(seed=seed)).item() for step in (whole, split)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        for one, other in zip(gradients(whole), gradients(split), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("size", "accumulate"), [(10, 4), (5, 4), (3, 4)])
def test_a_batch_without_equal_parts_is_refused(size: int, accumulate: int) -> None:
    """The mean of the means of 3, 3, 3 and 1 samples is not the mean of 10."""
    step = make(accumulate=accumulate)
    before = step.checksum()
    with pytest.raises(LaunchError, match=f"batch of {size} has no {accumulate} equal parts"):
        step.run(batch(size))
    assert step.checksum() == before


def test_only_the_last_part_is_reduced() -> None:
    step = make(Recorded, accumulate=3)
    assert isinstance(step, Recorded)
    step.run(batch())
    assert step.passes == ["4 local", "4 local", "4 reduced"]
    assert step.synchronised == [True]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("marked", [False, True])
def test_without_sync_no_part_is_reduced(accumulate: int, marked: bool) -> None:
    step = make(Recorded, accumulate=accumulate)
    assert isinstance(step, Recorded)
    before = step.checksum()
    if marked:
        step.run_marked(batch, sync=False)
    else:
        step.run(batch(), sync=False)
    assert step.passes == [f"{12 // accumulate} local"] * accumulate
    assert step.synchronised == [False]
    assert step.checksum() != before  # it trains all the same


def test_bf16_computes_in_bfloat16_and_keeps_float32_parameters() -> None:
    step = make(precision="bf16")
    seen: list[Any] = []
    step._model.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    loss = step.run(batch())
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in step._parameters.values()} == {torch.float32}
    assert {g.dtype for g in gradients(step)} == {torch.float32}
    exact = make().run(batch()).item()
    assert loss.item() == pytest.approx(exact, rel=0.05)
    assert loss.item() != exact


def test_fp32_is_not_autocast() -> None:
    step = make()
    seen: list[Any] = []
    step._model.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    step.run(batch())
    assert seen == [torch.float32]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_marks_are_six_in_order_and_the_step_is_the_same(accumulate: int) -> None:
    plain, marked = make(accumulate=accumulate), make(accumulate=accumulate)
    before_s = time.perf_counter()
    for seed in range(3):
        plain.run(batch(seed=seed))
        marked.run_marked(lambda seed=seed: batch(seed=seed))
    marks = marked.take_marks()
    assert marks.shape == (3, 6)
    assert before_s <= marks[0, 0]  # the host's own clock, which all its processes share
    assert marks[-1, -1] <= time.perf_counter()
    assert (np.diff(marks.ravel()) >= 0).all()
    assert marked.take_marks().shape == (0, 6)  # taken is forgotten
    assert plain.checksum() == marked.checksum()


def test_fetching_the_batch_is_the_data_phase() -> None:
    step = make()

    def slow() -> tuple[Any, Any]:
        time.sleep(0.02)
        return batch()

    step.run_marked(slow)
    phases = np.diff(step.take_marks(), axis=1)[0]
    assert phases[0] >= 0.02
    assert phases.argmax() == 0


def test_the_checksum_sees_one_bit_and_the_name() -> None:
    step, same = make(), make()
    assert step.checksum() == same.checksum()
    weight = step._parameters["0.weight"].data
    weight.view(torch.int32)[0, 0] ^= 1
    assert step.checksum() != same.checksum()
    swapped = make()
    first, second = swapped._parameters["0.bias"], swapped._parameters["2.bias"]
    swapped._parameters |= {"0.bias": second, "2.bias": first}
    assert swapped.checksum() != same.checksum()


def test_losses_come_to_the_host() -> None:
    step = make()
    values = [step.run(batch(seed=seed)) for seed in range(4)]
    found = step.losses(values)
    assert (found.shape, found.dtype) == ((4,), np.float64)
    assert found.tolist() == [value.item() for value in values]
    assert step.losses([]).shape == (0,)


class Restless(torch.nn.Module):
    """Changes in training whatever can: weights, saved and unsaved buffers, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.5)
        self.linear = torch.nn.Linear(4, 1)
        self.register_buffer("unsaved", torch.zeros(1), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.unsaved += 1.0
        shift = random.random() + float(np.random.random())
        return self.linear(self.drop(self.norm(inputs))) * shift + self.unsaved


def test_a_snapshot_puts_back_all_that_training_changes() -> None:
    torch.manual_seed(3)
    model = Restless()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    made = replace(parts(), model=model)
    step = TorchStep(made, model, optimiser, Execution(), torch.device("cpu"))
    inputs, targets = torch.randn(8, 4), torch.randn(8, 1)

    def train() -> list[float]:
        return [step.run((inputs, targets)).item() for _ in range(3)]

    train()
    before = step.snapshot()
    once = train()
    step.restore(before)
    assert train() == once
    # The snapshot is no view of what trains on.
    step.restore(before)
    assert train() == once
