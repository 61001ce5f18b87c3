"""``build-horovod`` as a function of plain values, for any command line to call."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.horovod_build.main import build_horovod
from harness.horovod_build.options import BuildOptions, parse_frameworks
from harness.paths import default_wheel_dir


def command_build(
    frameworks: str = "torch,tensorflow",
    gpu: str = "none",
    mpi: str = "auto",
    sdist: Path | None = None,
    wheel_dir: Path | None = None,
    cuda_arch: str = "",
    arch: str = "x86-64-v3",
    jobs: int | None = None,
    install: bool = True,
) -> int:
    """Build, install and prove Horovod; return 0, or 130 where it was interrupted.

    What fails is a HarnessError. Progress goes to stderr; stdout gets the wheel's path, where there
    is one.
    """

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        options = BuildOptions(
            frameworks=parse_frameworks(frameworks),
            gpu=gpu,
            mpi=mpi,
            sdist=sdist,
            wheel_dir=wheel_dir or default_wheel_dir(),
            cuda_architectures=tuple(part for part in cuda_arch.split(",") if part),
            architecture=arch,
            jobs=jobs,
            install=install,
        )
        built = build_horovod(options, report)
    except KeyboardInterrupt:
        print("interrupted: nothing was left behind", file=sys.stderr)
        return 130
    if built.wheel is not None:
        print(built.wheel)
    return 0
