"""On a machine with one GPU: all feeds bring the same batches, whatever host and device are at.

``python tests/gpu/feed_check.py`` prints OK, or ends with the assertion that does not hold. The
consumer keeps the training stream busy, so that copies and reuse of memory happen while it still
reads what it was given; a batch is compared on the device, in the training stream.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from harness.config.models import Loader
from harness.errors import ValidationError
from harness.feed import torch_feed
from harness.feed.fits import Room
from harness.feed.shard import Shard, make_shard
from harness.feed.torch_feed import TorchFeed, make_feed
from workloads.api import ArraySamples, Order

COUNT, BATCH, WIDTH = 1000, 48, 50_000  # 9.6 MB a batch: a copy takes a while
STEPS = 30
KINDS = ("device", "host", "disk")
LOADER = Loader(workers=3, prefetch=2)
GPU = torch.device("cuda", 0)


def numbered(folder: Path) -> ArraySamples:
    """Return samples from a file: sample i is i, i + 1, i + 2 ..., its target 7·i."""
    file = folder / "samples.npy"
    index = np.arange(COUNT, dtype=np.float32)
    np.save(file, index[:, None] + np.arange(WIDTH, dtype=np.float32))
    return ArraySamples(np.load(file, mmap_mode="r"), 7 * np.arange(COUNT), file)


def feed_of(kind: str, samples: ArraySamples, shard: Shard) -> TorchFeed:
    return make_feed(kind, samples, shard, GPU, LOADER)


def shard_of(order: Order = "shuffled") -> Shard:
    return make_shard(order, COUNT, BATCH, 1, 2, seed=3)


class Judge:
    """Compares batches on the device, behind whatever the training stream has to do."""

    def __init__(self, busy: Callable[[], None], order: Order = "shuffled") -> None:
        self._busy = busy
        # There beforehand: bringing them over would wait for the training stream.
        steps = np.stack([shard_of(order).at(step) for step in range(STEPS)])
        self._wanted = torch.from_numpy(steps).to(GPU)
        self._steps = torch.arange(WIDTH, device=GPU, dtype=torch.float32)
        self._wrong = torch.zeros((), device=GPU, dtype=torch.int64)

    def look(self, batch: tuple[torch.Tensor, torch.Tensor], step: int) -> None:
        inputs, targets = batch
        assert inputs.device == targets.device == GPU
        self._busy()
        wanted = self._wanted[step]
        self._wrong += (inputs != wanted[:, None].float() + self._steps).sum()
        self._wrong += (targets != 7 * wanted).sum()
        inputs.zero_()  # a batch is a copy: nothing else may see this

    def settle(self, what: str) -> None:
        torch.cuda.synchronize()
        assert int(self._wrong) == 0, f"{what}: {int(self._wrong)} wrong values"
        print(f"{what}: ok", flush=True)


def check_epochs(samples: ArraySamples) -> None:
    for order in ("shuffled", "streams"):
        for kind in KINDS:
            feed, judge = feed_of(kind, samples, shard_of(order)), Judge(lambda: None, order)
            for step in range(2 * feed.steps_per_epoch):
                assert feed.position == step
                judge.look(feed.next(), step)
            judge.settle(f"{kind}, {order}: two epochs")
            feed.close()


def check_slow_device(samples: ArraySamples) -> None:
    """The host runs far ahead: all batches are taken while the device is in the first step."""
    for kind in KINDS:
        feed = feed_of(kind, samples, shard_of())
        judge = Judge(lambda: torch.cuda._sleep(20_000_000))  # some 10 ms
        for step in range(STEPS):
            judge.look(feed.next(), step)
        judge.settle(f"{kind}: slow device")
        feed.close()


def check_slow_host(samples: ArraySamples) -> None:
    """The device has nothing to do, and batches are let go of at once."""
    for kind in KINDS:
        feed, judge = feed_of(kind, samples, shard_of()), Judge(torch.cuda.synchronize)
        for step in range(20):
            judge.look(feed.next(), step)
        judge.settle(f"{kind}: slow host")
        feed.close()


def check_seek(samples: ArraySamples) -> None:
    for kind in KINDS:
        feed = feed_of(kind, samples, shard_of())
        judge = Judge(lambda: torch.cuda._sleep(2_000_000))
        for to in (0, 7, 7, 3, 25):
            feed.seek(to)
            assert feed.position == to
            for step in range(to, to + 4):
                judge.look(feed.next(), step)
        judge.settle(f"{kind}: going elsewhere")
        feed.close()


def check_copies_hide(samples: ArraySamples) -> None:
    """The next copy goes on while the training stream is busy: it is done before that is.

    A host that stalls for the second that the stream is busy shows nothing; one that waits for the
    stream shows the same each time.
    """
    for kind in ("host", "disk"):
        feed = feed_of(kind, samples, shard_of())
        feed.next()
        assert any(copy_hides(feed) for _ in range(3)), f"{kind}: the copy waited for the stream"
        print(f"{kind}: copies beside the training stream: ok", flush=True)
        feed.close()


def copy_hides(feed: TorchFeed) -> bool:
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # some second
    done = torch.cuda.Event()
    done.record()
    feed.next()  # handed over, and its next one begun
    feed._ahead._ahead[1].copied.synchronize()
    before = not done.query()
    torch.cuda.synchronize()
    return before


def check_room(samples: ArraySamples) -> None:
    real = torch_feed._room(GPU)
    assert 0 < real.free_bytes <= real.total_bytes
    before = torch.cuda.memory_allocated()
    torch_feed._room = lambda device: Room("GPU 0", 1 << 20, 1 << 40, 1)
    try:
        feed_of("device", samples, shard_of())
    except ValidationError as error:
        print(f"refused: {error}", flush=True)
    else:
        raise AssertionError("a set that does not fit was let through")
    finally:
        torch_feed._room = lambda device: real
    assert torch.cuda.memory_allocated() == before


def main() -> None:
    assert torch.cuda.is_available(), "this needs a GPU"
    torch.cuda.set_device(GPU)
    with tempfile.TemporaryDirectory() as folder:
        samples = numbered(Path(folder))
        check_epochs(samples)
        check_slow_device(samples)
        check_slow_host(samples)
        check_seek(samples)
        check_copies_hide(samples)
        check_room(samples)
    print("OK")


if __name__ == "__main__":
    main()
