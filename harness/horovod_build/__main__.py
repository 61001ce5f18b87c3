"""``python -m harness.horovod_build``: the builder before the command line is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import HarnessError
from harness.horovod_build.command import command_build
from harness.horovod_build.options import ARCHITECTURES, GPU_CHOICES, MPI_CHOICES


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = argparse.ArgumentParser(prog="hvdscale build-horovod", description=__doc__)
    result.add_argument("--frameworks", default="torch,tensorflow", help="comma-separated")
    result.add_argument("--gpu", default="none", choices=GPU_CHOICES)
    result.add_argument("--mpi", default="auto", choices=MPI_CHOICES)
    result.add_argument("--sdist", type=Path, help="Horovod's sdist instead of PyPI's")
    result.add_argument("--wheel-dir", type=Path, help="cache (default: HVDSCALE_WHEEL_DIR)")
    result.add_argument("--cuda-arch", default="", help="e.g. 80,90; default: the GPUs here")
    result.add_argument("--arch", default="x86-64-v3", choices=ARCHITECTURES)
    result.add_argument("--jobs", type=int, help="compiler processes")
    result.add_argument("--no-install", dest="install", action="store_false")
    return result


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the builder with command-line arguments; return its exit status, or raise."""
    return command_build(**vars(parser().parse_args(arguments)))


def main() -> int:
    """Run the builder as a program: an error is one line, as the command line has it."""
    try:
        return run()
    except HarnessError as error:
        print(f"hvdscale: error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
