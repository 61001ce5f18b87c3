"""Horovod's sdist: fetched from the package index once, or given, and unpacked."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from harness.errors import BuildError
from harness.horovod_build.options import HOROVOD_VERSION
from harness.horovod_build.process import pip_reason
from harness.horovod_build.toolchain import file_sha256

# PyPI's horovod-0.28.1.tar.gz.
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


def sdist_checksum(sdist: Path | None) -> str:
    """Return the checksum of the sdist that a build uses, without fetching it."""
    return SDIST_SHA256 if sdist is None else file_sha256(sdist)


def fetch_sdist(store: Path) -> Path:
    """Return the sdist in ``store``, downloaded there by pip where it is missing."""
    place = store / f"horovod-{HOROVOD_VERSION}.tar.gz"
    if place.is_file() and file_sha256(place) == SDIST_SHA256:
        return place
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=store) as folder:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        argv += ["--no-build-isolation", "--no-binary", ":all:", "--dest", folder]
        argv += [f"horovod=={HOROVOD_VERSION}"]
        done = subprocess.run(
            argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        found = Path(folder) / place.name
        if done.returncode != 0 or not found.is_file():
            raise BuildError(
                f"pip could not download horovod=={HOROVOD_VERSION}'s sdist "
                f"({pip_reason(done.stderr)}): give the file with --sdist"
            )
        if file_sha256(found) != SDIST_SHA256:
            raise BuildError(
                f"the package index's {place.name} is not PyPI's (its SHA-256 differs): "
                "give the file you trust with --sdist"
            )
        os.replace(found, place)
    return place


def unpack_sdist(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist below ``folder`` and return its one top folder."""
    try:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BuildError(f"{sdist} cannot be unpacked: {error}") from error
    tops = [path for path in folder.iterdir() if path.is_dir()]
    if len(tops) != 1 or not (tops[0] / "setup.py").is_file():
        raise BuildError(f"{sdist} is no sdist: it has no single top folder with a setup.py")
    return tops[0]
