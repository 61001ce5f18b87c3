"""Each adjustment of Horovod 0.28.1: when it is needed, what it changes, how that is verified."""

from __future__ import annotations

import re

from harness.errors import BuildError
from harness.horovod_build.adjustment import (
    Adjustment,
    Source,
    forbid_pattern,
    replace_exactly,
    require_text,
)
from harness.horovod_build.environment import run_paths


class CxxStandard(Adjustment):
    """Compile everything as C++20: torch's and TensorFlow's headers no longer are C++14 or 17."""

    name = "cxx-standard"
    why = "the frameworks' headers need C++20"
    files = (
        # (file, the standard set there, how often)
        ("CMakeLists.txt", "14", 1),
        ("CMakeLists.txt", "17", 1),
        ("horovod/torch/CMakeLists.txt", "14", 1),
        ("horovod/tensorflow/CMakeLists.txt", "17", 1),
    )

    def needed(self, source: Source) -> bool:
        """Needed since torch 2.1 and TensorFlow 2.16; C++20 compiles what only wants C++17 too."""
        tools = source.tools
        return tools.version_of("torch") >= (2, 1) or tools.version_of("tensorflow") >= (2, 16)

    def apply(self, source: Source) -> None:
        """Raise every standard, also that of the copy of Gloo made for TensorFlow."""
        for file, standard, count in self.files:
            pattern = rf"set\(CMAKE_CXX_STANDARD {standard}\)"
            replace_exactly(self, source, file, pattern, "set(CMAKE_CXX_STANDARD 20)", count)
        pattern = r'"-std=c\+\+11" "-std=c\+\+17"'
        replace_exactly(self, source, "CMakeLists.txt", pattern, '"-std=c++11" "-std=c++20"', 1)

    def verify(self, source: Source) -> None:
        """No lower standard is set anywhere."""
        for file in sorted({file for file, _, _ in self.files}):
            forbid_pattern(self, source, file, r"CMAKE_CXX_STANDARD 1\d|-std=c\+\+1[47]")


class TensorflowXla(Adjustment):
    """Leave out the optional XLA operations: their headers need one that is out of reach."""

    name = "tensorflow-xla"
    why = "TensorFlow's flags do not reach highwayhash/arch_specific.h, which only these include"
    file = "horovod/tensorflow/CMakeLists.txt"

    def needed(self, source: Source) -> bool:
        """Needed for TensorFlow wheels without the header."""
        include = source.tools.tensorflow_include
        if include is None:
            return False
        # It may lie deeper (external/highwayhash): only what TensorFlow's own flags reach counts.
        return not (include / "highwayhash" / "arch_specific.h").exists()

    def apply(self, source: Source) -> None:
        """Take the one source file out of the list."""
        replace_exactly(
            self, source, self.file, r"^list\(APPEND TF_SOURCES .*xla_mpi_ops\.cc\"\)\n", "", 1
        )

    def verify(self, source: Source) -> None:
        """The file is no longer listed; the ordinary operations still are."""
        forbid_pattern(self, source, self.file, r"xla_mpi_ops")
        require_text(self, source, self.file, "horovod/tensorflow/mpi_ops.cc")


class NoCuda(Adjustment):
    """Hide a CUDA toolkit: CMake finds one in /usr/local even with no nvcc on the PATH."""

    name = "no-cuda"
    why = "--gpu none: CUDA must not be used even where a toolkit is there"

    def needed(self, source: Source) -> bool:
        """Needed for every build without GPUs, so that its key tells the truth."""
        return source.options.gpu == "none"

    def apply(self, source: Source) -> None:
        """Skip the search for a compiler and toolkit, and what torch's build would ask for."""
        replace_exactly(
            self,
            source,
            "CMakeLists.txt",
            r"^include\(CheckLanguage\)\ncheck_language\(CUDA\)\nif\(NOT CMAKE_CUDA_COMPILER\)$",
            'include(CheckLanguage)\nset(CMAKE_CUDA_COMPILER "")  # --gpu none\nif(FALSE)',
            1,
        )
        replace_exactly(
            self,
            source,
            "cmake/Modules/FindPytorch.cmake",
            r'^string\(TOUPPER "\$\{Pytorch_CUDA\}" Pytorch_CUDA\)$',
            'set(Pytorch_CUDA "FALSE")  # --gpu none',
            1,
        )

    def verify(self, source: Source) -> None:
        """Nothing looks for CUDA any more."""
        forbid_pattern(self, source, "CMakeLists.txt", r"^check_language\(CUDA\)")
        require_text(self, source, "cmake/Modules/FindPytorch.cmake", 'set(Pytorch_CUDA "FALSE")')
        leaks = [
            name for name in ("CUDACXX", "CUDA_HOME", "HOROVOD_CUDA_HOME") if name in source.env
        ]
        if leaks:
            raise BuildError(f"adjustment '{self.name}': {', '.join(leaks)} is still set")


class RunPath(Adjustment):
    """Write search paths into the libraries that hold wherever the wheel is installed."""

    name = "run-path"
    why = "CMake writes the building environment's absolute paths; the wheel is used in others"

    def needed(self, source: Source) -> bool:
        """Needed always: the wheel is cached."""
        return True

    def apply(self, source: Source) -> None:
        """Set the path right after the project begins."""
        paths = ";".join(run_paths(source.tools))
        lines = f'set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\nset(CMAKE_INSTALL_RPATH "{paths}")'
        new = f"project(horovod CXX)\n{lines}"
        replace_exactly(self, source, "CMakeLists.txt", r"^project\(horovod CXX\)$", new, 1)

    def verify(self, source: Source) -> None:
        """The path is set."""
        require_text(self, source, "CMakeLists.txt", "CMAKE_BUILD_WITH_INSTALL_RPATH ON")


class NoDebugInfo(Adjustment):
    """Compile without debug information: a third of the time and nine tenths of the size."""

    name = "no-debug-info"
    why = "debug information of the frameworks' headers makes wheels of hundreds of MB"
    old = r'^string\(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO '

    def needed(self, source: Source) -> bool:
        """Needed always."""
        return True

    def apply(self, source: Source) -> None:
        """Drop ``-g`` where Horovod itself raises ``-O2``."""
        new = 'string(REPLACE "-O2 -g" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO '
        replace_exactly(self, source, "CMakeLists.txt", self.old, new, 1)

    def verify(self, source: Source) -> None:
        """The flag is dropped."""
        require_text(self, source, "CMakeLists.txt", '"-O2 -g" "-O3" CMAKE_CXX_FLAGS')


class PythonHeaders(Adjustment):
    """Ask sysconfig for the Python headers: distutils left Python with 3.12."""

    name = "python-headers"
    why = "Python 3.12 has no distutils"
    file = "horovod/torch/CMakeLists.txt"

    def needed(self, source: Source) -> bool:
        """Needed for torch on Python 3.12 and later; right on any."""
        version = tuple(int(part) for part in source.tools.python_version.split(".")[:2])
        return "torch" in source.options.frameworks and version >= (3, 12)

    def apply(self, source: Source) -> None:
        """Replace the one question."""
        pattern = r"from distutils\.sysconfig import get_python_inc; print\(get_python_inc\(\)\)"
        new = "import sysconfig; print(sysconfig.get_paths()['include'])"
        replace_exactly(self, source, self.file, pattern, new, 1)

    def verify(self, source: Source) -> None:
        """No distutils is left."""
        forbid_pattern(self, source, self.file, "distutils")


class MissingHeaders(Adjustment):
    """Include the standard headers that GCC 13 and later no longer bring in by themselves."""

    name = "missing-headers"
    why = "GCC 13's standard headers include fewer of each other"
    headers = ("cstdint", "string", "functional", "memory", "unordered_map")

    def needed(self, source: Source) -> bool:
        """Needed since GCC 13, and for every other compiler, whose version says nothing of it."""
        tools = source.tools
        return tools.cxx_major >= 13 or "g++" not in tools.cxx_version

    def apply(self, source: Source) -> None:
        """Add them on the command line, before all else."""
        flags = " ".join(f"-include {header}" for header in self.headers)
        source.env["CXXFLAGS"] = f"{flags} {source.env.get('CXXFLAGS', '')}".strip()

    def verify(self, source: Source) -> None:
        """Every header is there."""
        flags = source.env.get("CXXFLAGS", "")
        lacking = [header for header in self.headers if f"-include {header}" not in flags]
        if lacking:
            raise BuildError(f"adjustment '{self.name}' did not add {', '.join(lacking)}")


class CmakePolicy(Adjustment):
    """Let CMake 4 configure Gloo, which asks for a CMake of 2013."""

    name = "cmake-policy"
    why = "CMake 4 refuses projects that ask for less than 3.5"
    file = "third_party/gloo/CMakeLists.txt"

    def needed(self, source: Source) -> bool:
        """Needed since CMake 4."""
        return source.tools.cmake_major >= 4

    def apply(self, source: Source) -> None:
        """Set CMake's own variable for it."""
        if not re.search(r"cmake_minimum_required\(VERSION [23]\.", source.read(self.file)):
            raise self.no_match(self.file, "cmake_minimum_required below 3.5")
        source.env["CMAKE_POLICY_VERSION_MINIMUM"] = "3.5"

    def verify(self, source: Source) -> None:
        """The variable is set."""
        if source.env.get("CMAKE_POLICY_VERSION_MINIMUM") != "3.5":
            raise BuildError(f"adjustment '{self.name}' did not take effect")


class BindingOptions(Adjustment):
    """Write mpirun's binding options with two dashes: Open MPI 5 knows no others."""

    name = "binding-options"
    why = "Open MPI 5 has no options with one dash and a long name; 4 has both"
    file = "horovod/runner/mpi_run.py"

    def needed(self, source: Source) -> bool:
        """Needed for Open MPI 5, and harmless for 4."""
        return source.tools.mpi is not None and source.tools.mpi.flavour == "openmpi"

    def apply(self, source: Source) -> None:
        """Change the two options that ``horovodrun --mpi`` always gives."""
        pattern = r"\['-bind-to none', '-map-by slot'\]"
        new = "['--bind-to none', '--map-by slot']"
        replace_exactly(self, source, self.file, pattern, new, 1)

    def verify(self, source: Source) -> None:
        """The options have two dashes."""
        require_text(self, source, self.file, "'--bind-to none', '--map-by slot'")
        forbid_pattern(self, source, self.file, r"'-bind-to none'")


class GlooRanks(Adjustment):
    """Let the stall inspector see the ranks over Gloo too: it counts a list that stays empty."""

    name = "gloo-ranks"
    why = "Gloo's controller writes its ranks into reserved memory: no stall is ever told of"
    file = "horovod/common/gloo/gloo_controller.cc"

    def needed(self, source: Source) -> bool:
        """Needed always: Gloo is in every build."""
        return True

    def apply(self, source: Source) -> None:
        """Make the list as long as what is written into it."""
        pattern = r"^  global_ranks_\.reserve\(size_\);$"
        replace_exactly(self, source, self.file, pattern, "  global_ranks_.resize(size_);", 1)

    def verify(self, source: Source) -> None:
        """The list has its length."""
        require_text(self, source, self.file, "global_ranks_.resize(size_)")
        forbid_pattern(self, source, self.file, r"global_ranks_\.reserve")


ADJUSTMENTS: tuple[Adjustment, ...] = (
    CxxStandard(),
    TensorflowXla(),
    NoCuda(),
    RunPath(),
    NoDebugInfo(),
    PythonHeaders(),
    MissingHeaders(),
    CmakePolicy(),
    BindingOptions(),
    GlooRanks(),
)
