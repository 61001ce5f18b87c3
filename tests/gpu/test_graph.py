"""A step as CUDA graphs trains as the eager step does, on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness import bench
from harness.config import RunConfig
from harness.detect import detect_machine
from harness.engines.registry import create
from harness.legal import resolve
from tests.integration.ranks import machine, point, run_program
from tests.requirements import require, require_modules

torch = pytest.importorskip("torch")

STEPS = 120
EARLY = 12  # through the eager steps, the capture and some replays
WORKLOADS: dict[str, dict[str, Any]] = {
    "stress_strain": {"workload": {"name": "stress_strain", "samples": 4000}, "batch_size": 75},
    "lstm": {"workload": {"name": "lstm", "length": 200_000}, "batch_size": 20},
    "resnet": {
        "workload": {"name": "resnet", "depth": 18, "samples": 512, "image_size": 64},
        "batch_size": 32,
    },
}

PIECES = {"groups": 2, "fusion_threshold_mb": 0, "async_completion": True, "cycle_time_ms": 0}

Losses = Callable[..., NDArray[np.float64]]


@pytest.fixture(autouse=True)
def gpu() -> None:
    require("cuda", torch.cuda.is_available(), "torch sees no GPU")


@pytest.fixture
def losses(data_dir: Path) -> Losses:
    """Give the losses of one rank's first steps."""

    def of(workload: str, **execution: Any) -> NDArray[np.float64]:
        config = RunConfig.model_validate(
            {**WORKLOADS[workload], "engine": "none", "execution": execution}
        )
        engine = create(config, resolve(config, detect_machine()))
        world = engine.start()
        made = bench.prepare(config, data_dir, engine, world)
        step = engine.build(made.parts("torch", config.seed), made.info.learning_rate)
        feed = bench.make_feed(config, made.info, made.train(), engine, world)
        return step.losses([step.run(feed.next()) for _ in range(STEPS)])

    return of


def assert_as_close_as_two_eager_runs(
    graph: NDArray[np.float64], one: NDArray[np.float64], other: NDArray[np.float64]
) -> None:
    np.testing.assert_allclose(graph[:EARLY], one[:EARLY], rtol=2e-4)
    # Kernels that add in any order, cuDNN's backward ones, make two equal runs drift apart.
    scale = np.abs(one).mean()
    apart = max(float(np.abs(one - other).max()), 1e-3 * scale)
    assert float(np.abs(graph - one).max()) <= 3 * apart


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_has_the_losses_of_the_eager_step(workload: str, losses: Losses) -> None:
    one, other = (losses(workload, fused_optimiser=True) for _ in range(2))
    assert_as_close_as_two_eager_runs(losses(workload, graph=True), one, other)


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("horovod", {}),
        ("horovod", {"execution": {"compile": True}}),
        ("horovod", {"horovod": PIECES}),
        ("horovod", {"horovod": PIECES, "execution": {"compile": True}}),
        ("ddp", {}),
        ("ddp", {"execution": {"compile": True}}),
    ],
    ids=["plain", "compiled", "pieces", "compiled pieces", "DDP", "DDP compiled"],
)
def test_two_ranks_train_alike(
    engine: str, changes: dict[str, Any], tmp_path: Path, data_dir: Path
) -> None:
    require("cuda", torch.cuda.device_count() > 1, "there is one GPU")
    require_modules(*(["horovod"] if engine == "horovod" else []))
    assert machine().device == "cuda"
    found = {}
    for name, wanted in (
        ("one", {"fused_optimiser": True}),
        ("other", {"fused_optimiser": True}),
        ("graph", {"graph": True, **changes.get("execution", {})}),
    ):
        more = {"horovod": changes["horovod"]} if "horovod" in changes and name == "graph" else {}
        config = point(engine, "nccl", 2, execution=wanted, measure={"warmup_steps": 24}, **more)
        answers = run_program("losses", config, tmp_path / name, data_dir, str(STEPS))
        assert answers[0]["checksum"] == answers[1]["checksum"]
        found[name] = np.mean([answer["losses"] for answer in answers], axis=0)
    assert_as_close_as_two_eager_runs(found["graph"], found["one"], found["other"])
