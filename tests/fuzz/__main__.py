"""``python -m tests.fuzz TARGET [-max_total_time=60] …``: fuzz a reader with atheris, by coverage.

What follows the target is libFuzzer's; a folder of examples is a corpus.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Instrument the readers, and fuzz the target that is named."""
    import atheris

    with atheris.instrument_imports(include=["harness", "yaml", "hostlist"]):
        from tests.fuzz.targets import TARGETS, check
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m tests.fuzz {{{','.join(TARGETS)}}} [options of libFuzzer]")
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: check(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
