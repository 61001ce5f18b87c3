"""A delay planted in reading a batch is found in the phase ``data``, unless it is hidden."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import RunConfig
from harness.config.models import Loader
from harness.engines.api import PHASES
from harness.engines.registry import create
from harness.feed.shard import Shard
from harness.measure import phases
from harness.spec import Resolved
from workloads import registry
from workloads.api import Batch, Samples

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.alone

DELAY_S = 0.04
STEPS = 12
BATCH = 10


@dataclass(frozen=True)
class Slow:
    """Samples that take their time, a batch."""

    samples: Samples
    delay_s: float

    def __len__(self) -> int:
        return len(self.samples)

    def gather(self, indices: np.ndarray) -> Batch:
        time.sleep(self.delay_s)
        return self.samples.gather(indices)

    def arrays(self) -> Batch | None:
        return self.samples.arrays()

    def files(self) -> tuple[Path, ...]:
        return self.samples.files()


class SlowShard(Shard):
    """What finding a batch in memory begins with takes its time."""

    def at(self, step: int) -> np.ndarray:
        time.sleep(DELAY_S)
        return super().at(step)


@pytest.fixture(scope="module")
def parts(data_dir: Path) -> Iterator[tuple[Any, Any, Samples]]:
    """Give an engine, a step and samples of one device."""
    config = RunConfig.model_validate(
        {
            "workload": {"name": "stress_strain", "samples": 400},
            "engine": "none",
            "batch_size": BATCH,
            "cores_per_rank": 1,
        }
    )
    resolved = Resolved(
        launcher="inline",
        backend=None,
        controller=None,
        placement=(1,),
        hosts=("n1",),
        device="cpu",
        cores_per_rank=1,
        bind=False,
    )
    threads = torch.get_num_threads()
    engine = create(config, resolved)
    engine.start()
    workload = registry.create("stress_strain", {"samples": 400}, data_dir)
    workload.prepare()
    yield engine, engine.build(workload.parts("torch", 1), 1e-3), workload.train()
    engine.stop()
    torch.set_num_threads(threads)


def data_s(parts: tuple[Any, Any, Samples], feed: Any, step_s: float = 0.0) -> float:
    """Return the median of the phase; ``step_s`` is slept between two steps' phases."""
    engine, step, _ = parts
    column = 1 + PHASES.index("data_s")

    def next_batch() -> Any:
        return feed.next()

    found = []
    try:
        feed.next()  # the first one of a loader waits for everything
        for _ in range(STEPS):
            time.sleep(step_s)
            marked = phases.run_marked(step, next_batch, engine, 1)
            found.append(marked.columns[0, column])
    finally:
        feed.close()
    return float(np.median(found))


def made(kind: str, samples: Samples, shard: Shard, loader: Loader = Loader()) -> Any:  # noqa: B008
    from harness.feed.torch_feed import make_feed

    return make_feed(kind, samples, shard, torch.device("cpu"), loader)


def shard(samples: Samples, kind: type[Shard] = Shard) -> Shard:
    return kind(len(samples), BATCH, 0, 1, seed=1)


def test_a_slow_disk_is_data_time(parts: tuple[Any, Any, Samples]) -> None:
    samples = parts[2]
    asked = Loader(workers=0)
    plain_s = data_s(parts, made("disk", samples, shard(samples), asked))
    slow_s = data_s(parts, made("disk", Slow(samples, DELAY_S), shard(samples), asked))
    assert slow_s - plain_s == pytest.approx(DELAY_S, rel=0.15)


def test_what_is_slow_in_host_memory_is_data_time(parts: tuple[Any, Any, Samples]) -> None:
    samples = parts[2]
    plain_s = data_s(parts, made("host", samples, shard(samples)))
    slow_s = data_s(parts, made("host", samples, shard(samples, SlowShard)))
    assert slow_s - plain_s == pytest.approx(DELAY_S, rel=0.15)


def test_a_loader_hides_what_is_shorter_than_a_step(parts: tuple[Any, Any, Samples]) -> None:
    """Two workers read in 40 ms while a step takes more; without any the step waits for it."""
    samples = parts[2]
    slow = Slow(samples, DELAY_S)
    ahead = made("disk", slow, shard(samples), Loader(workers=2, prefetch=2))
    assert data_s(parts, ahead, step_s=1.5 * DELAY_S) < 0.15 * DELAY_S
    asked = made("disk", slow, shard(samples), Loader(workers=0))
    assert data_s(parts, asked, step_s=1.5 * DELAY_S) > 0.9 * DELAY_S
