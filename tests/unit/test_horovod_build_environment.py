"""The environment and the key of a build, for every kind of GPU support, as pure functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.detect import Mpi
from harness.errors import BuildError, ConfigError
from harness.horovod_build.environment import build_environment, make_nccl_mirror, run_paths
from harness.horovod_build.key import make_key
from harness.horovod_build.options import BuildOptions, parse_frameworks
from harness.horovod_build.toolchain import (
    Cuda,
    Nccl,
    check_cpu,
    check_platform,
    require_cuda_aware,
)
from harness.paths import default_wheel_dir
from tests.unit.horovod_sdist import WHEEL_MPI, options, toolchain

GPU_TOOLS = toolchain(
    python_version="3.12.3",
    frameworks=(("torch", "2.11.0+cu130"),),
    torch_cuda="13.0",
    tensorflow_include=None,
    cuda=Cuda(Path("/usr/local/cuda"), "13.0", ("80", "90")),
    nccl=Nccl(Path("/env/nvidia/nccl"), "2.28.9"),
    cxx_version="g++-13 13.3.0",
    cmake_version="4.4.3",
)
SCRATCH = Path("/scratch")


def env_of(gpu: str, tools=GPU_TOOLS, base: dict[str, str] | None = None) -> dict[str, str]:
    frameworks = tuple(name for name, _ in tools.frameworks)
    chosen = BuildOptions(frameworks=frameworks, gpu=gpu, wheel_dir=Path("/w"))
    return build_environment(chosen, tools, SCRATCH, 2, base or {"PATH": "/bin"}, Path("/env"))


def test_a_cpu_build_is_told_everything() -> None:
    assert env_of("none", toolchain()) == {
        "PATH": "/env/bin:/bin",
        "CXX": "/usr/bin/g++",
        "MAKEFLAGS": "-j2",
        "CMAKE_BUILD_PARALLEL_LEVEL": "2",
        "HOROVOD_CMAKE": "/env/bin/cmake",
        "HOROVOD_BUILD_ARCH_FLAGS": "-march=x86-64-v3",
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "MPI_HOME": "/env",
    }


def test_what_the_key_does_not_know_does_not_leak_in() -> None:
    leaks = {
        "HOROVOD_GPU_OPERATIONS": "MPI",
        "HOROVOD_CUDA_HOME": "/usr/local/cuda",
        "CUDACXX": "/usr/local/bin/nvcc",
        "CUDA_HOME": "/usr/local/cuda",
        "MAKEFLAGS": "w -- MPI=wheel",
        "CPATH": "/opt/include",
        "CCL_ROOT": "/opt/ccl",
    }
    env = env_of("none", toolchain(), {"PATH": "/bin", "HOME": "/home/user", **leaks})
    assert env == {**env_of("none", toolchain()), "HOME": "/home/user"}


def test_nccl() -> None:
    env = env_of("nccl")
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert env["HOROVOD_NCCL_HOME"] == "/scratch/nccl"
    assert env["HOROVOD_NCCL_LINK"] == "SHARED"
    assert env["HOROVOD_BUILD_CUDA_CC_LIST"] == "80,90"
    assert env["CUDACXX"] == "/usr/local/cuda/bin/nvcc"
    assert env["HOROVOD_WITHOUT_TENSORFLOW"] == "1"


def test_staged_has_cuda_without_gpu_operations() -> None:
    env = env_of("staged")
    assert "HOROVOD_GPU_OPERATIONS" not in env
    assert "HOROVOD_NCCL_HOME" not in env
    assert env["HOROVOD_CUDA_HOME"] == "/usr/local/cuda"


def test_mpi_cuda_hands_mpi_the_gpu_tensors() -> None:
    assert env_of("mpi-cuda")["HOROVOD_GPU_OPERATIONS"] == "MPI"


def test_mpi_cuda_refuses_an_mpi_that_is_not_cuda_aware() -> None:
    with pytest.raises(BuildError, match=r"/env/bin/mpirun\) is not CUDA-aware"):
        require_cuda_aware("mpi-cuda", WHEEL_MPI)
    require_cuda_aware("staged", WHEEL_MPI)
    require_cuda_aware("mpi-cuda", replace(WHEEL_MPI, cuda_aware=True))


def test_no_mpi() -> None:
    env = env_of("none", toolchain(mpi=None, mpi_compiler=None, mpi_libraries=None))
    assert env["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_WITH_MPI" not in env


def test_the_nccl_mirror_has_the_link_that_the_wheel_lacks(tmp_path: Path) -> None:
    home = tmp_path / "site-packages" / "nvidia" / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "include").mkdir()
    (home / "include" / "nccl.h").write_text("#define NCCL_MAJOR 2\n")
    (home / "lib" / "libnccl.so.2").write_bytes(b"elf")
    scratch = tmp_path / "scratch"
    mirror = make_nccl_mirror(home, scratch)
    assert (mirror / "lib" / "libnccl.so").read_bytes() == b"elf"
    assert (mirror / "include" / "nccl.h").is_file()
    assert [path.name for path in (home / "lib").iterdir()] == ["libnccl.so.2"]


def test_run_paths_are_relative_but_for_a_system_mpi() -> None:
    assert run_paths(GPU_TOOLS) == (
        "$ORIGIN/../../../..",
        "$ORIGIN/../../torch/lib",
        "$ORIGIN/../../nvidia/nccl/lib",
    )
    system = Mpi("openmpi", "4.1.6", "/opt/mpi/bin/mpirun")
    assert run_paths(toolchain(mpi=system, mpi_libraries=Path("/opt/mpi/lib")))[0] == "/opt/mpi/lib"
    found_by_itself = toolchain(mpi=system, mpi_libraries=None)
    assert run_paths(found_by_itself) == ("$ORIGIN/../../torch/lib", "$ORIGIN/../../tensorflow")


KEY_CHANGES = {
    "python": {"python_version": "3.12.1"},
    "abi": {"abi": "cpython-312-x86_64-linux-gnu"},
    "libc": {"libc": "glibc-2.39"},
    "torch": {"frameworks": (("torch", "2.14.0+cpu"), ("tensorflow", "2.21.0"))},
    "tensorflow": {"frameworks": (("torch", "2.13.0+cpu"), ("tensorflow", "2.22.0"))},
    "mpi": {"mpi": replace(WHEEL_MPI, version="5.0.12")},
    "mpi-source": {"mpi": replace(WHEEL_MPI, source="system")},
    "compiler": {"cxx_version": "g++-13 13.3.0"},
    "cuda": {"cuda": Cuda(Path("/usr/local/cuda"), "13.0", ("90",))},
    "nccl": {"nccl": Nccl(Path("/env/nccl"), "2.28.9")},
    "cxxflags": {"cxxflags": "-O1"},
}


def digest(tools=None, **changes: object) -> str:
    chosen = options(Path("/w"), **changes)
    return make_key(chosen, tools or toolchain(), "0.28.1", "ab" * 32, ["run-path"]).digest


@pytest.mark.parametrize("part", KEY_CHANGES)
def test_every_part_of_the_toolchain_makes_another_key(part: str) -> None:
    assert digest(toolchain(**KEY_CHANGES[part])) != digest()


def test_options_that_change_the_wheel_change_the_key_and_others_do_not() -> None:
    assert digest(architecture="native") != digest()
    assert digest(gpu="staged") != digest()
    assert digest(jobs=1, install=False) == digest()
    # A patch release of Python, or another CMake, makes the same wheel.
    assert digest(toolchain(python_version="3.11.9", cmake_version="4.0.0")) == digest()


def test_the_digest_is_stable_between_runs() -> None:
    assert digest() == "80abab6af61df70dae29"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frameworks": ("pytorch",)}, r"framework 'pytorch' is not one of .*did you mean 'torch'"),
        ({"frameworks": ()}, "no framework"),
        ({"gpu": "ncll"}, "--gpu 'ncll' is not one of .*did you mean 'nccl'"),
        ({"mpi": "openmpi"}, "--mpi 'openmpi' is not one of auto"),
        ({"architecture": "haswell"}, "--arch 'haswell'"),
        ({"cuda_architectures": ("9.0",)}, "--cuda-arch '9.0'"),
        ({"jobs": 0}, "--jobs 0"),
        (
            {"sdist": Path("/nowhere/horovod.tar.gz")},
            "--sdist /nowhere/horovod.tar.gz: there is no",
        ),
        ({"gpu": "mpi-cuda", "mpi": "none"}, "mpi-cuda needs an MPI"),
    ],
)
def test_wrong_options_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildOptions(wheel_dir=Path("/w"), **changes)  # type: ignore[arg-type]


def test_frameworks_have_one_order() -> None:
    assert parse_frameworks(" tensorflow, torch,torch") == ("torch", "tensorflow")


def test_the_wheel_folder_follows_the_variables() -> None:
    assert default_wheel_dir({"HOME": "/h"}) == Path("/h/.cache/hvdscale/wheels")
    xdg = {"HOME": "/h", "XDG_CACHE_HOME": "/x"}
    assert default_wheel_dir(xdg) == Path("/x/hvdscale/wheels")
    assert default_wheel_dir({**xdg, "HVDSCALE_WHEEL_DIR": "/own"}) == Path("/own")


def test_other_platforms_are_refused_by_name() -> None:
    check_platform("Linux", "x86_64")
    with pytest.raises(BuildError, match="this is aarch64 Linux"):
        check_platform("Linux", "aarch64")
    with pytest.raises(BuildError, match="this is x86_64 Darwin"):
        check_platform("Darwin", "x86_64")


def test_an_architecture_that_this_cpu_lacks_is_refused() -> None:
    check_cpu("x86-64-v3", {"avx2", "fma", "f16c", "bmi2"})
    with pytest.raises(BuildError, match=r"no f16c, fma; .*x86-64-v2"):
        check_cpu("x86-64-v3", {"avx2", "bmi2"})
