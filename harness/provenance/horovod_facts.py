"""The Horovod in this process: version, how it was built, and the tuning in force."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from harness import tuning
from harness.config.models import HorovodTuning
from harness.detect import read_build_marker

_BUILD_KEYS = ("digest", "proven", "gpu", "mpi", "nccl", "cuda", "compiler", "adjustments")


def collect(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return its facts; nothing where this process has not imported it.

    A Horovod that only lies in the environment of a base's rank is no part of that measurement.
    """
    module = sys.modules.get("horovod")
    if module is None:
        return {}
    build = {key: value for key, value in read_build_marker().items() if key in _BUILD_KEYS}
    return {
        "version": str(getattr(module, "__version__", "")),
        **({"build": build} if build else {}),
        **_choices(environ),
        "tuning": in_force(environ),
    }


def in_force(environ: Mapping[str, str]) -> dict[str, str]:
    """Return every knob of Horovod's engine as this process has it, also those at defaults.

    What autotuning moves at run time is left out where it is on: nobody knows it here.
    """
    defaults = {name: f"{value:g}" for name, value in tuning.NOT_IN_CONFIG.items()}
    autotuned = environ.get(tuning.AUTOTUNE, "0") == "1"
    known = tuning.to_environment(HorovodTuning(autotune=autotuned)) | defaults
    set_here = {name: environ[name] for name in (*known, *tuning.NEVER_SET) if name in environ}
    return dict(sorted((known | set_here).items()))


def _choices(environ: Mapping[str, str]) -> dict[str, str]:
    names = {"HOROVOD_CONTROLLER": "controller", "HOROVOD_CPU_OPERATIONS": "cpu_operations"}
    return {key: environ[name].lower() for name, key in names.items() if environ.get(name)}
