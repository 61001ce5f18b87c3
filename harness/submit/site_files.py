"""Sites as files: where they are looked for, how they are read and written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from harness.bounded import UnfitError, read_input
from harness.config.faults import validated
from harness.config.load import MAX_CONFIG_BYTES
from harness.config.yaml_dialect import dump, load_text
from harness.errors import ConfigError, did_you_mean
from harness.submit.site import Site

Place = Literal["here", "user", "package"]


@dataclass(frozen=True)
class SiteFile:
    """A site that can be named; ``place`` says in which of the folders it was found first."""

    name: str
    path: Path
    place: Place


def site_folders(env: Mapping[str, str] = os.environ) -> tuple[tuple[Place, Path], ...]:
    """Return where sites are looked for, in this order; a folder may be missing.

    They are ``./slurm/sites``, ``${XDG_CONFIG_HOME:-~/.config}/hvdscale/sites`` and the package's.
    """
    given = env.get("XDG_CONFIG_HOME", "")
    # A relative one is to be ignored, says the XDG base directory specification.
    config = given if os.path.isabs(given) else os.path.expanduser("~/.config")
    user: tuple[Place, Path] = ("user", Path(config) / "hvdscale" / "sites")
    return (
        ("here", Path("slurm") / "sites"),
        *([user] if os.path.isabs(config) else []),  # a user without a home has no such folder
        ("package", Path(str(files("harness"))) / "sites"),
    )


def list_sites() -> tuple[SiteFile, ...]:
    """Return the sites there are, by name; of several of one name the one that is found first."""
    found: dict[str, SiteFile] = {}
    for place, folder in site_folders():
        for path in _yaml_files(folder):
            found.setdefault(path.stem, SiteFile(path.stem, path, place))
    return tuple(found[name] for name in sorted(found))


def find_site(name_or_path: str, overrides: Iterable[str] = ()) -> Site:
    """Read a site from a YAML file, or by its name, with ``KEY=VALUE`` overrides of its keys.

    A name goes before a file of the current folder that is called like it, without an ending.
    ConfigError where there is none, or where it is not right.
    """
    if "/" not in name_or_path and not name_or_path.endswith((".yaml", ".yml")):
        known = {site.name: site.path for site in list_sites()}
        if name_or_path in known:
            return load_site(known[name_or_path], overrides)
        if not Path(name_or_path).is_file():
            raise ConfigError(f"'{name_or_path}' is no file and no site{_others(name_or_path)}")
    return load_site(Path(name_or_path), overrides)


def load_site(path: Path, overrides: Iterable[str] = ()) -> Site:
    """Read one file; a site that does not name itself is called like its file."""
    return parse_site(_read(path), str(path), {"name": path.stem}, overrides)


def parse_site(
    text: str,
    where: str,
    defaults: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
) -> Site:
    """Check a site given as YAML, each ``KEY=VALUE`` put in; ``where`` is what faults name.

    ``environment.NAME=VALUE`` and ``python_by_backend.NAME=VALUE`` set one entry.
    """
    # What is a number is known by the key: 1:30:00, 1e3, 007 and a variable's "true" are text.
    data = load_text(text, where, as_written=True)
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected keys and values at the top, e.g. 'nodes: 4'")
    return validated(Site, _expanded(_overridden({**(defaults or {}), **data}, overrides)), where)


def site_to_yaml(site: Site) -> str:
    """Return a site as YAML with every default written out; reading it gives an equal site."""
    return dump(site.model_dump(mode="json"))


def _overridden(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    result = dict(data)
    for override in overrides:
        key, equals, text = override.partition("=")
        name, dot, entry = key.strip().partition(".")
        if not equals or not name or (dot and not entry):
            raise ConfigError(f"--site-set {override}: write KEY=VALUE, e.g. time_per_job=2:00:00")
        if name not in Site.model_fields:
            near = did_you_mean(name, Site.model_fields)
            raise ConfigError(f"--site-set {override}: {name}: unknown key{near}")
        value = load_text(text, f"--site-set {override}", as_written=True)
        if not dot:
            result[name] = value
            continue
        inner = result.get(name, {})
        if name not in ("environment", "python_by_backend") or not isinstance(inner, Mapping):
            raise ConfigError(f"--site-set {override}: {name} has no keys below it")
        result[name] = {**inner, entry: value}
    # A key without a value is as good as none; for a launcher there is a difference.
    return {
        name: value for name, value in result.items() if value is not None or name == "launcher"
    }


def _expanded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Put in what ``~`` and ``$VARIABLE`` are here, in paths that are the same on every node."""
    result = dict(data)
    for key in ("python", "data_dir"):
        if isinstance(result.get(key), str):
            result[key] = _path(result[key])
    builds = result.get("python_by_backend")
    if isinstance(builds, Mapping):
        result["python_by_backend"] = {
            name: _path(value) if isinstance(value, str) else value
            for name, value in builds.items()
        }
    return result


def _path(text: str) -> str:
    return os.path.expanduser(os.path.expandvars(text))


def _yaml_files(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.suffix == ".yaml"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error
    return [path for path in found if not path.name.startswith(".")]


def _read(path: Path) -> str:
    try:
        return read_input(path, MAX_CONFIG_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; a site is a YAML file") from None
    except UnfitError as error:
        raise ConfigError(f"{path}: {error}; this is not a site") from None
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_others(path.stem)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _others(name: str) -> str:
    names = [site.name for site in list_sites()]
    known = ", ".join(names) or "none"
    return f"{did_you_mean(name, names)}; sites: {known}; hvdscale site init drafts one"
