"""Texts of a user's own: what a file is by its checksum, and its words.

A word is what white space separates; the end of a line is the word ``<eos>``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from workloads.api import WorkloadError

UNKNOWN = "<unk>"
END_OF_LINE = "<eos>"
BLOCK_BYTES = 1 << 22
_MAX_WORD_BYTES = 1 << 26


@dataclass(frozen=True)
class Fingerprint:
    """Tells, without reading it, whether a file is still the one that was read."""

    path: Path
    size: int
    modified_ns: int


def fingerprint(path: Path) -> Fingerprint:
    """Return the fingerprint of a text; WorkloadError where there is none, or nothing in it."""
    try:
        facts = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    if not path.is_file():
        raise WorkloadError(
            f"workload lstm: text {path} is no regular file; set path to a text file"
        )
    if facts.st_size == 0:
        raise WorkloadError(f"workload lstm: text {path} is empty; set path to a longer text")
    return Fingerprint(path.absolute(), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=64)
def checksum(text: Fingerprint) -> str:
    """Return the SHA-256 of a text, in hexadecimal; WorkloadError where it cannot be read."""
    try:
        with text.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(text.path, error) from error


@lru_cache(maxsize=64)
def count_words(text: Fingerprint) -> int:
    """Return the number of words of a text, by reading it; WorkloadError as ``words`` has it."""
    return sum(map(len, words(text.path)))


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a text, a few megabytes at a time; WorkloadError if it is unreadable."""
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block
    except OSError as error:
        raise unreadable(path, error) from error


def words(path: Path) -> Iterator[list[str]]:
    """Yield the words of a text in order, some at a time; WorkloadError where it is not UTF-8."""
    rest, offset = b"", 0
    for block in blocks(path):
        block = rest + block
        # In UTF-8, no byte of a longer character looks like a space or a line's end.
        cut = max(block.rfind(b" "), block.rfind(b"\n")) + 1
        yield _split(path, block[:cut], offset)
        rest, offset = block[cut:], offset + cut
        if len(rest) > _MAX_WORD_BYTES:
            raise WorkloadError(
                f"workload lstm: text {path} has no space or line end in the {len(rest)} bytes "
                f"from {offset} on; set tokens to byte, or path to a text of words"
            )
    yield _split(path, rest, offset)


def _split(path: Path, block: bytes, offset: int) -> list[str]:
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(
            f"workload lstm: text {path} is not UTF-8 (byte 0x{block[error.start]:02x} at "
            f"{offset + error.start}); convert it, or set tokens to byte"
        ) from None
    return text.replace("\n", f" {END_OF_LINE} ").split()


def unreadable(path: Path, error: OSError) -> WorkloadError:
    """Return what a file system's refusal to show a text means for the user."""
    why = error.strerror or str(error)
    return WorkloadError(
        f"workload lstm: text {path} cannot be read: {why}; set path to a text file"
    )
