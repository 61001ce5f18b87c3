"""A step as CUDA graphs trains as the eager step does, on a real GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
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
EAGER_RUNS = 3
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


def assert_as_close_as_eager_runs(
    graph: NDArray[np.float64], eager: Sequence[NDArray[np.float64]]
) -> None:
    np.testing.assert_allclose(graph[:EARLY], eager[0][:EARLY], rtol=2e-4)
    # Kernels that add in any order, cuDNN's backward ones, make equal runs drift apart, some pairs
    # much less than others. What the furthest two are apart is one draw, too, hence twice that.
    drifts = [float(np.abs(one - other).max()) for one, other in itertools.combinations(eager, 2)]
    apart = max(*drifts, 1e-3 * float(np.abs(eager[0]).mean()))
    assert min(float(np.abs(graph - one).max()) for one in eager) <= 2 * apart


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_has_the_losses_of_the_eager_step(workload: str, losses: Losses) -> None:
    eager = [losses(workload, fused_optimiser=True) for _ in range(EAGER_RUNS)]
    assert_as_close_as_eager_runs(losses(workload, graph=True), eager)


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

    def trained(name: str, execution: dict[str, Any], **more: Any) -> NDArray[np.float64]:
        config = point(engine, "nccl", 2, execution=execution, measure={"warmup_steps": 24}, **more)
        answers = run_program("losses", config, tmp_path / name, data_dir, str(STEPS))
        assert answers[0]["checksum"] == answers[1]["checksum"]
        return np.mean([answer["losses"] for answer in answers], axis=0)

    eager = [trained(f"eager {run}", {"fused_optimiser": True}) for run in range(EAGER_RUNS)]
    graph = {"graph": True, **changes.get("execution", {})}
    more = {"horovod": changes["horovod"]} if "horovod" in changes else {}
    assert_as_close_as_eager_runs(trained("graph", graph, **more), eager)
