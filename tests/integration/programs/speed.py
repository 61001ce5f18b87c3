"""Train small nets with each speed option on this rank, and tell what came out."""

from __future__ import annotations

import copy
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from harness.config import RunConfig
from harness.config.models import DdpTuning, Execution, HorovodTuning
from harness.engines import ddp, torch_graph
from harness.engines.api import Engine, Step
from harness.engines.registry import create
from harness.engines.torch_step import TorchStep
from harness.errors import LaunchError
from harness.spec import RunSpec
from workloads.api import Parts
from workloads.torch_parts import make_parts, seeded

SAMPLES = 8
STEPS = 4
RATE = 0.05


def convolutions() -> torch.nn.Module:
    """Return what a residual network is made of; a 1x1 kernel has no layout of its own."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 4, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d((1, 1)),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 5),
    )


def layers() -> torch.nn.Module:
    """Return a net whose loss on two halves of a batch is the mean of theirs."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(432, 16), torch.nn.Tanh(), torch.nn.Linear(16, 5)
    )


def dropping() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(432, 5))


def parts(make: Any, clip_norm: float | None = None) -> Parts:
    with seeded(7):
        model = make()

    def optimiser(made: Any, rate: float, fused: bool) -> Any:
        return torch.optim.SGD(made.parameters(), lr=rate, momentum=0.9, fused=fused or None)

    loss = torch.nn.CrossEntropyLoss()
    return make_parts(model, loss, optimiser, lambda _, __: {}, 0.0, clip_norm=clip_norm)


def batches(rank: int) -> list[Any]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [
        (
            torch.randn(SAMPLES, 3, 12, 12, generator=generator),
            torch.randint(0, 5, (SAMPLES,), generator=generator),
        )
        for _ in range(STEPS)
    ]


class AtOnce:
    """Takes the place of CUDA: captures nothing, and replays by running it."""

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def record(self, body: Any) -> Any:
        return body

    def eager(self) -> Any:
        return nullcontext()

    def event(self) -> Any:
        return SimpleNamespace(record=lambda: None)

    def after(self, event: Any) -> Any:
        return nullcontext()


def train(step: Step, mine: list[Any]) -> dict[str, Any]:
    losses = step.losses([step.run(batch) for batch in mine])
    return {
        "losses": losses.tolist(),
        "checksum": step.checksum(),
        "reduced": [step.reduced().steps, step.reduced().bytes],
        "gradient_bytes": step.gradient_bytes,
        "wire_bytes": step.wire_bytes,
        "norm": norm(step),
    }


def norm(step: Any) -> float:
    grads = [p.grad for p in step._trained]
    assert all(grad.is_contiguous() for grad in grads)
    return float(torch.stack([grad.norm() for grad in grads]).norm())


def variant(
    engine: Engine,
    made: Parts,
    mine: list[Any],
    horovod: Any = None,
    ddp: Any = None,
    **execution: Any,
) -> dict[str, Any]:
    """Train with other options than the launch's, under the same Horovod."""
    config: RunConfig = engine.config
    engine.config = config.model_copy(
        update={
            "execution": Execution(**execution),
            "horovod": HorovodTuning(**(horovod or {})),
            "ddp": DdpTuning(**(ddp or {})),
        }
    )
    try:
        found = train(engine.build(made, RATE), mine)
        return found | {"options": engine.facts().get("options", {})}
    except LaunchError as error:
        return {"error": str(error)}
    finally:
        engine.config = config


def alone(made: Parts, all_ranks: list[list[Any]]) -> dict[str, Any]:
    """Train on the ranks' batches put together, without an engine."""
    optimiser = made.optimiser(made.model, RATE, False)
    step = TorchStep(made, made.model, optimiser, Execution(), torch.device("cpu"))
    joined = [
        tuple(torch.cat(tensors) for tensors in zip(*batch, strict=True))
        for batch in zip(*all_ranks, strict=True)
    ]
    return train(step, joined)


def looked(engine: Engine, mine: list[Any]) -> dict[str, Any]:
    """Train with ``gradient`` between the steps and without: what does it leave behind?"""
    torch.manual_seed(3)
    plain = train(engine.build(parts(convolutions), RATE), mine)
    torch.manual_seed(3)
    step: Any = engine.build(parts(convolutions), RATE)
    losses, errors = [], []
    for batch in mine:
        losses.append(step.run(batch))
        errors.append(gradient_error(step, batch))
    return {
        "same_losses": step.losses(losses).tolist() == plain["losses"],
        "same_weights": step.checksum() == plain["checksum"],
        "reduced": [step.reduced().steps, step.reduced().bytes],
        "errors": errors,
    }


def gradient_error(step: Any, batch: Any) -> float:
    """Return how far ``gradient`` is from what autograd gives on a copy of the model."""
    before = {name: buffer.clone() for name, buffer in step._plain.named_buffers()}
    state = torch.get_rng_state()
    found = step.gradient(batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], b) for name, b in step._plain.named_buffers())
    model = copy.deepcopy(step._plain)  # of a copy Horovod and DDP know nothing
    names = sorted(dict(model.named_parameters()))
    made = dict(model.named_parameters())
    loss = step._loss(model(batch[0]), batch[1])
    wanted = torch.autograd.grad(loss, [made[name] for name in names])
    return float((found - torch.cat([g.flatten() for g in wanted])).abs().max())


def options(engine: Engine, rank: int) -> dict[str, Any]:
    mine = batches(rank)

    def conv(horovod: Any = None, **execution: Any) -> dict[str, Any]:
        return variant(engine, parts(convolutions), mine, horovod, **execution)

    answer = {
        "plain": conv(),
        "channels_last": conv(channels_last=True),
        "bf16": conv(precision="bf16"),
        "accumulate": conv(accumulate=2),
        "fused": conv(fused_optimiser=True),
        "all": conv(channels_last=True, precision="bf16", accumulate=2, fused_optimiser=True),
        "compile": variant(engine, parts(layers), mine, compile=True),
        "layers": variant(engine, parts(layers), mine),
        "graph": conv(graph=True),
        "graph of parts": conv(graph=True, accumulate=2),
        "clipped": variant(engine, parts(layers, 0.5), mine),
        "clipped alone": alone(parts(layers, 0.5), [batches(0), batches(1)]),
        "alone": alone(parts(layers), [batches(0), batches(1)]),
        "gradient": looked(engine, mine),
    }
    if engine.name == "horovod":
        answer |= {
            "groups": conv({"groups": 2}),
            "too many groups": conv({"groups": 100}),
            "fp16": conv({"compression": "fp16"}),
            "graph in pieces": conv({"groups": 2}, graph=True),
            "too many pieces": conv({"groups": 100}, graph=True),
            "compiled in pieces": conv(
                {"groups": 2}, graph=True, compile=True, fused_optimiser=True
            ),
            "graph in fp16": conv({"compression": "fp16"}, graph=True),
            "adasum": conv({"op": "adasum"}),
            "adasum fp16": conv({"op": "adasum", "compression": "fp16"}, accumulate=2),
            "adasum clipped": variant(engine, parts(layers, 0.5), mine, {"op": "adasum"}),
            "adasum unsynchronised": unsynchronised(engine, mine),
            "adasum by Horovod": by_horovod(parts(convolutions), mine),
            "cycle": conv({"cycle_time_ms": 0.5}),
            "hierarchical": conv({"hierarchical_allreduce": True}),
        }
    if engine.name == "ddp":
        knobs = {"bucket_mb": 0.001, "gradient_as_bucket_view": True, "static_graph": True}
        answer |= {"knobs": variant(engine, parts(convolutions), mine, ddp=knobs)}
    return answer


def by_horovod(made: Parts, mine: list[Any]) -> list[float]:
    """Train as Horovod's own documentation has it; return the losses."""
    import horovod.torch as hvd

    optimiser = hvd.DistributedOptimizer(
        made.optimiser(made.model, RATE, False),
        named_parameters=made.model.named_parameters(),
        op=hvd.Adasum,
    )
    losses = []
    for inputs, targets in mine:
        optimiser.zero_grad()
        loss = made.loss(made.model(inputs), targets)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def unsynchronised(engine: Engine, mine: list[Any]) -> dict[str, Any]:
    """Train by Adasum's optimiser without all-reduce, and by the plain one."""
    config = engine.config
    engine.config = config.model_copy(update={"horovod": HorovodTuning(op="adasum")})
    made: Any = engine.build(parts(convolutions), RATE)
    engine.config = config
    plain_parts = parts(convolutions)
    optimiser = plain_parts.optimiser(plain_parts.model, RATE, False)
    plain = TorchStep(plain_parts, plain_parts.model, optimiser, Execution(), torch.device("cpu"))
    for batch in mine:
        made.run(batch, sync=False)
        plain.run(batch)
    same = made.checksum() == plain.checksum()
    before = made.checksum()
    made.run(mine[0])  # a synchronised step still works
    return {"same": same, "reduced": made.reduced().steps, "moved": made.checksum() != before}


def deterministic(engine: Engine, rank: int) -> dict[str, Any]:
    found = train(engine.build(parts(dropping), RATE), batches(rank))
    return found | {"seed": torch.initial_seed(), "options": engine.facts()["options"]}


def main() -> None:
    spec = RunSpec.read(Path(sys.argv[1]))
    for module in (torch_graph, ddp):
        module.CudaRecorder = AtOnce  # type: ignore[attr-defined]
    engine = create(spec.config, spec.resolved)
    world = engine.start()
    what = {"options": options, "deterministic": deterministic}[sys.argv[2]]
    answer = what(engine, world.rank)
    Path(spec.log_dir, f"rank-{world.rank}.json").write_text(json.dumps(answer))
    engine.barrier()
    engine.stop()


if __name__ == "__main__":
    main()
