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
_HEAD_BYTES = 1 << 20  # a communicator is made early in a run


def parse_nccl_log(text: str) -> dict[str, str]:
    """Return the first communicator's facts; of one that the log does not have there is no key."""
    found = {name: pattern.search(text) for name, pattern in _PATTERNS.items()}
    return {name: match[1].strip() for name, match in found.items() if match}


def is_nccl(evidence: dict[str, str]) -> bool:
    """Say whether NCCL is loaded and has said so itself: being built with it proves nothing."""
    return "libnccl.so" in evidence and "nccl_version" in evidence


def nccl_evidence() -> dict[str, str]:
    """Return what this process's NCCL has said so far."""
    return parse_nccl_log(own_output())


def own_output() -> str:
    """Return the beginning of NCCL's output: its own file, else where this process prints to.

    Nothing where that is no file.
    """
    try:
        path = os.environ.get("NCCL_DEBUG_FILE") or os.readlink("/proc/self/fd/1")
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return ""
