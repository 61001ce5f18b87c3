"""Build Horovod from its PyPI sdist for the frameworks, the MPI and the GPUs that are here.

``build_horovod(options, report)`` finds the toolchain, takes the wheel of the same key from the
cache or builds it, installs it and proves it with real all-reduces. Also
``python -m harness.horovod_build`` and ``hvdscale build-horovod``.
"""

from __future__ import annotations

from harness.horovod_build.command import command_build
from harness.horovod_build.main import BuiltHorovod, build_horovod
from harness.horovod_build.options import BuildOptions

__all__ = ["BuildOptions", "BuiltHorovod", "build_horovod", "command_build"]
