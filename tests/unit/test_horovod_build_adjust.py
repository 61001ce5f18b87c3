"""Each adjustment: when it is needed, what it does, and that it refuses what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.detect import Mpi
from harness.errors import BuildError
from harness.horovod_build.adjust import apply_adjustments, needed_names
from harness.horovod_build.adjustment import Source
from harness.horovod_build.adjustments import ADJUSTMENTS
from harness.horovod_build.compiling import compile_wheel
from harness.horovod_build.key import make_key
from tests.unit.horovod_sdist import FILES, options, toolchain, write_sdist, write_tree


def source(folder: Path, gpu: str = "none", **changes: object) -> Source:
    tools = toolchain(**changes)
    chosen = options(folder, gpu=gpu, frameworks=tuple(name for name, _ in tools.frameworks))
    return Source(write_tree(folder / "tree"), chosen, tools)


def test_a_cpu_build_of_both_frameworks_needs_these(tmp_path: Path) -> None:
    build = source(tmp_path)
    assert apply_adjustments(build) == [
        "cxx-standard",
        "tensorflow-xla",
        "no-cuda",
        "run-path",
        "no-debug-info",
        "binding-options",
        "gloo-ranks",
    ]
    assert "_NO_BINDING_ARGS = ['--bind-to none', '--map-by slot']" in build.read(
        "horovod/runner/mpi_run.py"
    )
    top = build.read("CMakeLists.txt")
    assert top.count("CMAKE_CXX_STANDARD 20") == 2
    assert '"-std=c++11" "-std=c++20"' in top
    assert "check_language(CUDA)" not in top
    assert '"$ORIGIN/../../../..;$ORIGIN/../../torch/lib;$ORIGIN/../../tensorflow"' in top
    tensorflow = build.read("horovod/tensorflow/CMakeLists.txt")
    assert "xla_mpi_ops" not in tensorflow
    assert "tensorflow/mpi_ops.cc" in tensorflow


def test_newer_tools_need_more(tmp_path: Path) -> None:
    build = source(
        tmp_path, python_version="3.12.3", cxx_version="g++-13 13.3.0", cmake_version="4.4.3"
    )
    assert apply_adjustments(build)[-5:-2] == ["python-headers", "missing-headers", "cmake-policy"]
    assert build.env["CMAKE_POLICY_VERSION_MINIMUM"] == "3.5"
    assert build.env["CXXFLAGS"].startswith("-include cstdint -include string ")
    assert "distutils" not in build.read("horovod/torch/CMakeLists.txt")


def test_a_cuda_build_leaves_cuda_alone(tmp_path: Path) -> None:
    build = source(tmp_path, gpu="nccl", frameworks=(("torch", "2.11.0+cu130"),))
    assert "no-cuda" not in apply_adjustments(build)
    assert "check_language(CUDA)" in build.read("CMakeLists.txt")


def test_old_frameworks_keep_their_standard(tmp_path: Path) -> None:
    build = source(tmp_path, frameworks=(("torch", "1.13.1"),), tensorflow_include=None)
    assert "cxx-standard" not in needed_names(build)
    assert "tensorflow-xla" not in needed_names(build)


def test_xla_stays_where_tensorflow_ships_the_header(tmp_path: Path) -> None:
    include = tmp_path / "include"
    header = include / "highwayhash" / "arch_specific.h"
    header.parent.mkdir(parents=True)
    header.touch()
    assert "tensorflow-xla" not in needed_names(source(tmp_path, tensorflow_include=include))


def test_mpich_has_binding_options_of_its_own(tmp_path: Path) -> None:
    mpich = Mpi("mpich", "5.0.2", "/env/bin/mpirun", source="wheel")
    assert "binding-options" not in needed_names(source(tmp_path, mpi=mpich))


MUTATIONS = {
    "binding-options": ("horovod/runner/mpi_run.py", "'-map-by slot'", "'-map-by core'"),
    "gloo-ranks": ("horovod/common/gloo/gloo_controller.cc", ".reserve(size_)", ".reserve(8)"),
    "cxx-standard": ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 18)"),
    "tensorflow-xla": ("horovod/tensorflow/CMakeLists.txt", "xla_mpi_ops.cc", "xla_ops.cc"),
    "no-cuda": ("CMakeLists.txt", "check_language(CUDA)", "enable_language(CUDA OPTIONAL)"),
    "run-path": ("CMakeLists.txt", "project(horovod CXX)", "project(horovod LANGUAGES CXX)"),
    "no-debug-info": ("CMakeLists.txt", '"-O2" "-O3" CMAKE_CXX', '"-O1" "-O3" CMAKE_CXX'),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_sdist_is_a_named_error_and_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, old, new = MUTATIONS[name]
    assert old in FILES[file]
    sdist = write_sdist(tmp_path, {file: FILES[file].replace(old, new)})
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    chosen = options(tmp_path)
    key = make_key(chosen, toolchain(), "0.28.1", "0" * 64, [])
    with pytest.raises(BuildError, match=f"adjustment '{name}' no longer matches {file}"):
        compile_wheel(chosen, toolchain(), key, sdist, tmp_path / "log", lambda line: None)
    assert list(scratch.iterdir()) == []


def test_a_target_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    build = source(tmp_path)
    build.write("CMakeLists.txt", FILES["CMakeLists.txt"] + "set(CMAKE_CXX_STANDARD 14)\n")
    with pytest.raises(BuildError, match=r"cxx-standard.*expected 1 of .*found 2"):
        apply_adjustments(build)


def test_verification_catches_an_application_that_did_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for adjustment in ADJUSTMENTS[:5]:
        monkeypatch.setattr(type(adjustment), "apply", lambda self, source: None)
        with pytest.raises(BuildError, match=f"adjustment '{adjustment.name}' did not take effect"):
            apply_adjustments(source(tmp_path), [adjustment])


def test_an_sdist_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no Horovod sdist"):
        apply_adjustments(Source(tmp_path, options(tmp_path), toolchain()))
