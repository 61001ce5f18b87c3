"""Sizes as a user writes them: ``4K:1G``, ``4K:1G:4``, ``4K,64K,1M``, plain bytes."""

from __future__ import annotations

import re

from harness.errors import ConfigError

ELEMENT_BYTES = 4  # float32
MAX_BYTES = 1 << 40
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d{1,15})([KMG]?)", re.ASCII | re.IGNORECASE)
_FACTOR = re.compile(r"\d{1,9}", re.ASCII)
_FORMS = "write a range 4K:1G, with a factor 4K:1G:4, or a list 4K,64K,1M (K, M, G = 1024)"


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in bytes, ascending, each once.

    A range multiplies its lower end by the factor (2 where none is given) up to its upper end.
    Raises ConfigError, one line, where ``text`` is something else, or a size no float32 count.
    """
    found = [size for part in text.split(",") for size in _range(part.strip())]
    return tuple(sorted(set(found)))


def size_text(count_bytes: int) -> str:
    """Return a size the shortest way that ``parse_sizes`` reads back: ``64K``, ``1G``, ``1000``."""
    for unit in ("G", "M", "K"):
        if count_bytes and count_bytes % _UNITS[unit] == 0:
            return f"{count_bytes // _UNITS[unit]}{unit}"
    return str(count_bytes)


def _range(part: str) -> list[int]:
    ends = part.split(":")
    if len(ends) > 3:
        raise _fault(part)
    low, high = _size(ends[0], part), _size(ends[min(1, len(ends) - 1)], part)
    if low > high:
        raise ConfigError(
            f"--sizes: '{_short(part)}' starts above its end; write the smaller first"
        )
    factor = _factor(ends[2], part) if len(ends) == 3 else 2
    sizes = []
    while low <= high:
        sizes.append(low)
        low *= factor
    return sizes


def _size(text: str, part: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise _fault(part)
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size % ELEMENT_BYTES or not ELEMENT_BYTES <= size <= MAX_BYTES:
        raise ConfigError(
            f"--sizes: {text} is no size of a float32 buffer: a multiple of {ELEMENT_BYTES} bytes, "
            f"at least {ELEMENT_BYTES} and at most 1024G"
        )
    return size


def _factor(text: str, part: str) -> int:
    if not _FACTOR.fullmatch(text) or int(text) < 2:
        raise ConfigError(f"--sizes: the factor of '{_short(part)}' is not a whole number above 1")
    return int(text)


def _fault(part: str) -> ConfigError:
    return ConfigError(f"--sizes: '{_short(part)}' is no size or range of sizes; {_FORMS}")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
