"""What all TensorFlow engines share: device, threads, precision, determinism, buffers.

On a GPU this is written and has never been run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from typing_extensions import override

from harness.engines import active, tf_setup
from harness.engines.active import Finding
from harness.engines.api import Engine
from harness.engines.tf_step import Buffer, TfStep
from harness.errors import ConfigError
from harness.feed.shard import Shard
from harness.feed.tf_feed import TfFeed, make_feed
from workloads.api import Parts, Samples

_Step = TypeVar("_Step", bound=TfStep)


class TfEngine(Engine):
    """The parts of the contract that do not depend on how ranks are joined."""

    framework = "tensorflow"
    device: str  # of TensorFlow, "/CPU:0" or "/GPU:0": the one GPU that this rank sees
    _gpu: int | None = None  # as CUDA counts it
    _step: TfStep | None = None
    _policy: Any = None  # of Keras, before
    _options: Mapping[str, str] = MappingProxyType({})  # evidence, by option

    def prepare_device(self, local_rank: int, rank: int) -> None:
        """Take this rank's device and cores, and set the precision that was asked for.

        Before TensorFlow's runtime starts, which its first operation does, and before a workload
        makes a model: Keras takes the policy of types that is in force then.
        """
        if keras.backend.backend() != "tensorflow":
            raise ConfigError(
                f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=tensorflow, or "
                "backend in ~/.keras/keras.json"
            )
        if self.config.deterministic:
            tf_setup.make_deterministic(self.config.seed + rank)
        tf_setup.set_threads(self.resolved.cores_per_rank)
        precision = self.config.execution.precision
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        self._policy = keras.config.dtype_policy()
        keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bf16" else "float32")
        self._gpu = tf_setup.take_device(self.resolved.device, local_rank)
        self.device = "/CPU:0" if self._gpu is None else "/GPU:0"

    def optimiser(self, parts: Parts, learning_rate: float) -> Any:
        """Return the workload's own optimiser."""
        fused = self.config.execution.fused_optimiser
        with tf.device(self.device):
            return parts.optimiser(parts.model, learning_rate, fused)

    def keep(self, step: _Step, findings: Iterable[Finding] = ()) -> _Step:
        """Return the step that was built; LaunchError where an option is not in force."""
        self._options = active.require([*self._findings(step), *findings])
        self._step = step
        return step

    def _findings(self, step: TfStep) -> Iterator[Finding]:
        precision = self.config.execution.precision
        if precision == "bf16":
            yield tf_setup.bf16(step.model)
        if precision == "tf32":
            yield tf_setup.tf32()
        if self.config.deterministic:
            yield tf_setup.deterministic()
        if self.config.execution.channels_last:
            told = "TensorFlow chooses the layout; set it to false"
            yield Finding("execution.channels_last: true", False, told)

    @override
    def make_buffer(self, count_bytes: int) -> Buffer:
        with tf.device(self.device):
            return Buffer(tf.zeros(count_bytes // 4, tf.float32))

    @override
    def fill(self, buffer: Buffer, value: float) -> None:
        buffer.value = tf.fill(buffer.value.shape, tf.constant(value, tf.float32))
        self._wait()

    @override
    def to_host(self, buffer: Buffer) -> NDArray[np.float32]:
        host: NDArray[np.float32] = buffer.value.numpy()
        return host

    @override
    def device_uuid(self) -> str | None:
        return None if self._gpu is None else tf_setup.gpu_uuid(self._gpu)

    @override
    def facts(self) -> dict[str, Any]:
        shown = self._step.options if self._step is not None else {}
        options = {**self._options, **shown}
        return {
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "interop_threads": tf.config.threading.get_inter_op_parallelism_threads(),
            **({"options": options} if options else {}),
        }

    @override
    def versions(self) -> Mapping[str, str]:
        found = {"tensorflow": str(tf.__version__), "keras": str(keras.__version__)}
        if self._gpu is not None:
            build = tf.sysconfig.get_build_info()
            found["tensorflow_cuda"] = str(build.get("cuda_version", ""))
            gpus = tf.config.get_visible_devices("GPU")
            details = tf.config.experimental.get_device_details(gpus[0])
            found["device"] = str(details.get("device_name", ""))
        return {key: value for key, value in found.items() if value}

    @override
    def feed(self, kind: str, samples: Samples, shard: Shard) -> TfFeed:
        return make_feed(kind, samples, shard, self.device, self.config.loader)

    @override
    def stop(self) -> None:
        if self._policy is not None:
            keras.config.set_dtype_policy(self._policy)

    def _wait(self) -> None:
        if self._gpu is not None:
            tf.test.experimental.sync_devices()
