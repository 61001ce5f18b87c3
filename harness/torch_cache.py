"""Where torch keeps compiled code: a folder that nobody else can have made, or write to.

By itself torch takes ``/tmp/torchinductor_<user>`` and runs what it finds there, and in /tmp
anybody may make a folder of that name first.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def claim(environ: MutableMapping[str, str]) -> None:
    """Name a folder of this user's alone to torch, unless the user has named one."""
    if environ.get(VARIABLE):
        return
    shared = Path(tempfile.gettempdir()) / f"hvdscale-torch-{os.geteuid()}"
    if not _is_ours(shared):
        shared = Path(tempfile.mkdtemp(prefix="hvdscale-torch-"))
    environ[VARIABLE] = str(shared)


def _is_ours(folder: Path) -> bool:
    """Make a folder; say whether it is one, is this user's, and nobody else may write to it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError:  # a file, or a link to nowhere
        return False
    mine = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
    return mine and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
