"""What can be asked of a build, checked before anything is touched."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import ConfigError, did_you_mean
from harness.paths import default_wheel_dir

HOROVOD_VERSION = "0.28.1"
FRAMEWORKS = ("torch", "tensorflow")
GPU_CHOICES = ("none", "nccl", "staged", "mpi-cuda")
MPI_CHOICES = ("auto", "system", "wheel", "none")
ARCHITECTURES = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "native")


@dataclass(frozen=True)
class BuildOptions:
    """One build of Horovod; wrong values raise ``ConfigError``.

    ``gpu``: "none" (an nvcc that is there is hidden), "nccl", "staged" (CUDA tensors go through the
    host, over MPI or Gloo), "mpi-cuda" (device pointers to a CUDA-aware MPI).
    ``architecture`` goes to the compiler as ``-march``; "x86-64-v3" (AVX2, FMA, F16C) is every
    cluster CPU since 2013, and what Horovod's own probing of the build host would have found there.
    """

    frameworks: tuple[str, ...] = FRAMEWORKS
    gpu: str = "none"
    mpi: str = "auto"
    sdist: Path | None = None
    wheel_dir: Path = field(default_factory=default_wheel_dir)
    cuda_architectures: tuple[str, ...] = ()  # "90" for compute capability 9.0; () = those here
    architecture: str = "x86-64-v3"
    jobs: int | None = None  # compiler processes; None = what cores and memory allow
    install: bool = True
    prove: bool = True

    def __post_init__(self) -> None:
        """Check every value."""
        for framework in self.frameworks:
            _one_of("framework", framework, FRAMEWORKS)
        if not self.frameworks:
            raise ConfigError(f"no framework to build for; use some of {', '.join(FRAMEWORKS)}")
        _one_of("--gpu", self.gpu, GPU_CHOICES)
        _one_of("--mpi", self.mpi, MPI_CHOICES)
        _one_of("--arch", self.architecture, ARCHITECTURES)
        for arch in self.cuda_architectures:
            if not re.fullmatch(r"\d{2,3}", arch):
                raise ConfigError(f"--cuda-arch {arch!r} is not a number such as 80 or 90")
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"--jobs {self.jobs}: at least one compiler process is needed")
        if self.sdist is not None and not self.sdist.is_file():
            raise ConfigError(f"--sdist {self.sdist}: there is no such file")
        if self.gpu == "mpi-cuda" and self.mpi == "none":
            raise ConfigError("--gpu mpi-cuda needs an MPI, but --mpi none was given")


def _one_of(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        hint = did_you_mean(value, choices)
        raise ConfigError(f"{what} {value!r} is not one of {', '.join(choices)}{hint}")


def parse_frameworks(text: str) -> tuple[str, ...]:
    """Return the frameworks of "torch,tensorflow" in canonical order, without duplicates."""
    asked = {word.strip() for word in text.split(",") if word.strip()}
    for word in sorted(asked):
        _one_of("--frameworks", word, FRAMEWORKS)
    return tuple(name for name in FRAMEWORKS if name in asked)
