"""The events of a Chrome trace that is one JSON array, one after the other, in bounded memory.

Horovod writes all of its events into one line, however long, and keeps the array closed by going
back over its ``]``; older releases and killed ranks leave it open. So a file may end anywhere. Not
more of it is held than one chunk and one event.
"""

from __future__ import annotations

import codecs
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from harness.errors import HarnessError

_CHUNK_BYTES = 1 << 18
#: Horovod's have some hundred; a tensor's name and shape are all that grows.
MAX_EVENT_CHARS = 1 << 16

_SPACE = re.compile(r"[ \t\n\r]*")
#: What matters to find an object's end: whole strings, brackets, and a string that does not end.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
_parse = json.JSONDecoder().raw_decode


class TimelineError(HarnessError):
    """A file cannot be read as a timeline of Horovod; says which event, and what is wrong."""


class Events:
    """The events of ``path``, in order; ``complete`` once they were all read to the array's end.

    Raises TimelineError for what is no regular file, and where the text is no array of objects. A
    file that ends early ends the events: the one that is cut off is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0  # of the events so far
        self.complete = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise self.error("is no regular file")
            with self.path.open("rb") as file:
                yield from self._array(_Text(file))
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}") from None

    def error(self, what: str) -> TimelineError:
        """Return the error that ``what`` is wrong with the file."""
        return TimelineError(f"{self.path}: {what}")

    def _array(self, text: _Text) -> Iterator[dict[str, Any]]:
        first = text.next_char()
        if not first:
            raise self.error("is empty")
        if first != "[":
            raise self.error(f"begins with {first!r}, where Horovod has the '[' of an array")
        text.at += 1
        while (char := text.next_char()) and char != "]":
            event = self._event(text)
            if event is None:
                return
            self.count += 1
            yield event
            char = text.next_char()
            if char == ",":
                text.at += 1
            elif char and char != "]":
                raise self._malformed(f"{char!r} follows where a comma should", self.count)
        if char == "]":
            text.at += 1
            if text.next_char():
                raise self.error("has more after the end of its array of events")
            self.complete = True

    def _event(self, text: _Text) -> dict[str, Any] | None:
        """Return the object that begins at ``text.at``; None where the file ends inside it."""
        number = self.count + 1
        if text.text[text.at] != "{":
            raise self._malformed("is no JSON object", number)
        while True:
            try:
                event, end = _parse(text.text, text.at)
            except RecursionError:
                raise self._malformed("is nested too deeply", number) from None
            except json.JSONDecodeError as error:
                if _ends(text.text, text.at):
                    raise self._malformed(f"is no JSON ({error.msg})", number) from None
                end = len(text.text)
            except ValueError:  # an integer of thousands of digits
                raise self._malformed("has a number that is too long", number) from None
            else:
                if end - text.at <= MAX_EVENT_CHARS:
                    text.at = end
                    found: dict[str, Any] = event
                    return found
            if end - text.at > MAX_EVENT_CHARS:
                raise self._malformed(f"is longer than {MAX_EVENT_CHARS} characters", number)
            if not text.more():
                return None

    def _malformed(self, what: str, number: int) -> TimelineError:
        return self.error(f"event {number} {what}")


class _Text:
    """What is being looked at of a file, decoded, and where."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # A name may be cut in a character, and Horovod does not look at what is in one.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended = False
        self.text = ""
        self.at = 0

    def more(self) -> bool:
        """Add the next chunk and forget what lies before ``at``; False at the end."""
        if self._ended:
            return False
        data = self._file.read(_CHUNK_BYTES)
        self._ended = not data
        self.text = self.text[self.at :] + self._decoder.decode(data, final=self._ended)
        self.at = 0
        return True

    def next_char(self) -> str:
        """Go to the next character that is no space and return it; "" at the end."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None  # it may be empty
            self.at = space.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""


def _ends(text: str, at: int) -> bool:
    """Say whether the object that begins at ``at`` has its end in ``text``.

    If it has, and still does not parse, then it is malformed and not cut off.
    """
    depth = 0
    for token in _TOKEN.finditer(text, at, at + MAX_EVENT_CHARS):
        character = token.group()
        if character == '"':
            return False
        if character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return True
    return False
