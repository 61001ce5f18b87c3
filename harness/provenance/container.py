"""Whether this process is inside a container, as far as it shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: By the environment: variable → what sets it. The innermost one comes first.
_VARIABLES = {
    "APPTAINER_NAME": "apptainer",
    "SINGULARITY_NAME": "singularity",
    "KUBERNETES_SERVICE_HOST": "kubernetes",
}
#: By a file that a container engine puts there.
_FILES = {".dockerenv": "docker", "run/.containerenv": "podman"}


def collect(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str]:
    """Return ``{"kind": …}``, with the image's name where it is told; nothing outside of one."""
    for variable, kind in _VARIABLES.items():
        if environ.get(variable):
            name = {"name": environ[variable]} if variable.endswith("_NAME") else {}
            return {"kind": kind} | name
    for file, kind in _FILES.items():
        if (root / file).exists():
            return {"kind": kind}
    return {}
