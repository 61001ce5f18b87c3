"""Named sets of Horovod's knobs: ``horovod: {preset: latency}``, or the file that ``tune`` wrote.

A preset stands in place of the defaults: keys given beside it win. It is gone once a config is
resolved, which has the knobs alone, and so has its id. A preset is a YAML file with keys of
``HorovodTuning`` and ``about``, a text for people. A path is seen from the working folder, and
``null`` is no preset, as a value of an axis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from harness.bounded import UnfitError, read_input
from harness.config.faults import validated
from harness.config.models import HorovodTuning
from harness.config.yaml_dialect import load_text
from harness.errors import ConfigError, did_you_mean

KEY = "preset"
PATH = f"horovod.{KEY}"
ABOUT = "about"
_MAX_BYTES = 1 << 16

Fields = dict[str, Any]


def tuning_preset_names() -> tuple[str, ...]:
    """Return the names of the tuning presets that come with the package."""
    folder = files("harness") / "presets" / "tuning"
    found = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return tuple(sorted(name[: -len(".yaml")] for name in found if name.endswith(".yaml")))


def load_tuning_preset(source: str) -> Fields:
    """Return the knobs of a preset, by its name or its file's path; ConfigError if it is none."""
    return _fields(*_read(source))


def preset_about(source: str) -> str:
    """Return what a preset says of itself, "" of one that says nothing; errors as above."""
    text, where = _read(source)
    _fields(text, where)
    data = load_text(text, where) or {}
    return " ".join(str(data.get(ABOUT, "")).split())


def with_preset(data: Any) -> Any:
    """Return the plain data of a ``horovod`` group, its preset put under the keys beside it.

    ``data`` may be the preset's name alone. What has no preset is returned as it is.
    """
    if isinstance(data, str):
        return load_tuning_preset(data)
    if not isinstance(data, Mapping) or KEY not in data:
        return data
    given = {key: value for key, value in data.items() if key != KEY}
    return {**_value(data[KEY]), **given}


def with_preset_in_row(row: dict[str, Any], named: Collection[str] = ()) -> dict[str, Any]:
    """Return a point as flat ``horovod.x: value`` data with its preset resolved likewise.

    ``named`` are the keys of the ``include`` that the point is of. A preset among them stands
    before what the sweep says of every point, and behind the keys that the entry names itself.
    """
    if PATH not in row:
        return row
    kept = {key: value for key, value in row.items() if key != PATH}
    found = {f"horovod.{key}": value for key, value in _value(row[PATH]).items()}
    if PATH not in named:
        return {**found, **kept}
    return {**kept, **found, **{key: value for key, value in kept.items() if key in named}}


def inlined(group: Any) -> Any:
    """Return a sweep's ``horovod`` with the knobs in place of names: files may change later.

    One preset or many, it is an axis then.
    """
    if isinstance(group, str):
        group = {KEY: group}
    if not isinstance(group, Mapping) or KEY not in group:
        return group
    asked = group[KEY]
    return {**group, KEY: [_value(one) for one in (asked if isinstance(asked, list) else [asked])]}


def inlined_entry(entry: Any) -> Any:
    """Return an entry of ``include`` likewise, where keys may be paths; anything else as it is."""
    if not isinstance(entry, Mapping):
        return entry
    made = dict(entry)
    if "horovod" in made:
        made["horovod"] = inlined(made["horovod"])
    if PATH in made:
        made[PATH] = inlined({KEY: made[PATH]})[KEY]
    return made


def written_out(group: Mapping[str, Any], defaults: Mapping[str, Any]) -> Fields:
    """Return an ``inlined`` group with every default that its presets leave, inside of them."""
    left = {key: value for key, value in defaults.items() if key not in group}
    if KEY not in group:
        return {**group, **left}
    return {**group, KEY: [{**left, **preset} for preset in group[KEY]]}


def _value(preset: Any) -> Fields:
    """Return the knobs of what stands behind ``preset:``; a mapping is its own."""
    if preset is None:
        return {}
    if isinstance(preset, str):
        return load_tuning_preset(preset)
    if isinstance(preset, Mapping):
        return _checked(preset, PATH)
    raise ConfigError(
        f"{PATH}: {preset!r} is no preset; give a name ({_known()}) or a YAML file's path"
    )


def _fields(text: str, where: str) -> Fields:
    data = load_text(text, where)
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected keys and values, e.g. 'cycle_time_ms: 0.1'")
    about = data.get(ABOUT, "")
    if not isinstance(about, str):
        raise ConfigError(f"{where}: {ABOUT}: expected text, got {about!r}")
    return _checked({key: value for key, value in data.items() if key != ABOUT}, where)


def _checked(data: Mapping[str, Any], where: str) -> Fields:
    known = HorovodTuning.model_fields
    for key in data:
        if key not in known:
            near = did_you_mean(key, [*known, ABOUT])
            raise ConfigError(f"{where}: {key}: a tuning preset has no such key{near}")
    tuning = validated(HorovodTuning, dict(data), where)
    return {key: getattr(tuning, key) for key in data}


def _known() -> str:
    return ", ".join(tuning_preset_names()) or "none"


def _read(source: str) -> tuple[str, str]:
    path = Path(source)
    if path.suffix not in (".yaml", ".yml") and "/" not in source:
        names = tuning_preset_names()
        if source in names:
            preset = files("harness") / "presets" / "tuning" / f"{source}.yaml"
            return preset.read_text(encoding="utf-8"), f"tuning preset {source}"
        if not _is_file(path):
            near = did_you_mean(source, names)
            raise ConfigError(
                f"'{source}' is no file and no tuning preset{near}; tuning presets: {_known()}"
            )
    try:
        return read_input(path, _MAX_BYTES).decode("utf-8-sig"), source
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not UTF-8 text; a tuning preset is a YAML file") from None
    except UnfitError as error:
        raise ConfigError(f"{source}: {error}; this is not a tuning preset") from None
    except OSError as error:
        seen = "" if path.is_absolute() else " (a path is seen from the working folder)"
        why = f"{error.strerror or error}{seen if isinstance(error, FileNotFoundError) else ''}"
        raise ConfigError(f"{source}: cannot be read: {why}") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # longer than a name of a file can be
        return False
