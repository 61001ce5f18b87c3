"""Wheels as files: adding to one, and what an installed one says of itself."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from harness.detect import BUILD_MARKER, package_folder, read_build_marker
from harness.errors import BuildError


def add_to_wheel(wheel: Path, files: Mapping[str, str], folder: Path) -> Path:
    """Copy a wheel into ``folder`` with text files added, entered in its RECORD."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        records = [name for name in old.namelist() if name.endswith(".dist-info/RECORD")]
        if len(records) != 1:
            raise BuildError(f"{wheel.name} is no wheel: it has {len(records)} RECORD files")
        for item in old.infolist():
            if item.filename != records[0]:
                new.writestr(item, old.read(item))
        lines = old.read(records[0]).decode().splitlines()
        for name, text in files.items():
            new.writestr(name, text)
            lines.insert(0, _record_line(name, text.encode()))
        new.writestr(records[0], "\n".join(lines) + "\n")
    return target


def _record_line(name: str, data: bytes) -> str:
    # The form that "Recording installed projects" (packaging.python.org) prescribes.
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def installed_digest() -> str:
    """Return the key of the installed Horovod, "" where it is another's build or not installed."""
    return str(read_build_marker().get("digest", ""))


def installed_proven() -> bool:
    """Tell whether the installed Horovod has passed its self-proof here."""
    return bool(read_build_marker().get("proven", False))


def mark_proven() -> None:
    """Note in the installed Horovod that its self-proof passed."""
    folder = package_folder("horovod")
    if folder is None:
        raise BuildError("Horovod is not installed where this Python looks for it")
    marker = {**read_build_marker(), "proven": True}
    temporary = folder / f".{BUILD_MARKER}.new"
    temporary.write_text(json.dumps(marker, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, folder / BUILD_MARKER)
