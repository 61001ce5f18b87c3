"""``build-horovod`` as a function of plain values, for any command line to call."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.errors import HarnessError
from harness.horovod_build.main import build_horovod
from harness.horovod_build.options import BuildOptions, default_wheel_dir, parse_frameworks


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
    """Build, install and prove Horovod; return the exit status (0, 1, 2 or 130).

    Progress goes to stderr; stdout gets the wheel's path, where there is one.
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
    except HarnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: nothing was left behind", file=sys.stderr)
        return 130
    if built.wheel is not None:
        print(built.wheel)
    return 0
