"""What tests have done in bounded processes: light to import, since each process imports it."""

from __future__ import annotations

import sys
from pathlib import Path


def impatient(*argv: str) -> int:
    """Run a command that waits for a pipe no longer than a fifth of a second."""
    from harness import bounded
    from harness.cli import main

    bounded.PIPE_S = 0.2
    return main(list(argv))


def few_looks(*argv: str) -> int:
    """Run a command for which ``exclude`` may look ten thousand times."""
    from harness.cli import main
    from harness.config import expand

    sys.modules[expand.__module__].MAX_LOOKS = 10_000  # type: ignore[attr-defined]
    return main(list(argv))


def verified(folder: str) -> int:
    """Look at a folder's records as a run does; print the broken ones, return how many."""
    from harness.store import Broken, Store

    broken: list[Broken] = []
    store = Store.open(Path(folder))
    store.verify(store.done_ids(), broken.append)
    print(*broken, sep="\n")
    return len(broken)
