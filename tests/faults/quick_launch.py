"""A launcher and its rank, started as ``quick_launch.py RECORD RAW TARGET SLEEP_S``.

They start in a few milliseconds: what the rank measures is there already, and of hvdscale it needs
nothing but the file that writes files. RECORD, "fails" for a rank that does, is committed as
TARGET, after the raw steps RAW beside it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def rank(record: str, raw: str, target: str, sleep_s: str) -> int:
    time.sleep(float(sleep_s))
    if record == "fails":
        sys.stderr.write("ValueError: always\n")
        return 1
    sys.path.insert(0, str(ROOT))
    spec = importlib.util.spec_from_file_location("files", ROOT / "harness" / "store" / "files.py")
    assert spec is not None
    assert spec.loader is not None
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    path = Path(target)
    files.write_atomic(path.with_name(Path(raw).name), Path(raw).read_bytes())
    time.sleep(float(sleep_s) / 4)
    return 0 if files.write_new(path, Path(record).read_bytes(), path.with_name(".lock")) else 2


def main() -> int:
    """Start the rank in a session of its own, as launchers' daemons do, and wait for it."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os._exit(rank(*sys.argv[1:]))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
