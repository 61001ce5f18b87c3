"""The engines by name and framework, each a lazy ``"module:Class"``."""

from __future__ import annotations

import os
from importlib import import_module

from harness.config.models import RunConfig
from harness.engines.api import Engine
from harness.errors import MissingDependencyError, ValidationError
from harness.spec import Resolved

ENGINES: dict[tuple[str, str], str] = {
    ("none", "torch"): "harness.engines.none_torch:NoneTorch",
    ("horovod", "torch"): "harness.engines.horovod_torch:HorovodTorch",
    ("none", "tensorflow"): "harness.engines.none_tf:NoneTf",
    ("horovod", "tensorflow"): "harness.engines.horovod_tf:HorovodTf",
    ("ddp", "torch"): "harness.engines.ddp:Ddp",
}

#: What brings a package that an engine needs.
INSTALL = {
    "torch": "pip install 'hvdscale[torch]'",
    "tensorflow": "pip install 'hvdscale[tensorflow]'",
    "keras": "pip install 'hvdscale[tensorflow]'",
    "horovod": "hvdscale build-horovod",
}

#: What a framework reads of the environment when it is loaded; what is set there stays. What
#: TensorFlow says of each CPU that it runs on is no word to the user.
_DEFAULTS = {"tensorflow": {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}}


def create(config: RunConfig, resolved: Resolved) -> Engine:
    """Make the engine of a config; the framework is imported here and not before."""
    target = ENGINES.get((config.engine, config.workload.framework))
    if target is None:
        frameworks = sorted(f for e, f in ENGINES if e == config.engine)
        raise ValidationError(
            f"engine {config.engine} has no {config.workload.framework}; "
            f"it has: {', '.join(frameworks)}"
        )
    for name, value in _DEFAULTS.get(config.workload.framework, {}).items():
        os.environ.setdefault(name, value)
    module, _, attribute = target.partition(":")
    try:
        engine: type[Engine] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in INSTALL:
            raise
        raise MissingDependencyError(
            f"engine {config.engine} needs {package}, which is not installed; "
            f"to install it: {INSTALL[package]}"
        ) from None
    return engine(config, resolved)
