"""The results folder of one sweep: whole files or none, and nothing overwritten silently."""

from __future__ import annotations

from harness.store.files import write_atomic
from harness.store.folder import Store
from harness.store.quarantine import Broken
from harness.store.reading import BrokenError, MissingError

__all__ = ["Broken", "BrokenError", "MissingError", "Store", "write_atomic"]
