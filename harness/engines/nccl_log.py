"""What NCCL says of itself with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=INIT,NET``.

The lines are those of NCCL 2.28; another version's that differ are left out, never guessed.
"""

from __future__ import annotations

import os
import re

_PATTERNS = {
    "nccl_version": re.compile(r"NCCL INFO NCCL version (\S+)"),
    "nccl_network": re.compile(r"NCCL INFO Using network (\S.*)"),
    "nccl_channels": re.compile(r"NCCL INFO (\d+) coll channels"),
    "nccl_nvls_channels": re.compile(r"NCCL INFO .*?(\d+) nvls channels"),
    "nccl_nodes": re.compile(r"NCCL INFO comm \S+ rank \d+ nRanks \d+ nNodes (\d+)"),
    "nccl_transport": re.compile(r"NCCL INFO Channel \d+/\d+ : .* via (\S+)"),
}
_TAIL_BYTES = 1 << 20


def parse_nccl_log(text: str) -> dict[str, str]:
    """Return the first communicator's facts; of one that the log does not have there is no key."""
    found = {name: pattern.search(text) for name, pattern in _PATTERNS.items()}
    return {name: match[1].strip() for name, match in found.items() if match}


def own_output() -> str:
    """Return what this process has printed so far, where that goes to a file; else nothing."""
    try:
        path = os.readlink("/proc/self/fd/1")
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            return file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
