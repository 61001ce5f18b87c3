"""What is asked for is what runs: knobs, operations, precision, layout, fused, compiled."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.config.models import HorovodTuning
from harness.engines.active import Finding, HorovodRuntime, of_horovod, require
from harness.errors import LaunchError
from harness.tuning import to_environment

torch = pytest.importorskip("torch")

from harness.engines import torch_engine, torch_probe  # noqa: E402

NODES = HorovodRuntime(size=8, local_size=4, nccl=22809, mpi=True)
ONE_NODE = HorovodRuntime(size=4, local_size=4, nccl=22809, mpi=True)


def evidence(runtime: HorovodRuntime, *, lost: str = "", **knobs: Any) -> dict[str, str]:
    wanted = HorovodTuning(**knobs)
    environ = {name: value for name, value in to_environment(wanted).items() if name != lost}
    return require(of_horovod(wanted, runtime, environ))


def test_defaults_need_no_evidence() -> None:
    assert evidence(NODES) == {}
    assert require(of_horovod(HorovodTuning(), NODES, {})) == {}


def test_a_knob_in_force_is_shown_by_its_variable() -> None:
    assert evidence(ONE_NODE, cycle_time_ms=0.1, cache_capacity=0) == {
        "horovod.cycle_time_ms: 0.1": "HOROVOD_CYCLE_TIME=0.1",
        "horovod.cache_capacity: 0": "HOROVOD_CACHE_CAPACITY=0",
    }


def test_a_knob_that_a_launcher_lost_fails() -> None:
    with pytest.raises(LaunchError, match=r"cache_capacity: 0 was.*=1024 \(not set; Horovod's"):
        evidence(NODES, lost="HOROVOD_CACHE_CAPACITY", cache_capacity=0)


def test_a_knob_that_nobody_asked_for_fails() -> None:
    with pytest.raises(LaunchError, match=r"cycle_time_ms: 1\.0 was.*HOROVOD_CYCLE_TIME=7"):
        require(of_horovod(HorovodTuning(), NODES, {"HOROVOD_CYCLE_TIME": "7"}))


def test_two_level_operations_are_there_between_nodes() -> None:
    for field in ("hierarchical_allreduce", "torus_allreduce"):
        found = evidence(NODES, **{field: True})
        assert found[f"horovod.{field} (operation)"] == (
            "NCCL built in, MPI enabled, 4 of 8 ranks on this node"
        )


@pytest.mark.parametrize(
    ("runtime", "knobs", "words"),
    [
        (ONE_NODE, {"hierarchical_allreduce": True}, "4 of 4 ranks"),
        (HorovodRuntime(8, 4, 22809, False), {"hierarchical_allreduce": True}, "MPI not enabled"),
        (HorovodRuntime(8, 4, 0, True), {"hierarchical_allreduce": True}, "NCCL not built in"),
        (ONE_NODE, {"torus_allreduce": True}, "4 of 4 ranks"),
        (NODES, {"torus_allreduce": True, "hierarchical_allreduce": True}, "4 of 8 ranks"),
        (HorovodRuntime(8, 4, 0, True), {"async_completion": True}, "NCCL not built in"),
    ],
)
def test_an_operation_that_horovod_has_not_made_fails(
    runtime: HorovodRuntime, knobs: dict[str, Any], words: str
) -> None:
    with pytest.raises(LaunchError, match=f"operation. was asked for, but is not active.*{words}"):
        evidence(runtime, **knobs)


def test_one_rank_has_no_operations() -> None:
    assert list(evidence(HorovodRuntime(1, 1, 0, False), torus_allreduce=True)) == [
        "horovod.torus_allreduce: true"
    ]


def test_torus_needs_no_mpi() -> None:
    assert evidence(HorovodRuntime(8, 4, 22809, False), torus_allreduce=True)


def test_the_first_that_is_not_active_is_named() -> None:
    findings = [Finding("a: 1", True, "x"), Finding("b: 2", False, "y"), Finding("c", False, "z")]
    with pytest.raises(LaunchError, match=r"^b: 2 was asked for, but is not active: y$"):
        require(findings)
    assert require(findings[:1]) == {"a: 1": "x"}


class Turning(torch.nn.Module):
    """Loses the layout on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(images).contiguous())


def seen(model: torch.nn.Module, images: torch.Tensor) -> torch_probe.Activations:
    laid_out = torch_probe.as_channels_last(images)
    return torch_probe.look(model, lambda: model(laid_out))


def test_a_layout_that_is_lost_on_the_way_is_no_channels_last() -> None:
    found = torch_probe.layout(seen(Turning(), torch.randn(2, 3, 8, 8)))
    assert not found.active
    assert found.evidence == "1 of 2 outputs of convolutions are in channels_last"


def test_a_model_without_convolutions_shows_no_layout() -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    assert not torch_probe.layout(seen(model, torch.randn(2, 3, 2, 2))).active


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_channels_last_is_the_same_image_and_says_so(channels: int) -> None:
    """Of one channel, torch would go on as if it were contiguous."""
    images = torch.randn(2, channels, 5, 4)
    laid_out = torch_probe.as_channels_last(images)
    assert torch.equal(laid_out, images)
    assert laid_out.stride() == (5 * 4 * channels, 1, 4 * channels, channels)
    convolution = torch.nn.Conv2d(channels, 3, 3)
    assert torch_probe.layout(seen(convolution, images)).active
    assert convolution.weight.is_contiguous()


def test_precision_is_read_off_the_layers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
    inputs = torch.randn(4, 3)
    exact = torch_probe.precision(torch_probe.look(model, lambda: model(inputs)))
    assert (exact.active, exact.evidence) == (False, "outputs of layers: 2 float32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = torch_probe.precision(torch_probe.look(model, lambda: model(inputs)))
    assert (near.active, near.evidence) == (True, "outputs of layers: 2 bfloat16")


class Carrying(torch.nn.Module):
    """Counts in one buffer, and replaces another by one of the batch's size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("state", torch.zeros(0), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.state = inputs.sum(dim=1)
        return inputs


def test_looking_leaves_buffers_and_hooks_as_they_were() -> None:
    model = Carrying()
    state = model.state
    torch_probe.look(model, lambda: model(torch.ones(3, 2)))
    assert model.count.item() == 0
    assert model.state is state
    assert not model._forward_hooks


def test_fused_is_read_off_every_group() -> None:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": weights[0], "fused": True}, {"params": weights[1], "fused": False}]
    found = torch_probe.fused(torch.optim.SGD(groups, lr=0.1))
    assert (found.active, found.evidence) == (False, "1 of 2 parameter groups of SGD are fused")
    assert torch_probe.fused(torch.optim.SGD(weights, lr=0.1, fused=True)).active


def test_what_was_compiled_is_counted_from_before_the_step() -> None:
    assert torch_probe.compiled((3, 1), (4, 3)).evidence == (
        "torch.compile made 1 graphs, and broke off 2 times"
    )
    assert not torch_probe.compiled((3, 0), (3, 2)).active


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what determinism changes for the whole process."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.use_deterministic_algorithms(False)
    cudnn.deterministic, cudnn.benchmark = before
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.usefixtures("untouched")
def test_determinism_is_set_and_read_back() -> None:
    drawn = []
    for seed in (5, 5, 6):
        torch_engine.make_deterministic(seed)
        drawn.append((torch.rand(1).item(), float(np.random.random()), random.random()))
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[1], drawn[2], strict=True))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    found = torch_engine.deterministic()
    assert found.active
    assert "cudnn.deterministic: True" in found.evidence
    torch.use_deterministic_algorithms(False)
    assert not torch_engine.deterministic().active
