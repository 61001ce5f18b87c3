"""The captured step, with a recorder in the place of CUDA that keeps CUDA graphs' rules."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.models import Execution, RunConfig
from harness.errors import LaunchError
from tests.requirements import require_modules
from workloads import registry
from workloads.api import Parts

torch = pytest.importorskip("torch")

from harness.engines import torch_engine, torch_probe  # noqa: E402
from harness.engines.torch_flat import FlatGraphStep  # noqa: E402
from harness.engines.torch_graph import EAGER_STEPS, GraphStep, capturable_optimiser  # noqa: E402
from harness.engines.torch_pieces import backward_parts, pieces  # noqa: E402
from harness.engines.torch_step import TorchStep  # noqa: E402
from harness.feed.torch_feed import Picked  # noqa: E402

CPU = torch.device("cpu")
RATE = 0.01
STEPS = 8


class Event:
    """Knows whether it was recorded since it was last waited for."""

    recorded = False

    def record(self) -> None:
        self.recorded = True


class Recorder:
    """Runs nothing while it captures, and replays what was captured with the tensors of then."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0
        self.eager_scopes = 0

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            body()

        return replay

    @contextmanager
    def eager(self) -> Iterator[None]:
        self.eager_scopes += 1
        yield

    def event(self) -> Event:
        return Event()

    @contextmanager
    def after(self, event: Any) -> Iterator[None]:
        assert event.recorded, "waited for before it was recorded in this step"
        event.recorded = False
        yield


def linear(clip_norm: float | None = None, optimiser: Any = torch.optim.Adam) -> Parts:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    count = sum(p.numel() for p in model.parameters())
    return Parts(
        framework="torch",
        model=model,
        loss=torch.nn.MSELoss(),
        optimiser=lambda made, rate, fused: optimiser(made.parameters(), lr=rate, fused=fused),
        evaluate=lambda made, samples: {},
        parameters=count,
        gradient_bytes=4 * count,
        flops_per_sample=0.0,
        clip_norm=clip_norm,
    )


def plain() -> Parts:
    """Adam hides a gradient that is too large by a factor; plain SGD does not."""
    return linear(optimiser=torch.optim.SGD)


def batch(size: int = 12, seed: int = 1) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=generator), torch.randn(size, 2, generator=generator)


def eager(parts: Parts, **execution: Any) -> TorchStep:
    optimiser = parts.optimiser(parts.model, RATE, True)
    return TorchStep(parts, parts.model, optimiser, Execution(**execution), CPU)


def graphed(
    parts: Parts, kind: type[GraphStep] = GraphStep, recorder: Recorder | None = None, **more: Any
) -> Any:
    options = {key: more.pop(key) for key in ("accumulate", "compile") if key in more}
    execution = Execution(graph=True, **options)
    optimiser = capturable_optimiser(parts, parts.model, RATE, execution, CPU)
    model = torch.compile(parts.model) if execution.compile else parts.model
    return kind(parts, model, optimiser, execution, CPU, recorder=recorder or Recorder(), **more)


def flat(parts: Parts, recorder: Recorder | None = None, **more: Any) -> Any:
    return graphed(parts, FlatGraphStep, recorder, **{"world_size": 1, **more})


def same_training(one: TorchStep, other: TorchStep, batches: list[Any]) -> None:
    for each in batches:
        first, second = one.run(each).item(), other.run(each).item()
        assert first == pytest.approx(second, rel=1e-5)
    for step in (one, other):
        step.device_synchronise()
    for (name, mine), theirs in zip(
        one._parameters.items(), other._parameters.values(), strict=True
    ):
        torch.testing.assert_close(
            mine, theirs, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("make", [graphed, flat])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_it_trains_as_the_eager_step(
    make: Callable[..., Any], accumulate: int, clip_norm: float | None
) -> None:
    """Through eager steps, the capture and replays, without a seam."""
    batches = [batch(seed=seed) for seed in range(STEPS)]
    same_training(
        eager(linear(clip_norm), accumulate=accumulate),
        make(linear(clip_norm), accumulate=accumulate),
        batches,
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("stress_strain", {"samples": 2000}),
        ("lstm", {"length": 4000}),
        ("resnet", {"depth": 18, "samples": 32, "image_size": 32, "classes": 10}),
    ],
)
def test_every_workload_fits(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    workload = registry.create(name, options, tmp_path)
    workload.prepare()
    samples = workload.train()
    batches = [
        tuple(torch.from_numpy(array) for array in samples.gather(np.arange(4) + 4 * k))
        for k in range(EAGER_STEPS + 2)
    ]
    one, other = workload.parts("torch", 1), workload.parts("torch", 1)
    same_training(eager(one), flat(other), batches)


def test_the_first_steps_are_eager_and_the_others_replays_of_one_capture() -> None:
    recorder = Recorder()
    step = graphed(linear(), recorder=recorder)
    for seed in range(EAGER_STEPS):
        step.run(batch(seed=seed))
    assert (recorder.captured, recorder.replayed) == (0, 0)
    assert "execution.graph: true" not in step.options
    for seed in range(5):
        step.run(batch(seed=seed))
    assert (recorder.captured, recorder.replayed) == (2, 10)
    assert "captured after 3 eager steps" in step.options["execution.graph: true"]


def test_a_marked_step_has_every_boundary_and_trains_the_same() -> None:
    one, other = graphed(linear()), graphed(linear())
    for seed in range(STEPS):
        each = batch(seed=seed)
        one.run(each)
        if seed < EAGER_STEPS:
            other.run(each)
        else:
            other.run_marked(lambda each=each: each)
    assert one.checksum() == other.checksum()
    marks = other.take_marks()
    assert marks.shape == (STEPS - EAGER_STEPS, 6)
    assert (np.diff(marks, axis=1) > 0).all()


@pytest.mark.parametrize("make", [graphed, flat])
def test_graphs_of_marked_steps_are_captured_before_the_first_of_them(
    make: Callable[..., Any],
) -> None:
    recorder = Recorder()
    step = make(linear(), recorder=recorder)
    step.expect_marks(3)  # nothing to capture yet
    for seed in range(EAGER_STEPS + 1):
        step.run(batch(seed=seed))
    step.expect_marks(3)
    captured = recorder.captured
    assert captured == 2 + 3
    step.run_marked(batch)
    assert recorder.captured == captured


class InBackward(GraphStep):
    """Has its all-reduce in the captured backward pass, as DDP has."""

    _reduces_in_backward = True


def test_where_the_all_reduce_is_captured_the_end_of_local_work_is_absent() -> None:
    recorder = Recorder()
    step = graphed(linear(), InBackward, recorder)
    for seed in range(EAGER_STEPS + 1):
        step.run(batch(seed=seed))
    step.run_marked(batch)
    marks = step.take_marks()
    assert np.isnan(marks[0]).tolist() == [False, False, False, True, False, False]
    step.run(batch(), sync=False)
    assert recorder.captured == 2 + 3 + 2  # steps without an all-reduce are graphs of their own


def test_a_loss_is_not_overwritten_by_later_steps() -> None:
    step = graphed(linear())
    losses = [step.run(batch(seed=seed)) for seed in range(STEPS)]
    values = step.losses(losses)
    assert len(set(values.tolist())) == STEPS


def test_the_learning_rate_of_a_captured_update_can_change() -> None:
    one, other = eager(linear()), graphed(linear())
    for seed in range(STEPS):
        for step in (one, other):
            step.set_learning_rate(RATE * (1 + seed))
    same_training(one, other, [batch(seed=seed) for seed in range(STEPS)])
    in_memory = [group["lr"] for group in other.optimiser.param_groups]
    for step in (one, other):
        step.set_learning_rate(10 * RATE)
    assert [id(rate) for rate in in_memory] == [
        id(group["lr"]) for group in other.optimiser.param_groups
    ]  # what was captured reads it there
    same_training(one, other, [batch(seed=seed) for seed in range(STEPS)])


@pytest.mark.parametrize("make", [graphed, flat])
def test_training_goes_on_bit_for_bit_after_a_restore(make: Callable[..., Any]) -> None:
    recorder = Recorder()
    undisturbed, step = make(linear()), make(linear(), recorder=recorder)
    for seed in range(EAGER_STEPS + 2):
        for each in (undisturbed, step):
            each.run(batch(seed=seed))
    before = step.snapshot()
    captured = recorder.captured
    for seed in range(4):
        step.run(batch(seed=100 + seed), sync=False)
    step.restore(before)
    for seed in range(4):
        for each in (undisturbed, step):
            each.run(batch(seed=200 + seed))
    assert step.checksum() == undisturbed.checksum()
    assert recorder.captured == captured  # the graphs still hold: all was put back in its place


def test_what_does_not_fit_the_captured_tensors_is_captured_anew() -> None:
    recorder = Recorder()
    one, step = eager(linear()), graphed(linear(), recorder=recorder)
    first = step.snapshot()  # before the optimiser has a state
    for seed in range(EAGER_STEPS + 2):
        step.run(batch(seed=seed))
    assert recorder.captured == 2
    scopes = recorder.eager_scopes
    step.restore(first)
    same_training(one, step, [batch(seed=seed) for seed in range(EAGER_STEPS + 1)])
    # Eager first: the optimiser's state is made anew, and in a graph it would be in every replay.
    assert recorder.eager_scopes == scopes + 3 * EAGER_STEPS
    assert recorder.captured == 4


def test_an_estimate_of_the_gradient_leaves_the_graphs_alone() -> None:
    one, other = flat(linear()), flat(linear())
    for seed in range(STEPS):
        for step in (one, other):
            step.run(batch(seed=seed))
        found = other.gradient(batch(seed=77))
        assert found.shape == (32,)
    assert one.checksum() == other.checksum()


def test_another_shape_of_batch_is_refused() -> None:
    step = graphed(linear())
    step.run(batch(12))
    with pytest.raises(LaunchError, match=r"a batch of shape \(6, 3\) after one of \(12, 3\)"):
        step.run(batch(6))


def test_a_compiled_update_is_the_same_update() -> None:
    step = flat(linear(), compile=True)
    same_training(eager(linear()), step, [batch(seed=seed) for seed in range(STEPS)])
    assert "the compiled update" in step.options["execution.graph: true"]


def test_a_batch_still_to_be_gathered_is_gathered_in_the_graph() -> None:
    arrays = batch(40)
    one, other = graphed(linear()), graphed(linear())
    for seed in range(STEPS):
        index = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:12]
        picked = Picked(arrays, index)
        assert one.run(tuple(picked)).item() == other.run(picked).item()
    assert one.checksum() == other.checksum()
    with pytest.raises(LaunchError, match=r"a batch of shape \(5,\) after one of \(12,\)"):
        other.run(Picked(arrays, torch.arange(5)))


def test_a_step_that_cannot_be_captured_is_said_in_one_line() -> None:
    class Refusing(Recorder):
        def record(self, body: Callable[[], None]) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    step = graphed(linear(), recorder=Refusing())
    for seed in range(EAGER_STEPS):
        step.run(batch(seed=seed))
    with pytest.raises(LaunchError, match=r"not permitted when stream is capturing\); set it to"):
        step.run(batch())


class Doubled(FlatGraphStep):
    """A world of two ranks with the same gradient: the sum is twice the one."""

    def _reduce(self, sync: bool) -> None:
        if sync:
            self._wire.mul_(2)


class Pieced(FlatGraphStep):
    """Two ranks that reduce each piece as soon as it is complete, before the next one is."""

    completed: list[tuple[int, list[bool]]]

    def _complete(self, piece: Any) -> None:
        super()._complete(piece)
        if not hasattr(self, "completed"):
            self.completed = []
        made = [parameter.grad is not None for parameter in self._trained]
        self.completed.append((self._pieces.index(piece), made))

    def _reduce(self, sync: bool) -> None:
        for piece in self._pieces:
            assert piece.ready is not None
            with self._recorder.after(piece.ready):
                piece.wire.mul_(2)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("wire_dtype", [torch.float32, torch.float64])
def test_a_gradient_in_pieces_is_the_same_gradient(accumulate: int, wire_dtype: Any) -> None:
    step = graphed(
        plain(), Pieced, world_size=2, count=2, accumulate=accumulate, wire_dtype=wire_dtype
    )
    whole = eager(plain(), accumulate=accumulate)
    same_training(whole, step, [batch(seed=seed) for seed in range(STEPS)])
    assert [number for number, _ in step.completed] == [0, 1] * STEPS


def test_the_first_piece_is_complete_before_backward_has_ended() -> None:
    step = graphed(linear(), Pieced, world_size=2, count=2)
    step.run(batch())
    (first, made), (last, all_made) = step.completed
    assert (first, last) == (0, 1)
    assert made == [False, True, True, True]  # of the first layer the weight is still to come
    assert all(all_made)


def test_a_piece_with_a_parameter_that_had_no_part_is_completed_at_the_end() -> None:
    parts = linear()
    parts.model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))
    step = graphed(parts, Pieced, world_size=2, count=2)
    for seed in range(EAGER_STEPS + 2):
        step.run(batch(seed=seed))
    assert sorted(number for number, _ in step.completed) == sorted([0, 1] * (EAGER_STEPS + 2))
    assert torch.equal(parts.model.unused, torch.ones(2))


def test_that_the_step_is_cut_is_shown_where_nothing_is_reduced_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_modules("horovod")
    from harness.engines import horovod_torch_graph

    monkeypatch.setattr(horovod_torch_graph.hvd, "size", lambda: 1)
    wanted = {"workload": {"name": "stress_strain"}, "engine": "horovod", "batch_size": 12}
    wanted |= {"execution": {"graph": True}, "horovod": {"groups": 2}}
    config = RunConfig.model_validate(wanted)
    parts = linear()
    optimiser = capturable_optimiser(parts, parts.model, RATE, config.execution, CPU)
    step = horovod_torch_graph.HorovodGraphStep(
        parts, parts.model, optimiser, config, CPU, recorder=Recorder()
    )
    for seed in range(STEPS):
        step.run(batch(seed=seed))
    told = step.options["horovod.groups: 2"]
    assert told == "the buffer has 2 pieces of 68, 60 bytes; one rank reduces none"


def test_an_estimate_of_the_gradient_completes_no_piece() -> None:
    one, other = (graphed(linear(), Pieced, world_size=2, count=2) for _ in range(2))
    for seed in range(STEPS):
        for step in (one, other):
            step.run(batch(seed=seed))
        other.gradient(batch(seed=77))
    assert one.completed == other.completed
    assert one.checksum() == other.checksum()


@pytest.mark.parametrize(
    ("sizes", "count", "lengths"),
    [
        ([4, 4, 4, 4], 1, [4]),
        ([4, 4, 4, 4], 2, [2, 2]),
        ([4, 4, 4, 4], 4, [1, 1, 1, 1]),
        ([10, 1, 1, 1], 2, [1, 3]),
        ([1, 1, 1, 10], 2, [4]),
        ([1, 1, 1, 10, 2], 3, [4, 1]),
        ([5], 3, [1]),
    ],
)
def test_pieces_are_equal_shares(sizes: list[int], count: int, lengths: list[int]) -> None:
    assert pieces(sizes, count) == lengths


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 9))
def test_pieces_leave_nothing_out(sizes: list[int], count: int) -> None:
    lengths = pieces(sizes, count)
    assert sum(lengths) == len(sizes)
    assert 1 <= len(lengths) <= count
    assert all(length > 0 for length in lengths)
    last = sum(sizes[len(sizes) - lengths[-1] :])
    assert last <= sum(sizes) / count + max(sizes) or len(lengths) == 1


class Calls:
    """Compiles parts, and logs when the backward pass of each is called."""

    def __init__(self) -> None:
        self.compiled = 0
        self.log: list[str] = []

    def backend(self) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.aot_autograd import make_boxed_func

        def backward(graph: Any, _: Any) -> Any:
            self.compiled += 1

            def run(*inputs: Any) -> Any:
                self.log.append("part")
                return graph(*inputs)

            return make_boxed_func(run)

        return aot_autograd(
            fw_compiler=lambda graph, _: make_boxed_func(graph), bw_compiler=backward
        )


class Logged(FlatGraphStep):
    """Logs which piece is complete."""

    log: list[str]

    def _complete(self, piece: Any) -> None:
        super()._complete(piece)
        self.log.append(f"piece {self._pieces.index(piece)}")


def in_compiled_parts(parts: Parts, count: int, calls: Calls, **more: Any) -> Any:
    from harness.engines.torch_split import in_parts

    torch._dynamo.reset()
    execution = Execution(graph=True, compile=True, fused_optimiser=True, **more)
    optimiser = capturable_optimiser(parts, parts.model, RATE, execution, CPU)
    model = torch.compile(parts.model, backend=in_parts(parts.model, count, calls.backend()))
    step = Logged(
        parts, model, optimiser, execution, CPU, world_size=1, count=count, recorder=Recorder()
    )
    step.log = calls.log
    return step


def stack(layers: int = 3) -> Parts:
    """Layers of 12, 30, 30 ... 20 parameters, as backward comes to them."""
    parts = plain()
    torch.manual_seed(0)
    inner = [torch.nn.Linear(5, 5) for _ in range(layers - 2)]
    linears = [torch.nn.Linear(3, 5), *inner, torch.nn.Linear(5, 2)]
    model = torch.nn.Sequential(*(each for linear in linears for each in (linear, torch.nn.Tanh())))
    return replace(parts, model=model)


@pytest.mark.parametrize("count", [2, 4])
def test_a_piece_of_a_compiled_model_is_complete_when_its_part_of_backward_is(
    count: int, tmp_path: Path
) -> None:
    """One graph, ``count`` parts, and nothing of a piece is left to the next part."""
    options = {"depth": 18, "samples": 32, "image_size": 32, "classes": 10}
    workload = registry.create("resnet", options, tmp_path)
    workload.prepare()
    samples, calls = workload.train(), Calls()
    batches = [
        tuple(torch.from_numpy(array) for array in samples.gather(np.arange(4) + 4 * k))
        for k in range(EAGER_STEPS + 1)
    ]
    step = in_compiled_parts(workload.parts("torch", 1), count, calls)
    before = torch_probe.compiled_graphs()
    same_training(eager(workload.parts("torch", 1)), step, batches)
    assert calls.compiled == count
    assert np.subtract(torch_probe.compiled_graphs(), before).tolist() == [1, 0]
    one_step = [said for k in range(count) for said in ("part", f"piece {k}")]
    assert calls.log == one_step * len(batches)
    largest = max(piece.flat.numel() for piece in step._pieces)
    assert largest <= step._flat.numel() / count + 512 * 512 * 9  # its largest weight


class Disordered(torch.nn.Module):
    """Has its layers in another order than it uses them in: 12, 30, 20 parameters in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = torch.nn.Linear(5, 5)
        self.last = torch.nn.Linear(5, 2)
        self.first = torch.nn.Linear(3, 5)

    def forward(self, inputs: Any) -> Any:
        return self.last(self.middle(self.first(inputs).tanh()).tanh())


def test_pieces_end_where_parts_do_and_not_where_layers_are_defined() -> None:
    calls = Calls()
    torch.manual_seed(0)
    model = Disordered()
    step = in_compiled_parts(replace(plain(), model=model), 2, calls)
    for seed in range(EAGER_STEPS + 1):
        step.run(batch(seed=seed))
    assert calls.log == ["part", "piece 0", "part", "piece 1"] * (EAGER_STEPS + 1)
    assert set(step._pieces[1].parameters) == set(model.first.parameters())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_model_compiled_in_parts_trains_as_the_eager_one(accumulate: int) -> None:
    calls = Calls()
    step = in_compiled_parts(stack(), 2, calls, accumulate=accumulate)
    batches = [batch(seed=seed) for seed in range(STEPS)]
    same_training(eager(stack(), accumulate=accumulate), step, batches)
    assert [piece.flat.numel() for piece in step._pieces] == [42, 20]
    early = ["part"] * 2 * (accumulate - 1)
    assert calls.log == [*early, "part", "piece 0", "part", "piece 1"] * STEPS


def test_other_passes_through_a_model_compiled_in_parts_leave_its_pieces_alone() -> None:
    calls = Calls()
    step, whole = in_compiled_parts(stack(), 2, calls), eager(stack())
    for seed in range(EAGER_STEPS + 2):
        # Of another size, and once before the first step.
        estimates = [one.gradient(batch(5, seed=70 + seed)) for one in (step, whole)]
        torch.testing.assert_close(*estimates)
        step._plain.eval()
        with torch.no_grad():
            outputs = [model(batch(4, seed=seed)[0]) for model in (step._model, step._plain)]
        torch.testing.assert_close(*outputs)
        step._plain.train()
        del calls.log[:]
        same_training(whole, step, [batch(seed=seed)])
        assert calls.log == ["part", "piece 0", "part", "piece 1"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_parts_are_the_shares_that_pieces_are(count: int) -> None:
    """Of one cap for all parts there would be fewer, where one exceeds it."""
    from harness.engines.torch_split import in_parts

    model, weights = stack(6).model, []

    def compile_part(graph: Any, _: Any) -> Any:
        weights.append(
            sum("weight" in node.name for node in graph.graph.find_nodes(op="placeholder"))
        )
        return graph

    torch._dynamo.reset()
    torch.compile(model, backend=in_parts(model, count, compile_part))(batch()[0])
    assert weights[::-1] == pieces([12, 30, 30, 30, 30, 20], count)
    assert len(weights) == count


def test_a_model_whose_graph_breaks_has_its_pieces_in_the_order_of_backward(tmp_path: Path) -> None:
    """torch.compile leaves the layers of an LSTM out: their gradients come one by one."""
    workload = registry.create("lstm", {"length": 4000}, tmp_path)
    workload.prepare()
    samples, calls = workload.train(), Calls()
    batches = [
        tuple(torch.from_numpy(array) for array in samples.gather(np.arange(4) + 4 * k))
        for k in range(EAGER_STEPS + 1)
    ]
    step = in_compiled_parts(workload.parts("torch", 1), 2, calls)
    same_training(eager(workload.parts("torch", 1)), step, batches)
    assert calls.log == ["part", "piece 0", "part", "piece 1"] * len(batches)


def test_a_parameter_is_of_the_part_that_completes_it_and_an_unused_one_of_the_last() -> None:
    shared, first, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    loss = ((shared * first).exp() * shared).sum()
    parts = [{id(one) for one in part} for part in backward_parts(loss, [unused, shared, first])]
    assert parts == [{id(shared), id(first)}, {id(unused)}]


def test_a_torch_that_cannot_cut_a_compiled_model_is_said(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "harness.engines.torch_split", None)
    with pytest.raises(LaunchError, match="has no DDPOptimizer that can be used"):
        torch_engine._compiled_in_parts(plain().model, 2)


def test_an_engine_imports_no_compiler() -> None:
    """It would take seconds of every launch."""
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, harness.engines.none_torch, harness.engines.ddp as ddp; "
            "print([name for name in sys.modules if name in ('torch._dynamo', 'torch._inductor')])",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.strip() == "[]"


class Later(FlatGraphStep):
    """As that, but the sum comes only when it is waited for."""

    started = 0
    waited = 0

    def _start_reduce(self, sync: bool) -> bool:
        self.started += int(sync)
        return sync

    def _wait_reduced(self) -> None:
        self.waited += 1
        self._wire.mul_(2)


def test_an_update_that_is_left_to_the_next_step_is_the_same_update() -> None:
    batches = [batch(seed=seed) for seed in range(STEPS)]
    step = graphed(plain(), Later, world_size=2)
    same_training(graphed(plain(), Doubled, world_size=2), step, batches)
    assert step.started == STEPS


FINISHING: dict[str, Callable[[Any], object]] = {
    "checksum": lambda step: step.checksum(),
    "weights": lambda step: step.weights(),
    "snapshot": lambda step: step.snapshot(),
    "evaluate": lambda step: step.evaluate(None),
    "gradient": lambda step: step.gradient(batch(seed=50)),
    "set_learning_rate": lambda step: step.set_learning_rate(RATE),
    "start_epoch": lambda step: step.start_epoch(),
    "device_synchronise": lambda step: step.device_synchronise(),
    "run_marked": lambda step: step.run_marked(lambda: batch(seed=60)),
    "run without an all-reduce": lambda step: step.run(batch(seed=60), sync=False),
}


@pytest.mark.parametrize("what", FINISHING)
def test_whatever_else_is_asked_of_a_step_finishes_it_first(what: str) -> None:
    step = graphed(linear(), Later, world_size=2)
    for seed in range(STEPS):
        step.run(batch(seed=seed))
    assert step.started == step.waited + 1
    before = [parameter.detach().clone() for parameter in step._trained]
    FINISHING[what](step)
    assert step.started == step.waited
    assert not all(map(torch.equal, before, step._trained))


def test_a_restore_is_not_undone_by_an_update_that_was_under_way() -> None:
    step = graphed(linear(), Later, world_size=2)
    for seed in range(STEPS):
        step.run(batch(seed=seed))
    kept, checksum = step.snapshot(), step.checksum()
    step.run(batch(seed=70))
    step.restore(kept)
    assert step.checksum() == checksum


def test_the_sum_of_a_flat_buffer_becomes_the_mean() -> None:
    step = graphed(plain(), Doubled, world_size=2)
    same_training(eager(plain()), step, [batch(seed=seed) for seed in range(STEPS)])


def test_half_precision_on_the_wire_is_half_the_bytes() -> None:
    parts = plain()
    step = graphed(parts, Doubled, world_size=2, wire_dtype=torch.float16)
    assert step.wire_bytes == parts.gradient_bytes // 2
    whole = eager(plain())
    for seed in range(STEPS):
        for one in (step, whole):
            one.run(batch(seed=seed))
    assert step.checksum() != whole.checksum()  # something was rounded
    for mine, theirs in zip(step._trained, whole._trained, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_a_parameter_without_a_gradient_has_its_place_in_the_buffer() -> None:
    parts = linear()
    unused = torch.nn.Parameter(torch.ones(4))
    parts.model.register_parameter("unused", unused)
    step = flat(parts)
    for seed in range(EAGER_STEPS + 2):
        step.run(batch(seed=seed))
    assert torch.equal(unused, torch.ones(4))
    assert step._flat.numel() == 36
