"""One runner at a time on one host: two would measure side by side, each disturbing the other.

So it is with who submits a sweep, on whatever host: two would submit the same launches.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.clock import utc_now
from harness.errors import StoreError
from harness.store.files import NO_LOCKS, named_errors

#: What each role does, and why no two do it at once.
_ROLES = {
    "runner": "runs this sweep on this host, and two would disturb each other's measurements",
    "submitter": "submits this sweep, and two would submit the same launches",
}


class BusyError(StoreError):
    """Another process measures this sweep on this host, or submits it."""


@contextmanager
def alone(folder: Path, role: str = "runner") -> Iterator[None]:
    """Hold a sweep's folder for this process on this host; BusyError where another has it.

    One process a ``role``, "runner" or "submitter": who submits disturbs no measurement. The kernel
    frees the lock with the process, whatever ends that, so nothing is ever stale. Runners on other
    hosts are welcome; of submitters there is one on all login nodes together. Where a file system
    has no locks, or none between hosts, the run goes on without.
    """
    path = lock_path(folder, role)
    with named_errors(path, "written"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        with named_errors(path, "locked"):
            _lock(descriptor, path, role)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "since": utc_now()}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def lock_path(folder: Path, role: str = "runner") -> Path:
    """Return the lock file of a sweep's folder: of runners each host has its own."""
    if role == "submitter":
        return folder / ".submitter.lock"
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname()) or "host"
    return folder / f".{role}.{host}.lock"


def _lock(descriptor: int, path: Path, role: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError(
            f"{path.parent}: {_holder(descriptor)} {_ROLES[role]}; "
            "wait for it, or choose another --results"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _holder(descriptor: int) -> str:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {int(found['pid'])} (since {found['since']})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"  # it has the lock, and has not yet written who it is
