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

from harness.engines.torch_clock import TorchClock  # noqa: E402
from harness.engines.torch_memory import raise_if_memory  # noqa: E402
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
    now_s = [0.0]
    step._clock = TorchClock(torch.device("cpu"), clock=lambda: now_s[0])

    def slow() -> tuple[Any, Any]:
        now_s[0] += 0.5
        return batch()

    step.run_marked(slow)
    assert np.diff(step.take_marks(), axis=1).tolist() == [[0.5, 0.0, 0.0, 0.0, 0.0]]


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


def clipped(norm: float | None) -> TorchStep:
    made = replace(parts(), clip_norm=norm)
    optimiser = made.optimiser(made.model, RATE, False)
    return TorchStep(made, made.model, optimiser, Execution(), torch.device("cpu"))


def test_gradients_are_clipped_to_the_norm_of_all_together() -> None:
    plain, step = clipped(None), clipped(0.01)
    for made in (plain, step):
        made.run(batch())
    norms = [float(torch.cat([g.flatten() for g in gradients(s)]).norm()) for s in (plain, step)]
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-4)
    for one, other in zip(gradients(plain), gradients(step), strict=True):
        torch.testing.assert_close(one * (0.01 / norms[0]), other, rtol=1e-3, atol=1e-8)


def test_a_small_gradient_is_not_clipped() -> None:
    plain, step = clipped(None), clipped(100.0)
    for made in (plain, step):
        made.run(batch())
    assert plain.checksum() == step.checksum()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gradient_leaves_training_as_if_it_had_not_been(accumulate: int) -> None:
    torch.manual_seed(3)
    model = Restless()
    made = replace(parts(), model=model, clip_norm=1e-3)  # which is not for it
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    execution = Execution(accumulate=accumulate)
    step = TorchStep(made, model, optimiser, execution, torch.device("cpu"))
    data = torch.randn(8, 4), torch.randn(8, 1)
    step.run(data)
    before, buffers = step.snapshot(), {n: b.clone() for n, b in model.named_buffers()}
    checksum = step.checksum()
    found = step.gradient(data)
    assert step.checksum() == checksum
    assert all(torch.equal(buffers[name], b) for name, b in model.named_buffers())
    after = [step.run(data).item() for _ in range(2)]
    step.restore(before)
    assert [step.run(data).item() for _ in range(2)] == after
    # In the order of the checksum: by name, as each step's own backward pass has them.
    step.restore(before)
    step._parts = replace(made, clip_norm=None)
    step.run(data)
    own = dict(model.named_parameters())
    wanted = torch.cat([own[name].grad.flatten() for name in sorted(own)])
    assert torch.equal(found, wanted)
    assert (found.dtype, found.requires_grad) == (torch.float32, False)


def test_carried_state_of_another_size_is_put_back() -> None:
    class Carrying(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)
            self.register_buffer("state", torch.zeros(1), persistent=False)

        def forward(self, inputs: Any) -> Any:
            if len(self.state) != len(inputs):
                self.state = torch.zeros(len(inputs))
            out = self.linear(inputs) + self.state[:, None]
            self.state = out.detach().mean(dim=1)
            return out

    model = Carrying()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    made = replace(parts(), model=model)
    step = TorchStep(made, model, optimiser, Execution(), torch.device("cpu"))
    step.run(batch(4))
    before = step.snapshot()
    once = step.run(batch(4)).item()
    step.run(batch(6))
    step.restore(before)
    assert step.run(batch(4)).item() == once


def test_a_step_without_memory_says_its_batch() -> None:
    class Greedy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, inputs: Any) -> Any:
            torch.empty(2**56)
            return self.linear(inputs)

    model = Greedy()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    made = replace(parts(), model=model)
    step = TorchStep(made, model, optimiser, Execution(), torch.device("cpu"))
    with pytest.raises(LaunchError, match=r"host's memory is full.*12 samples.*MiB; lower batch_"):
        step.run(batch())
    with pytest.raises(LaunchError, match=r"12 samples .*, or set train.noise_scale to false"):
        step.gradient(batch())


def test_what_is_looked_at_is_as_much_as_one_pass_has() -> None:
    """A batch that fits only in parts is not run whole, only to see what it is computed in."""
    sizes: list[int] = []
    step = make(precision="bf16", accumulate=3)
    step._plain.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    step.run(batch(12))
    assert set(sizes) == {4}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
            "the GPU's memory is full: a step with a batch of 64 samples on this rank asked for "
            "2.00 GiB; lower batch_size, or raise execution.accumulate",
        ),
        (MemoryError(), "the host's memory is full.*asked for more"),
    ],
)
def test_a_lack_of_memory_is_told(error: Exception, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        raise_if_memory(error, 64)


def test_another_error_is_left_as_it_is() -> None:
    raise_if_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 64)
    step = make()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        step.run((torch.randn(2, 9), torch.randn(2, 2)))


def test_an_option_that_is_not_active_fails_at_the_first_step() -> None:
    step = make(fused_optimiser=True)  # the workload's optimiser is the plain one
    before = step.checksum()
    with pytest.raises(LaunchError, match=r"fused_optimiser: true.*0 of 1 parameter groups"):
        step.run(batch())
    assert step.checksum() == before


def test_evidence_is_taken_once_and_changes_nothing() -> None:
    step, plain = make(precision="bf16"), make(precision="bf16")
    assert step.options is None
    plain.options = {}  # has been looked at already
    for seed in range(2):
        assert step.run(batch(seed=seed)).item() == plain.run(batch(seed=seed)).item()
    assert step.options == {"execution.precision: bf16": "outputs of layers: 3 bfloat16"}
