"""The TensorFlow engines in this process: what they set, what they refuse, one rank's collectives.

Two real ranks are in ``tests/integration/test_engines.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from harness.config import RunConfig
from harness.engines.api import World
from harness.errors import ConfigError, LaunchError, MissingDependencyError
from harness.spec import Resolved
from tests.requirements import require_modules

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from harness.engines import registry, tf_setup  # noqa: E402
from workloads.stress_strain import tf_model  # noqa: E402


def config(**changes: Any) -> RunConfig:
    data: dict[str, Any] = {
        "workload": {"name": "stress_strain", "framework": "tensorflow"},
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


@pytest.fixture(autouse=True)
def runtime_of_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads are set before TensorFlow starts, and in a process of tests it has started."""
    monkeypatch.setattr(tf_setup, "set_threads", lambda cores: None)
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)


def test_one_rank_alone() -> None:
    engine = registry.create(config(), resolved())
    assert engine.start() == World(rank=0, size=1, local_rank=0, local_size=1)
    buffer = engine.make_buffer(64)
    engine.fill(buffer, 3.0)
    engine.allreduce(buffer)
    assert engine.to_host(buffer).tolist() == [3.0] * 16
    assert engine.to_host(buffer).dtype == np.float32
    assert engine.gather({"a": 1}) == [{"a": 1}]
    engine.barrier()
    assert engine.device_uuid() is None
    assert engine.proof().proven is None
    assert engine.versions() == {"tensorflow": tf.__version__, "keras": keras.__version__}
    engine.stop()


def test_bf16_is_kerass_policy_until_the_engine_stops() -> None:
    before = keras.config.dtype_policy().name
    engine = registry.create(config(execution={"precision": "bf16"}), resolved())
    engine.start()
    assert keras.config.dtype_policy().name == "mixed_bfloat16"
    engine.build(tf_model.build(1), 1e-3)
    assert engine.facts()["options"] == {
        "execution.precision: bf16": (
            "5 of 5 layers with weights compute in bfloat16; weights are float32"
        )
    }
    engine.stop()
    assert keras.config.dtype_policy().name == before


def test_a_model_that_does_not_follow_the_policy_is_no_bf16() -> None:
    engine = registry.create(config(execution={"precision": "bf16"}), resolved())
    parts = tf_model.build(1)  # before the policy is in force
    engine.start()
    with pytest.raises(LaunchError, match="precision: bf16 was asked for, but is not active: 0 of"):
        engine.build(parts, 1e-3)


@pytest.mark.parametrize(
    ("execution", "said"),
    [({"channels_last": True}, "chooses the layout"), ({"precision": "tf32"}, "needs 8.0")],
)
def test_what_cannot_be_active_is_an_error(execution: dict[str, Any], said: str) -> None:
    engine = registry.create(config(execution=execution), resolved())
    engine.start()
    with pytest.raises(LaunchError, match=said):
        engine.build(tf_model.build(1), 1e-3)


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(MissingDependencyError, match=r"TensorFlow .* sees none: install"):
        registry.create(config(), resolved(device="cuda")).start()


def test_another_backend_of_keras_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ConfigError, match="Keras runs on jax here"):
        registry.create(config(), resolved()).start()


def test_threads_of_a_runtime_that_has_started_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(cores: int) -> None:
        raise RuntimeError("Intra op parallelism cannot be modified after initialization.")

    monkeypatch.undo()
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", started)
    with pytest.raises(LaunchError, match="before it could be given 3 threads"):
        tf_setup.set_threads(3)


def test_horovods_barrier_is_no_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeline would count it among those of the gradients."""
    require_modules("horovod")
    from harness.engines import horovod_tf

    called: list[str] = []
    for name in ("allreduce", "allgather"):
        monkeypatch.setattr(
            horovod_tf.hvd, name, lambda *_, called_as=name, **__: called.append(called_as)
        )
    registry.create(config(engine="horovod"), resolved()).barrier()
    assert called == ["allgather"]


def test_bf16_is_nothing_that_horovod_reduces() -> None:
    require_modules("horovod")
    engine = registry.create(config(engine="horovod", horovod={"compression": "bf16"}), resolved())
    with pytest.raises(LaunchError, match="bf16 is not among the types"):
        engine.build(tf_model.build(1), 1e-3)
