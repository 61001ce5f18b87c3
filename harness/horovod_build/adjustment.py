"""What an adjustment of an unpacked sdist is, and how one changes a file and verifies it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import BuildError
from harness.horovod_build.options import BuildOptions
from harness.horovod_build.toolchain import Toolchain


@dataclass
class Source:
    """An unpacked sdist and the environment it is built in."""

    folder: Path
    options: BuildOptions
    tools: Toolchain
    env: dict[str, str] = field(default_factory=dict)

    def read(self, name: str) -> str:
        """Return the text of a file of the sdist; "" where it is missing."""
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def write(self, name: str, text: str) -> None:
        """Replace a file of the sdist."""
        (self.folder / name).write_text(text, encoding="utf-8")


class Adjustment(ABC):
    """One change, with a name, a condition, an application and a verification."""

    name: str
    why: str

    @abstractmethod
    def needed(self, source: Source) -> bool:
        """Tell whether this build needs it."""

    @abstractmethod
    def apply(self, source: Source) -> None:
        """Change the source or its environment; ``BuildError`` if the target is not as expected."""

    @abstractmethod
    def verify(self, source: Source) -> None:
        """Raise ``BuildError`` unless the change is there."""

    def no_match(self, target: str, expected: str) -> BuildError:
        """Return the error for a target that has changed."""
        return BuildError(
            f"adjustment '{self.name}' no longer matches {target} (expected {expected}): this "
            "sdist is not the Horovod 0.28.1 that hvdscale knows; take the file from PyPI"
        )


def replace_exactly(
    adjustment: Adjustment, source: Source, file: str, pattern: str, new: str, count: int
) -> None:
    """Replace the ``count`` matches of a regular expression in ``file``; no more, no fewer."""
    text = source.read(file)
    found = len(re.findall(pattern, text, re.MULTILINE))
    if found != count:
        raise adjustment.no_match(file, f"{count} of /{pattern}/, found {found}")
    source.write(file, re.sub(pattern, lambda _: new, text, flags=re.MULTILINE))


def require_text(adjustment: Adjustment, source: Source, file: str, text: str) -> None:
    """Verify that ``file`` holds ``text``."""
    if text not in source.read(file):
        raise BuildError(f"adjustment '{adjustment.name}' did not take effect in {file}")


def forbid_pattern(adjustment: Adjustment, source: Source, file: str, pattern: str) -> None:
    """Verify that nothing in ``file`` matches ``pattern``."""
    match = re.search(pattern, source.read(file), re.MULTILINE)
    if match:
        raise BuildError(
            f"adjustment '{adjustment.name}' did not take effect in {file}: "
            f"'{match.group(0)}' is still there"
        )
