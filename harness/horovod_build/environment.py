"""The environment of a build: pure functions from options and toolchain to variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.horovod_build.options import BuildOptions
from harness.horovod_build.toolchain import Toolchain

# Variables that Horovod's CMake or the compilers read: what is not set here on purpose must not
# leak into a wheel that is cached under a key which does not know of it.
DROPPED_PREFIXES = ("HOROVOD_", "CCL_", "MPI_", "CMAKE_", "NCCL_", "CUDA")
DROPPED = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS", "CPATH", "CPLUS_INCLUDE_PATH"}
DROPPED |= {"C_INCLUDE_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "PYTHONPATH"}


def build_environment(
    options: BuildOptions,
    tools: Toolchain,
    scratch: Path,
    jobs: int,
    base: Mapping[str, str],
    prefix: Path,
) -> dict[str, str]:
    """Return the whole environment of ``pip wheel`` for Horovod.

    ``scratch`` is the build's own folder; ``prefix`` is the Python environment's.
    """
    env = {
        name: value
        for name, value in base.items()
        if name not in DROPPED and not name.startswith(DROPPED_PREFIXES)
    }
    env.update(
        HOROVOD_CMAKE=str(tools.cmake),
        HOROVOD_WITHOUT_MXNET="1",
        HOROVOD_WITH_GLOO="1",
        HOROVOD_BUILD_ARCH_FLAGS=f"-march={options.architecture}",
        CXX=str(tools.cxx),
        MAKEFLAGS=f"-j{jobs}",
        CMAKE_BUILD_PARALLEL_LEVEL=str(jobs),
    )
    for framework, name in (("torch", "PYTORCH"), ("tensorflow", "TENSORFLOW")):
        asked = framework in options.frameworks
        env[f"HOROVOD_{'WITH' if asked else 'WITHOUT'}_{name}"] = "1"
    env["PATH"] = os.pathsep.join([str(prefix / "bin"), base.get("PATH", os.defpath)])
    env.update(_mpi_variables(tools))
    env.update(_gpu_variables(options, tools, scratch))
    return env


def _mpi_variables(tools: Toolchain) -> dict[str, str]:
    if tools.mpi is None or tools.mpi_compiler is None:
        return {"HOROVOD_WITHOUT_MPI": "1"}
    # FindMPI takes MPI_CXX_COMPILER from the cache only, MPI_HOME from the environment too.
    home = tools.mpi_compiler.parent.parent
    return {"HOROVOD_WITH_MPI": "1", "MPI_HOME": str(home)}


def _gpu_variables(options: BuildOptions, tools: Toolchain, scratch: Path) -> dict[str, str]:
    if options.gpu == "none" or tools.cuda is None:
        return {"HOROVOD_WITHOUT_NVTX": "1"}
    variables = {
        "HOROVOD_CUDA_HOME": str(tools.cuda.home),
        "CUDA_HOME": str(tools.cuda.home),
        "CUDACXX": str(tools.cuda.home / "bin" / "nvcc"),
        "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(tools.cuda.architectures),
    }
    if options.gpu == "nccl":
        variables |= {
            "HOROVOD_GPU_OPERATIONS": "NCCL",
            "HOROVOD_NCCL_HOME": str(nccl_mirror(scratch)),
            "HOROVOD_NCCL_LINK": "SHARED",
        }
    elif options.gpu == "mpi-cuda":
        variables["HOROVOD_GPU_OPERATIONS"] = "MPI"
    # `staged`: no GPU operations; torch's CUDA build alone makes Horovod's CMake add CUDA, and GPU
    # tensors are copied to the host and reduced there, by MPI or Gloo, as chosen at run time.
    return variables


def nccl_mirror(scratch: Path) -> Path:
    """Return the folder of the build that looks like an NCCL installation."""
    return scratch / "nccl"


def make_nccl_mirror(home: Path, scratch: Path) -> Path:
    """Mirror NCCL's wheel with the ``libnccl.so`` that the linker wants and the wheel lacks.

    In the scratch folder: site-packages is not ours to write to, and a stray link would outlive the
    wheel. Without it CMake finds a static system NCCL of another version.
    """
    mirror = nccl_mirror(scratch)
    (mirror / "lib").mkdir(parents=True)
    (mirror / "include").symlink_to(home / "include")
    for library in sorted((home / "lib").glob("libnccl.so*")):
        (mirror / "lib" / library.name).symlink_to(library)
    link = mirror / "lib" / "libnccl.so"
    if not link.exists():
        link.symlink_to(sorted((home / "lib").glob("libnccl.so.*"))[0])
    return mirror


def run_paths(tools: Toolchain) -> tuple[str, ...]:
    """Return the run-time search path of Horovod's libraries, relative where it can be.

    They lie in ``lib/python3.x/site-packages/horovod/<framework>/``: relative to there the wheel
    works in any environment, not only in the one it was built in.
    """
    paths = []
    if tools.mpi is not None and tools.mpi_libraries is not None:
        wheel = tools.mpi.source == "wheel"
        paths.append("$ORIGIN/../../../.." if wheel else str(tools.mpi_libraries))
    names = dict(tools.frameworks)
    paths += ["$ORIGIN/../../torch/lib"] if "torch" in names else []
    paths += ["$ORIGIN/../../tensorflow"] if "tensorflow" in names else []
    paths += ["$ORIGIN/../../nvidia/nccl/lib"] if tools.nccl else []
    return tuple(paths)
