"""The engine ``none``, for real and in this process: the contract on one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import RunConfig
from harness.engines.api import Engine, Reduced, World
from harness.engines.registry import ENGINES, create
from harness.errors import MissingDependencyError, ValidationError
from harness.spec import Resolved
from tests.requirements import require_modules
from workloads import registry
from workloads.api import Workload

torch = pytest.importorskip("torch")


def config(**changes: Any) -> RunConfig:
    data: dict[str, Any] = {
        "workload": {"name": "stress_strain", "samples": 200},
        "engine": "none",
        "batch_size": 10,
        "cores_per_rank": 1,
    }
    return RunConfig.model_validate(data | changes)


def resolved(**changes: Any) -> Resolved:
    made = Resolved(
        launcher="inline",
        backend=None,
        controller=None,
        placement=(1,),
        hosts=("n1",),
        device="cpu",
        cores_per_rank=1,
        bind=False,
    )
    return made.model_copy(update=changes)


@pytest.fixture
def engine() -> Engine:
    threads = torch.get_num_threads()
    made = create(config(), resolved())
    assert made.start() == World(rank=0, size=1, local_rank=0, local_size=1)
    yield made
    made.stop()
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def workload(data_dir: Path) -> Workload:
    made = registry.create("stress_strain", {"samples": 200}, data_dir)
    made.prepare()
    return made


def batches(workload: Workload) -> Callable[[], Any]:
    from harness.feed.shard import Shard
    from harness.feed.torch_feed import make_feed

    shard = Shard(workload.train_size(), 10, 0, 1, seed=1)
    return make_feed("device", workload.train(), shard, torch.device("cpu")).next


def test_it_trains(engine: Engine, workload: Workload) -> None:
    parts = workload.parts("torch", 1)
    step = engine.build(parts, 1e-3)
    next_batch = batches(workload)
    before = step.checksum()
    losses = step.losses([step.run(next_batch()) for _ in range(30)])
    assert np.isfinite(losses).all()
    assert losses[-5:].mean() < losses[:5].mean()
    assert step.checksum() != before
    assert (step.gradient_bytes, step.gradient_allreduce) == (613_764, False)
    assert step.reduced() == Reduced(steps=0, bytes=0)


def test_options_of_the_base_are_active_too(workload: Workload) -> None:
    """Compiled and fused, as what is divided by it may be; the loss is the plain step's."""
    losses = []
    for options in ({}, {"compile": True, "fused_optimiser": True}):
        made = create(config(execution=options), resolved())
        made.start()
        step = made.build(workload.parts("torch", 1), 1e-3)
        batch = batches(workload)()
        step.gradient(batch)  # a training estimates noise first: it compiles, and trains nothing
        losses.append(step.losses([step.run(batch) for _ in range(3)]))
        shown = made.facts().get("options", {})
        assert set(shown) == {f"execution.{name}: true" for name in options}
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_equal_seeds_give_equal_weights(engine: Engine, workload: Workload) -> None:
    checksums = []
    for seed in (1, 1, 2):
        step, next_batch = engine.build(workload.parts("torch", seed), 1e-3), batches(workload)
        for _ in range(3):
            step.run(next_batch())
        checksums.append(step.checksum())
    assert checksums[0] == checksums[1] != checksums[2]


def test_without_sync_it_is_the_same_step(engine: Engine, workload: Workload) -> None:
    checksums = []
    for sync in (True, False):
        step, next_batch = engine.build(workload.parts("torch", 1), 1e-3), batches(workload)
        step.run(next_batch(), sync=sync)
        checksums.append(step.checksum())
    assert checksums[0] == checksums[1]


def test_collectives_over_one_rank_are_the_identity(engine: Engine) -> None:
    buffer = engine.make_buffer(64)
    engine.fill(buffer, 3.0)
    engine.allreduce(buffer)
    assert engine.to_host(buffer).tolist() == [3.0] * 16
    assert engine.gather({"a": 1}) == [{"a": 1}]
    engine.barrier()


def test_it_proves_no_backend_and_names_its_torch(engine: Engine) -> None:
    proof = engine.proof()
    assert (proof.requested, proof.proven, proof.controller) == (None, None, None)
    assert engine.versions() == {"torch": str(torch.__version__)}


def test_threads_are_those_of_the_config() -> None:
    before = torch.get_num_threads()
    try:
        create(config(), resolved(cores_per_rank=3)).start()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(MissingDependencyError, match=r"sees none: install a CUDA"):
        create(config(), resolved(device="cuda")).start()


def test_every_engine_of_the_registry_can_be_imported() -> None:
    require_modules("horovod")
    for engine, framework in ENGINES:
        made = create(
            config(engine=engine, workload={"name": "x", "framework": framework}), resolved()
        )
        assert (made.name, made.framework) == (engine, framework)


def test_a_framework_that_an_engine_lacks() -> None:
    wanted = config(engine="ddp", workload={"name": "stress_strain", "framework": "tensorflow"})
    with pytest.raises(ValidationError, match="engine ddp has no tensorflow; it has: torch"):
        create(wanted, resolved())


@pytest.mark.parametrize(
    ("engine", "missing", "cure"),
    [
        ("horovod", "horovod", "hvdscale build-horovod"),
        ("ddp", "torch", r"pip install 'hvdscale\[torch\]'"),
    ],
)
def test_a_missing_library_is_named_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, engine: str, missing: str, cure: str
) -> None:
    def absent(module: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=f"{missing}.sub")

    monkeypatch.setattr("harness.engines.registry.import_module", absent)
    with pytest.raises(MissingDependencyError, match=f"needs {missing}, .* install it: {cure}"):
        create(config(engine=engine), resolved())


def test_another_missing_module_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> Any:
        raise ModuleNotFoundError("No module named 'typo'", name="typo")

    monkeypatch.setattr("harness.engines.registry.import_module", absent)
    with pytest.raises(ModuleNotFoundError):
        create(config(), resolved())
