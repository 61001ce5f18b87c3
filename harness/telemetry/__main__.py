"""``python -m harness.telemetry``: the sampler a rank starts, or ``--self-test`` for a person.

Everything heavy is imported where it is used: this starts beside a rank.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.telemetry.nvml import Device


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as ``arguments`` say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m harness.telemetry", description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="say what each device tells")
    parser.add_argument("--parent", type=int, help="pid of the rank that starts this")
    parser.add_argument("--interval-s", type=float, default=0.1)
    parser.add_argument("--pids", default="", help="of the node's ranks, with commas")
    parser.add_argument("--uuids", default="", help="of their GPUs, with commas")
    options = parser.parse_args(arguments)
    if options.self_test:
        from harness.telemetry.selftest import self_test

        return self_test()
    if options.parent is None:
        parser.error("a rank starts this with --parent; a person wants --self-test")
    return _serve(options)


def _serve(options: argparse.Namespace) -> int:
    # A terminal's Ctrl-C goes to the ranks too; this ends when its rank does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a library prints belongs into the log, not between the answers.
    replies = os.dup(1)
    os.dup2(2, 1)
    try:
        from harness.telemetry.collector import Collector
        from harness.telemetry.loop import Loop
        from harness.telemetry.place import leave_the_ranks_cores

        pids = [int(pid) for pid in options.pids.split(",") if pid]
        leave_the_ranks_cores(options.parent, pids)
        uuids = [uuid for uuid in options.uuids.split(",") if uuid]
        collector = Collector(pids, _devices(uuids))
    except HarnessError as error:
        os.write(replies, f"error {type(error).__name__} {error}\n".encode())
        return 2
    return Loop(collector, options.interval_s, options.parent, 0, replies).run()


def _devices(uuids: Sequence[str]) -> Sequence[Device]:
    if not uuids:
        return ()
    from harness.telemetry.nvml import open_devices

    return open_devices(uuids)


if __name__ == "__main__":
    sys.exit(main())
