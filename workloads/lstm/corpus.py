"""The tokens of a job, synthetic or from a text: how many there are, and the file they are in."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads.api import WorkloadError
from workloads.lstm import source, text
from workloads.lstm.store import TokenFile

_ENCODING = 1  # of how a text becomes tokens
_PART = 1 << 20  # tokens looked at together


def train_tokens(tokens: int) -> int:
    """Return how many of so many tokens are for training: all but the last tenth."""
    return tokens * 9 // 10


class Corpus(ABC):
    """Tokens of a vocabulary, in order."""

    @abstractmethod
    def size(self) -> int:
        """Return the number of tokens, without making them."""

    @abstractmethod
    def file(self) -> TokenFile:
        """Return the file that the tokens are in, or are to be."""

    def files(self) -> tuple[Path, ...]:
        """Return all files that ``ensure`` makes."""
        return (self.file().path,)

    @abstractmethod
    def ensure(self) -> None:
        """Make the file where there is no good one."""


def _token_file(folder: Path, kind: str, made_of: Mapping[str, Any], vocabulary: int) -> TokenFile:
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    return TokenFile(folder / f"lstm-{kind}-{digest}.tokens", made_of, vocabulary)


@dataclass(frozen=True)
class Synthetic(Corpus):
    """So many tokens of a Markov source."""

    source: source.MarkovSource
    length: int
    vocabulary: int
    folder: Path

    def size(self) -> int:
        """Return the number of tokens."""
        return self.length

    def file(self) -> TokenFile:
        """Return the file; its name says what is in it."""
        made_of = {
            "kind": "markov",
            "version": source.VERSION,
            "length": self.length,
            **asdict(self.source),
        }
        return _token_file(self.folder, "synthetic", made_of, self.vocabulary)

    def ensure(self) -> None:
        """Make the file where there is no good one."""
        self.file().ensure(lambda: self.source.text(self.length))


@dataclass(frozen=True)
class Text(Corpus):
    """A text's bytes, or its words: the most frequent of the training split, others ``<unk>``.

    What a text's path stood for when it was read (checksum, number of words) is kept beside the
    tokens, by the file's size and time of change, so that a rank need not read the text again.
    """

    path: Path
    by_word: bool
    vocabulary: int
    folder: Path

    def size(self) -> int:
        """Return the number of bytes or words; words are counted where that is not known yet."""
        found = text.fingerprint(self.path)
        if not self.by_word:
            return found.size
        known = self._known(found)
        return int(known["words"]) if known else text.count_words(found)

    def file(self) -> TokenFile:
        """Return the file, its name by the checksum of the text as it is now."""
        found = text.fingerprint(self.path)
        known = self._known(found)
        made_of = {
            "kind": "words" if self.by_word else "bytes",
            "version": _ENCODING,
            "sha256": known["sha256"] if known else text.checksum(found),
            **({"vocabulary": self.vocabulary} if self.by_word else {}),
        }
        return _token_file(self.folder, "text", made_of, self.vocabulary)

    def ensure(self) -> None:
        """Make the file, and the note of what the text is, where they are missing."""
        before = text.fingerprint(self.path)
        file = self.file()
        file.ensure(self._tokens)
        if text.fingerprint(self.path) != before:
            # What was read may be of neither the old text nor the new one.
            file.path.unlink(missing_ok=True)
            raise WorkloadError(
                f"workload lstm: text {self.path} was changed while it was read; try again"
            )
        if self._known(before) is None:
            words = {"words": len(file.open())} if self.by_word else {}
            self._remember(before, {"sha256": file.made_of["sha256"], **words})

    def files(self) -> tuple[Path, ...]:
        """Return the tokens, and the note without which a text would be read again."""
        return (self.file().path, self._note())

    def _tokens(self) -> Iterable[NDArray[Any]]:
        if self.by_word:
            return encode(text.words(self.path), self.vocabulary, self.folder)
        return (np.frombuffer(block, np.uint8) for block in text.blocks(self.path))

    def _note(self) -> Path:
        name = hashlib.sha256(os.fsencode(self.path.absolute())).hexdigest()[:16]
        return self.folder / f"lstm-text-{name}.{'words' if self.by_word else 'bytes'}.json"

    def _known(self, found: text.Fingerprint) -> dict[str, Any] | None:
        """Return what is known of a text, None where it was never read or has changed since."""
        try:
            note = json.loads(self._note().read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise WorkloadError(
                f"workload lstm: {self._note()} cannot be read: {error}; remove it"
            ) from error
        same = (note["size"], note["modified_ns"]) == (found.size, found.modified_ns)
        return note if same else None

    def _remember(self, found: text.Fingerprint, facts: Mapping[str, Any]) -> None:
        note = {
            "path": str(found.path),
            "size": found.size,
            "modified_ns": found.modified_ns,
            **facts,
        }
        temporary = self._note().with_suffix(f".{secrets.token_hex(8)}.tmp")
        try:
            temporary.write_text(json.dumps(note, indent=1))
            temporary.replace(self._note())
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise WorkloadError(
                f"workload lstm: {self._note()} cannot be written: {error.strerror or error}; make "
                "room, or choose another data folder"
            ) from error


def encode(
    words: Iterable[list[str]], vocabulary: int, folder: Path
) -> Iterator[NDArray[np.int32]]:
    """Yield words as numbers below ``vocabulary``: 0 is ``<unk>``, then by falling frequency.

    Frequencies are those of the training split, so that nothing of the test split is known; of
    words that are as frequent, the earlier comes first. Numbers by first appearance wait in an
    unnamed file in ``folder``: memory is taken for the distinct words alone.
    """
    appearance: defaultdict[str, int] = defaultdict(count().__next__)
    unknown = appearance[text.UNKNOWN]
    with tempfile.TemporaryFile(dir=folder) as file:
        total = 0
        for some in words:
            numbers = np.fromiter(map(appearance.__getitem__, some), np.int32, len(some))
            file.write(numbers.data)
            total += len(some)
        if not total:
            return
        file.flush()
        raw = np.memmap(file, np.int32, "r", 0, (total,))
        seen = np.zeros(len(appearance), np.int64)
        for start in range(0, train_tokens(total), _PART):
            part = raw[start : min(start + _PART, train_tokens(total))]
            seen += np.bincount(part, minlength=len(seen))
        seen[unknown] = 0
        kept = np.argsort(-seen, kind="stable")[: vocabulary - 1]
        kept = kept[seen[kept] > 0]
        number = np.zeros(len(seen), np.int32)
        number[kept] = np.arange(1, len(kept) + 1, dtype=np.int32)
        for start in range(0, total, _PART):
            yield number[raw[start : start + _PART]]
