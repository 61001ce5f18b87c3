"""The key of a wheel: all that would make another wheel, readable, and its hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from harness.horovod_build.options import BuildOptions
from harness.horovod_build.toolchain import Toolchain

# Raised when the adjustments or flags change in a way that makes another wheel from the same parts.
BUILDER_REVISION = 1


@dataclass(frozen=True)
class BuildKey:
    """What a wheel was made of, as JSON-able parts; equal parts are the same wheel."""

    parts: dict[str, object]

    @property
    def digest(self) -> str:
        """Return the hash that names the wheel's folder in the cache."""
        text = json.dumps(self.parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def to_json(self) -> str:
        """Return the parts as text for people, with the digest."""
        return json.dumps({"digest": self.digest, **self.parts}, indent=2, sort_keys=True) + "\n"

    def marker(self, proven: bool) -> str:
        """Return what the wheel carries of its own key, as ``horovod/hvdscale_build.json``."""
        marker = {"digest": self.digest, "proven": proven, **self.parts}
        return json.dumps(marker, indent=2, sort_keys=True) + "\n"


def make_key(
    options: BuildOptions, tools: Toolchain, horovod: str, sdist_sha256: str, adjustments: list[str]
) -> BuildKey:
    """Return the key of ``options`` on ``tools``."""
    mpi = tools.mpi
    return BuildKey(
        {
            "builder_revision": BUILDER_REVISION,
            "horovod": {"version": horovod, "sdist_sha256": sdist_sha256},
            "adjustments": adjustments,
            "python": {"version": ".".join(tools.python_version.split(".")[:2]), "abi": tools.abi},
            "libc": tools.libc,
            "frameworks": dict(tools.frameworks),
            "gpu": options.gpu,
            "cuda": tools.cuda.version if tools.cuda else None,
            "cuda_architectures": list(tools.cuda.architectures) if tools.cuda else [],
            "nccl": tools.nccl.version if tools.nccl else None,
            "mpi": {
                "flavour": mpi.flavour,
                "version": mpi.version,
                "source": mpi.source,
                # A system MPI is found by its place; the wheel's, relative to Horovod's.
                "libraries": str(tools.mpi_libraries) if mpi.source == "system" else "$ORIGIN",
            }
            if mpi
            else None,
            "compiler": tools.cxx_version,
            "architecture": options.architecture,
            "cxxflags": tools.cxxflags,
            "ldflags": tools.ldflags,
        }
    )
