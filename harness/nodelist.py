"""Lists of hosts as Slurm writes them, ``n[1-3,7],login1``: checked, then expanded.

They come from the environment, and names go on to launchers, one of which (``horovodrun``) makes
lines of shell of them: what is no name of a host is no host. Nor may a short text stand for more
names, or longer ones, than any cluster has.
"""

from __future__ import annotations

import re
from math import prod

MAX_HOSTS = 100_000
_MAX_NAME_CHARS = 255
_MAX_DIGITS = 9
_MAX_BRACKETS = 8  # of one name; Slurm's own limit is lower
_MAX_TEXT_CHARS = 1 << 20

HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}", re.ASCII)
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_BRACKETS = rf"\[{_RANGE}(?:,{_RANGE})*\]"
_PART = re.compile(rf"(?:[A-Za-z0-9._-]|{_BRACKETS})+", re.ASCII)
_OUTER = re.compile(r"(?:[^,\[]|\[[^\]]*\]?)+")  # what lies between commas outside of brackets
_RANGES = re.compile(r"([0-9]+)(?:-([0-9]+))?")


class NodeListError(ValueError):
    """A text is no list of hosts; the message says why."""


def expand_hosts(text: str) -> list[str]:
    """Return the single names, in order, each once; NodeListError for what is no list of hosts."""
    import hostlist

    if len(text) > _MAX_TEXT_CHARS:
        raise NodeListError("too long")
    hosts = 0
    for part in _OUTER.findall(text):
        hosts += _hosts_of(part)
        if hosts > MAX_HOSTS:
            raise NodeListError(f"more than {MAX_HOSTS} hosts")
    try:
        names = [str(name) for name in hostlist.expand_hostlist(text)]
    except (hostlist.BadHostlist, ValueError, RecursionError) as error:
        raise NodeListError(str(error)) from None
    for name in names:
        if not is_host_name(name):
            raise NodeListError(f"{name[:60]!r} is no name of a host")
    return names


def is_host_name(name: str) -> bool:
    """Say whether launchers, file names and shells can be given this name as it is."""
    return HOST_NAME.fullmatch(name) is not None


def _hosts_of(part: str) -> int:
    """Return how many hosts a part without outer commas stands for."""
    if not _PART.fullmatch(part):
        raise NodeListError(f"{part[:60]!r} is none of a host's name and ranges")
    groups = re.findall(r"\[([^\]]*)\]", part)
    longest = len(re.sub(r"\[[^\]]*\]", "", part)) + _MAX_DIGITS * len(groups)
    if len(groups) > _MAX_BRACKETS or longest > _MAX_NAME_CHARS:
        raise NodeListError("too long a name")
    return prod(map(_count, groups))


def _count(group: str) -> int:
    pairs = _RANGES.findall(group)
    return sum(int(last) - int(first) + 1 if last else 1 for first, last in pairs)
