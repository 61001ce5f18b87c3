"""The wheel cache: one folder a key, written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BuildError
from harness.horovod_build.key import BuildKey
from harness.horovod_build.toolchain import file_sha256


@dataclass(frozen=True)
class WheelCache:
    """Wheels below ``folder``: ``<digest>/{horovod-….whl, key.json, sha256}``."""

    folder: Path

    def prepare(self) -> None:
        """Make the folder; ``BuildError`` if that cannot be, or nothing can be written there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise BuildError(
                f"the wheel cache {self.folder} cannot be written ({error.strerror}): "
                "set HVDSCALE_WHEEL_DIR or --wheel-dir to a folder that can"
            ) from error

    def find(self, key: BuildKey) -> Path | None:
        """Return the wheel of a key; None if there is none, or if it is not what was stored."""
        entry = self.folder / key.digest
        wheels = sorted(entry.glob("*.whl"))
        if len(wheels) != 1:
            return None
        try:
            expected = (entry / "sha256").read_text(encoding="ascii").strip()
        except OSError:
            return None
        return wheels[0] if file_sha256(wheels[0]) == expected else None

    def store(self, key: BuildKey, wheel: Path) -> Path:
        """Put a wheel under its key by one rename; return its place in the cache."""
        entry = self.folder / key.digest
        incoming = self.folder / f".incoming-{secrets.token_hex(8)}"
        incoming.mkdir()
        try:
            shutil.copyfile(wheel, incoming / wheel.name)
            (incoming / "key.json").write_text(key.to_json(), encoding="utf-8")
            digest = file_sha256(incoming / wheel.name)
            (incoming / "sha256").write_text(digest + "\n", encoding="ascii")
            if entry.exists():  # what `find` did not take: damaged
                shutil.rmtree(entry)
            os.rename(incoming, entry)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return entry / wheel.name

    @contextmanager
    def locked(self, key: BuildKey, report: Callable[[str], None]) -> Iterator[None]:
        """Hold the key: a second build of it waits, and then finds the first one's wheel."""
        with (self.folder / f".lock-{key.digest}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("another process is building this wheel: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
