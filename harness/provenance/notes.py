"""A collector that fails leaves a line, and never takes a run with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class UnknownError(Exception):
    """A collector cannot tell, and the reader of a record should know why."""


class Notes:
    """Runs collectors and keeps one line a failed one: ``"gpu: nvidia-ml-py is not installed"``."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, source: str, text: str) -> None:
        """Keep a line of ``source``."""
        self.lines.append(f"{source}: {' '.join(text.split())}")

    def take(self, source: str, collector: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return what ``collector`` finds; nothing, and a note, where it fails."""
        try:
            return dict(collector())
        except UnknownError as error:
            self.add(source, str(error))
        except Exception as error:  # noqa: BLE001 - a measurement is worth more than a fact of it
            self.add(source, f"{type(error).__name__}: {error}")
        return {}
