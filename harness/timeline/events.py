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
#: How a literal or a number goes on where the parser stopped at its first characters.
_REST = ("true", "false", "null", "NaN", "Infinity", "-Infinity", ".", "e+", "e-", "E+", "E-")
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
            found = text.take_many() or self._event(text)
            if not found:
                return
            for event in found:
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

    def _event(self, text: _Text) -> list[dict[str, Any]]:
        """Return the object that begins at ``text.at``; nothing where the file ends inside it."""
        number = self.count + 1
        if text.text[text.at] != "{":
            raise self._malformed("is no JSON object", number)
        while True:
            try:
                event, end = _parse(text.text, text.at)
            except RecursionError:
                raise self._malformed("is nested too deeply", number) from None
            except json.JSONDecodeError as error:
                if not _may_go_on(error):
                    raise self._malformed(f"is no JSON ({error.msg})", number) from None
                end = len(text.text)
            except ValueError:  # an integer of thousands of digits
                raise self._malformed("has a number that is too long", number) from None
            else:
                if end - text.at <= MAX_EVENT_CHARS:
                    text.at = end
                    return [event]
            if end - text.at > MAX_EVENT_CHARS:
                raise self._malformed(f"is longer than {MAX_EVENT_CHARS} characters", number)
            if not text.more():
                return []

    def _malformed(self, what: str, number: int) -> TimelineError:
        return self.error(f"event {number} {what}")


class _Text:
    """What is being looked at of a file, decoded, and where."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # A name may be cut in a character, and Horovod does not look at what is in one.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended = False
        self._one_by_one = 0  # up to here events are taken one by one
        self.text = ""
        self.at = 0

    def more(self) -> bool:
        """Add the next chunk and forget what lies before ``at``; False at the end."""
        if self._ended:
            return False
        data = self._file.read(_CHUNK_BYTES)
        self._ended = not data
        self.text = self.text[self.at :] + self._decoder.decode(data, final=self._ended)
        self._one_by_one = max(0, self._one_by_one - self.at)
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

    def take_many(self) -> list[dict[str, Any]]:
        """Take events in one go, which is several times as fast; none where that does not work.

        What parses up to some comma is the events before it, since JSON reads in one way only.
        Where it does not, the same characters are not tried again: that would take for ever.
        """
        if self.at < self._one_by_one:
            return []
        last = self.text.rfind("},", self.at, self.at + MAX_EVENT_CHARS)
        if last < 0:
            return []
        try:
            found = json.loads(f"[{self.text[self.at : last + 1]}]")
        except (ValueError, RecursionError):
            found = []
        if not found or not all(isinstance(event, dict) for event in found):
            self._one_by_one = last + 1
            return []
        self.at = last + 1
        taken: list[dict[str, Any]] = found
        return taken


def _may_go_on(error: json.JSONDecodeError) -> bool:
    """Say whether more text may mend it: the parser ran into the end, and into nothing wrong."""
    if error.msg.startswith("Unterminated string"):
        return True
    rest = error.doc[error.pos :].rstrip(" \t\n\r")
    if error.msg.startswith("Invalid \\u"):
        return len(rest) < len("\\u0000")
    return any(word.startswith(rest) for word in _REST)  # also where nothing is left
