"""The commit that measured: where the harness runs from its repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import harness
from harness.provenance.notes import UnknownError

_TIMEOUT_S = 60


def collect(folder: Path | None = None) -> dict[str, Any]:
    """Return commit and dirty flag of a package's ``folder`` (the harness's own); else nothing.

    Two subprocesses: rank 0 alone asks. Raises UnknownError where there is a repository that git
    will not read.
    """
    package = folder or Path(harness.__file__).parent
    if not any((parent / ".git").exists() for parent in package.resolve().parents):
        return {}
    # Installed into a folder below some other repository, that one's commit would be a lie.
    tracked = _git(package, "ls-files", "__init__.py")
    if not tracked:
        return {}
    status = _git(package, "status", "--porcelain", "-uno")
    return {"commit": _git(package, "rev-parse", "HEAD"), "dirty": bool(status)}


def _git(folder: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(folder), *arguments]
    # A look must not take the repository's lock from somebody who is committing.
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, env=env, check=False
        )
    except FileNotFoundError:
        raise UnknownError("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise UnknownError(f"git did not answer within {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise UnknownError(said[0] if said else f"git ended with {done.returncode}")
    return done.stdout.strip()
