"""What NCCL says of itself with ``NCCL_DEBUG=INFO`` and ``NCCL_DEBUG_SUBSYS=INIT,NET``.

Read against NCCL 2.27 to 2.30 (``src/init.cc``, ``src/transport/*.cc``); a line that another
version words differently is left out, never guessed. Every line stands alone, so that the lines of
several ranks may come in any order.
"""

from __future__ import annotations

import os
import re
import socket

_PATTERNS = {
    # Also without "NCCL INFO": so it is printed at NCCL_DEBUG=VERSION and WARN.
    "nccl_version": re.compile(r"\bNCCL version (\d\S+)"),
    "nccl_git": re.compile(r"NCCL INFO NCCL git version (\S.*)"),  # since 2.28
    "nccl_network": re.compile(r"NCCL INFO Using network (\S.*)"),
    "nccl_channels": re.compile(r"NCCL INFO (\d+) coll channels"),
    "nccl_nvls_channels": re.compile(r"NCCL INFO .*?\b(\d+) nvls channels"),
    "nccl_nodes": re.compile(r"NCCL INFO comm \S+ rank \d+ nRanks \d+ nNodes (\d+)"),
    "nccl_ranks": re.compile(r"NCCL INFO comm \S+ rank \d+ nRanks (\d+)"),
    "nccl_mnnvl": re.compile(r"NCCL INFO comm \S+ rank .* MNNVL (\d+)"),
}
#: "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/2(3)/GDRDMA": connection 0 carries collectives,
#: 1 point-to-point sends.
_CONNECTION = re.compile(
    r"NCCL INFO Channel \d+(?:/0)? : \d+\[[^]]*\] -> \d+\[[^]]*\](?: \[\w+\])? via (\S.*?)"
    r"(?: comm \S+ nRanks \d+)?\s*$",
    re.MULTILINE,
)
_DEVICE = re.compile(r"\d+([(\[].*)?")  # which adapter, and the rank whose it is; not how
_MULTICAST = re.compile(r"NCCL INFO NVLS multicast support is (not )?available")
#: A time may stand before it (NCCL_DEBUG_TIMESTAMP_LEVELS), a launcher's label too.
_OF_PROCESS = re.compile(r"(\S+):([0-9]{1,9}):\d+ \[-?\d+\] NCCL ")
_HEAD_BYTES = 8 << 20  # a communicator is made early in a run


def parse_nccl_log(text: str, pid: int | None = None) -> dict[str, str]:
    """Return the first communicator's facts, and the transports of all.

    What the log does not have has no key. ``nccl_transports`` are all that collectives were
    connected by, without adapter numbers, ``"NET/IB/GDRDMA, P2P/CUMEM"``; those of a rank are its
    own connections, so a launch's are the union over its ranks. With ``pid`` only the lines of
    that process count, where the log has any.
    """
    lines = _of_process(text.splitlines(), pid)
    kept = "\n".join(lines)
    found = {name: pattern.search(kept) for name, pattern in _PATTERNS.items()}
    facts = {name: match[1].strip() for name, match in found.items() if match}
    if transports := {_transport(match[1]) for match in _CONNECTION.finditer(kept)}:
        facts["nccl_transports"] = ", ".join(sorted(transports))
    if multicast := _MULTICAST.search(kept):
        facts["nccl_nvls_multicast"] = "no" if multicast[1] else "yes"
    return facts


def _of_process(lines: list[str], pid: int | None) -> list[str]:
    if pid is None:
        return lines
    mine = []
    for line in lines:
        match = _OF_PROCESS.search(line)
        if match is not None and int(match[2]) == pid:
            mine.append(line)
    return mine or lines  # in a container another number may be printed


def _transport(via: str) -> str:
    """Return a connection's transport without the adapter that it happens to use."""
    return "/".join(part for part in via.split("/") if not _DEVICE.fullmatch(part))


def is_nccl(evidence: dict[str, str]) -> bool:
    """Say whether NCCL is loaded and has said so itself: being built with it proves nothing."""
    return "libnccl.so" in evidence and "nccl_version" in evidence


def nccl_evidence() -> dict[str, str]:
    """Return what this process's NCCL has said so far."""
    return parse_nccl_log(own_output(), os.getpid())


def own_output() -> str:
    """Return the beginning of NCCL's output: its own file, else where this process prints to.

    Nothing where that is no file.
    """
    try:
        named = os.environ.get("NCCL_DEBUG_FILE")
        path = debug_file(named) if named else os.readlink("/proc/self/fd/1")
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return ""


def debug_file(name: str) -> str:
    """Return the file that NCCL makes of ``NCCL_DEBUG_FILE``: %h is the host, %p the process.

    As ``ncclDebugInit`` of ``src/debug.cc`` does: the host without its domain, %% is one %, and
    what else follows a % is left as it is.
    """
    parts = {"%": "%", "h": socket.gethostname().partition(".")[0], "p": str(os.getpid())}
    return re.sub(r"%(.)", lambda match: parts.get(match[1], match[0]), name)
