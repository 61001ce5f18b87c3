"""Files spoiled as bad disks and full ones do it."""

from __future__ import annotations

import random
from pathlib import Path


def flip(path: Path, dice: random.Random) -> None:
    """Turn one bit of a file round, anywhere."""
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def cut(path: Path, dice: random.Random) -> None:
    """Cut a file off, anywhere behind its first byte."""
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(1, len(data))])
