"""Batches for TensorFlow: whole set on the device, in host memory, or from its files.

On a GPU this is written and has never been run. A batch is copied there from memory that is not
pinned: TensorFlow pins none that is not its own.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from harness.config.models import Loader
from harness.errors import LaunchError
from harness.feed.fits import Room, check_fits, chunks, first, host_room
from harness.feed.loader import BatchLoader
from harness.feed.shard import Shard
from harness.feed.stepped import LoadedFeed, SteppedFeed
from workloads.api import Batch, Samples

#: Inputs and targets as tensors on the device.
TfBatch = tuple[Any, Any]
#: Gives this rank's next batch.
TfFeed = SteppedFeed[TfBatch]


class DeviceFeed(TfFeed):
    """The whole split lies in device memory; a batch is an index operation there.

    On a CPU that memory is the host's.
    """

    def __init__(self, samples: Samples, shard: Shard, device: str) -> None:
        super().__init__(shard)
        check_fits("device", samples, _room(device))
        self._device = device
        self._inputs, self._targets = _on_device(samples, device)

    @override
    def _take(self, position: int) -> TfBatch:
        with tf.device(self._device):
            index = tf.convert_to_tensor(self._shard.at(position))
            return tf.gather(self._inputs, index), tf.gather(self._targets, index)


class HostFeed(TfFeed):
    """The split lies in host memory; a batch is gathered there and copied over."""

    def __init__(self, samples: Samples, shard: Shard, device: str) -> None:
        super().__init__(shard)
        check_fits("host", samples, host_room())
        self._device = device
        self._inputs, self._targets = _on_host(samples)

    @override
    def _take(self, position: int) -> TfBatch:
        index = self._shard.at(position)
        return to_device((self._inputs[index], self._targets[index]), self._device)


def make_feed(
    kind: str,
    samples: Samples,
    shard: Shard,
    device: str,
    loader: Loader = Loader(),  # noqa: B008 - frozen
) -> TfFeed:
    """Make the feed ``kind``: device, host or disk, which alone has a loader.

    ValidationError where the whole set should lie in memory that it does not fit into. Samples
    that are no arrays (images to be decoded) are read once, in the beginning.
    """
    if kind == "device":
        return DeviceFeed(samples, shard, device)
    if kind == "host":
        return HostFeed(samples, shard, device)

    def read(indices: NDArray[np.int64]) -> TfBatch:
        return to_device(samples.gather(indices), device)

    return LoadedFeed(shard, BatchLoader(read, shard, loader.workers, loader.prefetch))


def to_device(batch: Batch, device: str) -> TfBatch:
    """Return copies of a batch's arrays as tensors on ``device``."""
    inputs, targets = batch
    with tf.device(device):
        return tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets)


def _room(device: str) -> Room:
    if "GPU" not in device:
        return host_room()
    free_bytes, total_bytes = gpu_memory_bytes()
    return Room("the GPU", free_bytes, total_bytes, 1)


def gpu_memory_bytes() -> tuple[int, int]:
    """Return what is free of this rank's GPU, and what it has.

    TensorFlow tells what it uses of a GPU, and not what there is; the driver does, of the device
    whose context TensorFlow has made current.
    """
    tf.zeros(1)  # makes the context
    driver, free, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_size_t()
    status = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    if status:
        raise LaunchError(f"the CUDA driver does not tell the GPU's memory: error {status}")
    return free.value, total.value


def _on_device(samples: Samples, device: str) -> TfBatch:
    """Return the whole set on ``device``; on a CPU it is never there twice.

    Copies: a memory map would read its file inside the window. Variables, since only these can be
    written to in part; by ``scatter_update``, since assigning to a slice copies the whole first.
    """
    if "GPU" in device:
        check_fits("device", samples, host_room())  # it goes over in one piece
        return to_device(_on_host(samples), device)
    with tf.device(device):
        whole = [
            tf.Variable(tf.zeros((len(samples), *one.shape[1:]), one.dtype), trainable=False)
            for one in first(samples)
        ]
        for start, parts in chunks(samples):
            for variable, part in zip(whole, parts, strict=True):
                places = np.arange(start, start + len(part))
                variable.scatter_update(tf.IndexedSlices(part, places))
    inputs, targets = whole
    return inputs, targets


def _on_host(samples: Samples) -> Batch:
    inputs, targets = (
        np.empty((len(samples), *one.shape[1:]), one.dtype) for one in first(samples)
    )
    for start, (some_inputs, some_targets) in chunks(samples):
        inputs[start : start + len(some_inputs)] = some_inputs
        targets[start : start + len(some_targets)] = some_targets
    return inputs, targets
