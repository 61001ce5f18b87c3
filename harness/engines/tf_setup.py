"""TensorFlow's process-wide settings: threads, device, determinism, and what shows them."""

from __future__ import annotations

import ctypes
import uuid
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from harness.engines.active import Finding
from harness.errors import LaunchError, MissingDependencyError

_AMPERE = (8, 0)  # the first generation that has TF32


def set_threads(cores: int) -> None:
    """Let TensorFlow compute with ``cores`` threads; its runtime must not have started."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(cores)
        tf.config.threading.set_inter_op_parallelism_threads(cores)
    except RuntimeError:
        raise LaunchError(
            f"TensorFlow has started before it could be given {cores} threads; nothing that "
            "computes with TensorFlow may run when a workload is imported"
        ) from None


def take_device(device: str, local_rank: int) -> int | None:
    """Let this process see its own GPU alone, and return its CUDA number; None for a CPU.

    Memory is taken as it is needed: TensorFlow would otherwise take all, also NCCL's.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if device == "cpu":
        if gpus:
            tf.config.set_visible_devices([], "GPU")
        return None
    if not gpus:
        raise MissingDependencyError(
            f"a GPU was asked for, but TensorFlow {tf.__version__} sees none: install tensorflow "
            "with CUDA (pip install 'tensorflow[and-cuda]'), or check CUDA_VISIBLE_DEVICES"
        )
    # A launcher that gives each rank one visible device has done the choosing already.
    index = 0 if len(gpus) == 1 else local_rank
    if index >= len(gpus):
        raise MissingDependencyError(
            f"local rank {local_rank} has no GPU of its own: {len(gpus)} are visible"
        )
    tf.config.set_visible_devices(gpus[index], "GPU")
    tf.config.experimental.set_memory_growth(gpus[index], True)
    return index


def gpu_uuid(index: int) -> str:
    """Return the UUID, as NVML writes it, of a GPU by CUDA's number, which TensorFlow counts by.

    TensorFlow does not tell it, and NVML numbers all devices of the host; the driver knows both.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    found, handle = (ctypes.c_ubyte * 16)(), ctypes.c_int()
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(handle), index)
        or driver.cuDeviceGetUuid(ctypes.byref(found), handle)
    )
    if status:
        raise LaunchError(f"the CUDA driver does not tell the UUID of GPU {index}: error {status}")
    return f"GPU-{uuid.UUID(bytes=bytes(found))}"


def make_deterministic(seed: int) -> None:
    """Let TensorFlow use nothing whose result varies, and seed what draws random numbers.

    For the rest of the process: it cannot be taken back. An operation that has no deterministic
    form raises UnimplementedError from then on.
    """
    keras.utils.set_random_seed(seed % 2**32)
    tf.config.experimental.enable_op_determinism()


def deterministic() -> Finding:
    """Read back what ``make_deterministic`` has set."""
    enabled = bool(is_op_determinism_enabled())
    return Finding("deterministic: true", enabled, f"op determinism: {enabled}")


def tf32() -> Finding:
    """Read back whether TF32 may be used, and whether this GPU can."""
    enabled = bool(tf.config.experimental.tensor_float_32_execution_enabled())
    gpus = tf.config.get_visible_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    capability = tuple(details.get("compute_capability", (0, 0)))
    return Finding(
        "execution.precision: tf32",
        enabled and capability >= _AMPERE,
        f"tensor_float_32_execution_enabled: {enabled}, compute capability {capability[0]}."
        f"{capability[1]} (TF32 needs 8.0)",
    )


def bf16(model: Any) -> Finding:
    """Say how many layers with weights compute in bfloat16, as Keras's policy has them do."""
    layers = [layer for layer in model._flatten_layers() if layer.trainable_variables]
    there = sum(layer.compute_dtype == "bfloat16" for layer in layers)
    float32 = all(v.dtype == "float32" for v in model.trainable_variables)
    return Finding(
        "execution.precision: bf16",
        there > 0 and float32,
        f"{there} of {len(layers)} layers with weights compute in bfloat16; weights are "
        f"{'float32' if float32 else 'not float32'}",
    )
