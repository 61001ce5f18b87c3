"""The language model in PyTorch: its size and state, its evaluation, and that it learns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from workloads.api import ArraySamples, OptionValue, Parts, Variant, WorkloadError  # noqa: E402
from workloads.lstm import Lstm, evaluation, torch_model  # noqa: E402
from workloads.lstm.evaluation import Scoring  # noqa: E402
from workloads.lstm.shape import Shape, initial_weights  # noqa: E402

SMALL = Shape(vocabulary=30, embedding=6, hidden=8, layers=2, sequence=5)
BYTES = Scoring(byte_level=True, floor_nats=None)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(seed: int = 1, shape: Shape = SMALL, clip_norm: float | None = None) -> Parts:
    return torch_model.build(shape, seed, BYTES, clip_norm)


def tokens(rows: int, length: int, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).integers(0, 30, (rows, length), dtype=np.uint8)
    return torch.from_numpy(values)


def samples(count: int) -> ArraySamples:
    run = np.random.default_rng(5).integers(0, 30, count * 5 + 1, dtype=np.uint8)
    return ArraySamples(run[:-1].reshape(count, 5), run[1:].reshape(count, 5))


@pytest.mark.parametrize("variant", Lstm.info.variants, ids=lambda variant: variant.name)
def test_variants_have_the_parameters_that_they_state(variant: Variant, tmp_path: Path) -> None:
    parts = Lstm(variant.options, tmp_path).parts("torch", 1)
    assert parts.parameters == variant.parameters
    assert parts.gradient_bytes == 4 * variant.parameters
    assert parts.flops_per_sample == variant.flops_per_sample


def test_the_named_sizes() -> None:
    by_name = {variant.name: variant for variant in Lstm.info.variants}
    # Embedding, gates of two layers (input, state, one bias), projection.
    small = 256 * 128 + 2048 * (128 + 512 + 1) + 2048 * (512 + 512 + 1) + 513 * 256
    large = 10_000 * 1500 + 2 * 6000 * (1500 + 1500 + 1) + 1501 * 10_000
    assert by_name["small"].parameters == Lstm.info.parameters == small == 3_576_064
    assert by_name["large"].parameters == large == 66_022_000


def test_flops_agree_with_torchs_own_count() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    parts = build()
    # Without oneDNN the LSTM is made of matrix products, which are counted.
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
        parts.model(tokens(4, 5)).sum().backward()
    assert counter.get_total_flops() / 4 == SMALL.flops_per_sample


def test_weights_are_a_function_of_the_seed_and_leave_the_global_state() -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    first, again, other = (build(seed).model.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["lstm.weight_hh_l1"], other["lstm.weight_hh_l1"])
    assert {"hidden", "cell"}.isdisjoint(first)
    assert float(first["lstm.weight_hh_l1"].abs().max()) <= 1 / math.sqrt(8)
    # Input, forget, cell, output: the forget gate's bias is one.
    assert first["lstm.bias_ih_l0"].tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16
    assert first["lstm.bias_hh_l0"].abs().sum() == 0


def test_only_one_bias_of_a_layer_is_trained() -> None:
    parts = build()
    optimiser = parts.optimiser(parts.model, 1e-2, False)
    parts.loss(parts.model(tokens(4, 5)), tokens(4, 5, 1)).backward()
    optimiser.step()
    trained = [p for group in optimiser.param_groups for p in group["params"]]
    assert sum(p.numel() for p in trained) == parts.parameters == SMALL.parameters
    state = parts.model.state_dict()
    assert state["lstm.bias_hh_l1"].abs().sum() == 0
    changed = {
        name
        for name, value in initial_weights(SMALL, 1).items()
        if not np.array_equal(value, state[name].numpy())
    }
    assert changed == set(initial_weights(SMALL, 1))


def test_a_batch_goes_on_where_the_one_before_it_ended() -> None:
    run = tokens(3, 15)
    model = build().model
    with torch.no_grad():
        whole = model(run)
        model.forget()
        parts = torch.cat([model(run[:, start : start + 5]) for start in (0, 5, 10)], dim=1)
        again = model(run[:, :5])
    assert torch.allclose(whole, parts, atol=1e-6)
    assert not torch.allclose(whole[:, :5], again, atol=1e-3)


def test_a_batch_of_another_size_begins_anew() -> None:
    run = tokens(3, 5)
    model = build().model
    with torch.no_grad():
        fresh = model(run)
        model(tokens(2, 5))
        assert model.hidden.shape == (2, 2, 8)
        assert torch.equal(model(run), fresh)


def test_one_row_of_zeros_empties_a_state_of_many() -> None:
    """So a state from before the first step can be put back into one of a later step."""
    model = build().model
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(tokens(3, 5))
    for name, value in model.named_buffers():
        assert value.abs().sum() > 0
        value.copy_(before[name])
        assert value.shape == (2, 3, 8)
        assert value.abs().sum() == 0


def test_start_epoch_forgets() -> None:
    parts = build()
    with torch.no_grad():
        fresh = parts.model(tokens(3, 5))
        assert not torch.equal(parts.model(tokens(3, 5)), fresh)
        assert parts.start_epoch is not None
        parts.start_epoch(parts.model)
        assert torch.equal(parts.model(tokens(3, 5)), fresh)


def gradients(parts: Parts, inputs: Any, targets: Any) -> list[Any]:
    parts.model.zero_grad()
    parts.loss(parts.model(inputs), targets).backward()
    return [p.grad.clone() for p in parts.model.parameters() if p.requires_grad]


def test_gradients_stop_where_a_sample_begins() -> None:
    first, second, targets = tokens(3, 5), tokens(3, 5, 1), tokens(3, 5, 2)
    carried = build()
    carried.model(first)  # with a graph, which a gradient could go back through
    assert not carried.model.hidden.requires_grad
    state = carried.model.hidden.clone(), carried.model.cell.clone()
    found = gradients(carried, second, targets)
    given = build()
    given.model(first.flip(0))
    given.model.hidden.copy_(state[0])
    given.model.cell.copy_(state[1])
    expected = gradients(given, second, targets)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # The rows of tokens that the second batch lacks are not reached at all.
    unread = sorted(set(first.flatten().tolist()) - set(second.flatten().tolist()))
    assert unread
    assert found[0][unread].abs().sum() == 0


def test_evaluation_is_exact_and_leaves_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = build()
    parts.model(tokens(4, 5))
    parts.model.train()
    hidden = parts.model.hidden
    before = hidden.clone(), torch.get_rng_state()
    monkeypatch.setattr(torch_model, "streams", lambda count: evaluation.streams(count, 3))
    split = samples(11)  # three streams of 4, 4 and 3 samples
    found = parts.evaluate(parts.model, split)
    assert parts.model.hidden is hidden
    assert torch.equal(hidden, before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert parts.model.training
    losses = []
    for part in (slice(0, 4), slice(4, 8), slice(8, 11)):
        inputs = torch.from_numpy(split.inputs[part].reshape(1, -1))
        targets = torch.from_numpy(split.targets[part].reshape(1, -1))
        parts.model.forget()
        with torch.no_grad():
            losses += [float(parts.loss(parts.model(inputs), targets))] * targets.numel()
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))


def test_loss_is_the_mean_so_that_shards_average_to_the_global_batch() -> None:
    parts = build()
    inputs, targets = tokens(6, 5), tokens(6, 5, 1)
    with torch.no_grad():
        whole = float(parts.loss(parts.model(inputs), targets))
        halves = []
        for part in (slice(3), slice(3, 6)):
            halves.append(float(parts.loss(parts.model(inputs[part]), targets[part])))
            parts.model.forget()
    assert sum(halves) / 2 == pytest.approx(whole, rel=1e-6)


def test_a_compiled_model_carries_its_state() -> None:
    """The LSTM itself is no part of a graph; what is before and after it makes one each."""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    eager, compiled = build(), build()
    model = torch.compile(compiled.model, backend="eager")
    for step in range(4):
        inputs, targets = tokens(3, 5, step), tokens(3, 5, step + 10)
        expected = eager.loss(eager.model(inputs), targets)
        found = compiled.loss(model(inputs), targets)
        found.backward()
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.equal(eager.model.hidden, compiled.model.hidden)
    assert counters["stats"]["unique_graphs"] == before + 2


def test_bfloat16_on_a_cpu_without_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(WorkloadError, match=r"this CPU lacks .* set execution.precision to fp32"),
    ):
        build().model(tokens(3, 5))


def test_clipping_is_an_option(tmp_path: Path) -> None:
    assert Lstm({}, tmp_path).parts("torch", 1).clip_norm == 1.0
    assert Lstm({"clip_norm": 0}, tmp_path).parts("torch", 1).clip_norm is None


def test_a_framework_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="lstm has no jax model; it has: torch, tensorflow"):
        Lstm({}, tmp_path).parts("jax", 1)


def train(
    workload: Lstm, batch: int, steps: int, *, carry: bool = True
) -> tuple[Parts, list[float]]:
    """Train in streams at one rate, the whole within the first epoch; return all losses."""
    parts, data = workload.parts("torch", 1), workload.train()
    optimiser = parts.optimiser(parts.model, 1e-2, False)
    trained = [p for p in parts.model.parameters() if p.requires_grad]
    length = len(data) // batch
    assert steps <= length, "no token is seen twice"
    losses = []
    for step in range(steps):
        if not carry and parts.start_epoch is not None:
            parts.start_epoch(parts.model)
        inputs, targets = map(torch.from_numpy, data.gather(np.arange(batch) * length + step))
        optimiser.zero_grad()
        loss = parts.loss(parts.model(inputs), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, parts.clip_norm or math.inf)
        optimiser.step()
        losses.append(float(loss.detach()))
    return parts, losses


def prepared(folder: Path, **options: OptionValue) -> Lstm:
    workload = Lstm({"tokens": "word", "embedding": 16, "layers": 1, **options}, folder)
    workload.prepare()
    return workload


def test_the_loss_comes_to_the_floor_and_not_below(data_dir: Path) -> None:
    # Measured: 0.017 nats above the floor of 1.340 after 600 steps; untrained, log 32 = 3.47.
    workload = prepared(data_dir, vocabulary=32, hidden=64, sequence=16, length=400_000)
    parts, losses = train(workload, batch=32, steps=600)
    assert losses[0] > 3.3
    found = parts.evaluate(parts.model, workload.test())
    assert found["floor_nats"] == workload.floor_nats
    assert found["excess_nats"] == pytest.approx(found["loss"] - found["floor_nats"])
    assert found["excess_nats"] < 0.03
    # The split's own mean of -log p(token) has a standard error of 0.006 around the floor.
    assert found["excess_nats"] > -0.018


def test_carried_state_tells_what_came_before_a_sample(data_dir: Path) -> None:
    """Of two tokens a sample, the first has only the state to tell the one before it.

    The source's next token depends on the last two. Where nothing is carried the floor is the mean
    of the entropy given both and of that given one alone; both are known exactly.
    """
    workload = prepared(
        data_dir, vocabulary=6, hidden=48, sequence=2, order=2, branches=2, length=200_000
    )
    source = workload._source
    assert source is not None
    without = (source.floor_nats + source.short_floor_nats) / 2
    assert without - source.floor_nats > 0.3
    losses = {carry: train(workload, 128, 600, carry=carry)[1] for carry in (True, False)}
    late = {carry: float(np.mean(some[-100:])) for carry, some in losses.items()}
    # Measured: 0.013 and 0.007 above their floors; 25,600 tokens a mean, standard error 0.006.
    assert late[True] == pytest.approx(source.floor_nats, abs=0.03)
    assert late[False] == pytest.approx(without, abs=0.03)
