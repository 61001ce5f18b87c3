"""Mounts that a test has to itself."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

_CLONE_NEWNS = 0x00020000  # of <linux/sched.h>


def may_mount() -> bool:
    """Say whether this process may mount file systems, by trying it."""
    if os.geteuid() or shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def leave_those_of_others() -> None:
    """Give this process mounts of its own, which go with it."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "unshare")
    run("mount --make-rprivate /")


def run(line: str) -> None:
    """Run a command of words without blanks in them."""
    subprocess.run(line.split(" "), check=True)
