"""Where things go that are not results."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from harness.errors import ConfigError

DATA_DIR = "HVDSCALE_DATA_DIR"


def default_data_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Return ``${HVDSCALE_DATA_DIR:-${XDG_CACHE_HOME:-~/.cache}/hvdscale/data}``, absolute.

    Without HOME it is the home of the password database; ConfigError where there is none either.
    On a cluster it must be a file system that every node sees.
    """
    return _place(DATA_DIR, "data", env)


def default_wheel_dir(env: Mapping[str, str] = os.environ) -> Path:
    """Return ``${HVDSCALE_WHEEL_DIR:-${XDG_CACHE_HOME:-~/.cache}/hvdscale/wheels}``, absolute."""
    return _place("HVDSCALE_WHEEL_DIR", "wheels", env)


def is_text(path: Path) -> bool:
    """Say whether a path can be written down: Linux allows names that are no UTF-8.

    In a locale without UTF-8 (LC_ALL=C) no name that has more than ASCII can.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def is_utf8(path: Path) -> bool:
    """Say whether a path is UTF-8 on disk, whatever this process's locale makes of it."""
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return False
    return True


def _place(variable: str, name: str, env: Mapping[str, str]) -> Path:
    place = _named_place(variable, name, env)
    if not is_text(place):
        raise ConfigError(f"{place}: no text in UTF-8; set {variable} to another folder")
    return place


def _named_place(variable: str, name: str, env: Mapping[str, str]) -> Path:
    if env.get(variable):
        return Path(env[variable]).absolute()
    cache = env.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else _home(variable, env) / ".cache"
    return base.absolute() / "hvdscale" / name


def _home(variable: str, env: Mapping[str, str]) -> Path:
    if env.get("HOME"):
        return Path(env["HOME"])
    try:
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        home = None
    # Users without a home, such as Debian's nobody, have the name of a folder that is not there.
    if home is None or not home.is_dir():
        raise ConfigError(f"this user has no home folder, and HOME is not set; set {variable}")
    return home
