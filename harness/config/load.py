"""From YAML and ``--set`` to a checked ``Sweep``; every fault is one line naming file, key and cure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel
from pydantic import ValidationError as PydanticError

from harness.config.models import RunConfig, Sweep, SweepMeasure
from harness.errors import ConfigError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)

MAX_CONFIG_BYTES = 1 << 20
MAX_DEPTH = 20
# In a union pydantic adds the name of the alternative to the path, which says nothing to a user.
_UNION_ARM = re.compile(r"function-|literal\[|constrained-|int$|str$")
_SWEEP_KEYS = ("name", "base", "include", "exclude", "zip")
SWEEP_ONLY_MEASURE = ("blocks", "ci_target", "max_blocks", "timeout_s")


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.1 with 1.2's floats, and without duplicate keys and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(f"line {mark.line + 1}: aliases (*name) are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: key {key!r} is no text")
            if key in seen:
                raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: key '{key}' is twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-3 as text, because it wants a dot and a signed exponent; people write 1e-3.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def preset_names() -> tuple[str, ...]:
    """Return the names of the sweeps that come with the package."""
    folder = files("harness") / "presets"
    found = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return tuple(sorted(name[: -len(".yaml")] for name in found if name.endswith(".yaml")))


def load_sweep(source: str, overrides: Iterable[str] = ()) -> Sweep:
    """Read a sweep from a path, or by the name of a preset, with ``key=value`` overrides applied."""
    text, where = _read(source)
    data = _parse_yaml(text, where)
    return parse_sweep(apply_overrides(data, overrides), where)


def parse_sweep(data: Mapping[str, Any], where: str = "sweep") -> Sweep:
    """Check a sweep given as plain data; the axes' values are checked when it is expanded."""
    _check_keys(data, where)
    measure = data.get("measure", {})
    if not isinstance(measure, Mapping):
        raise ConfigError(f"{where}: measure: expected keys and values, got {measure!r}")
    point = {key: value for key, value in data.items() if key not in (*_SWEEP_KEYS, "measure")}
    kept = {key: value for key, value in measure.items() if key not in SWEEP_ONLY_MEASURE}
    if kept:
        point["measure"] = kept
    top = {key: data[key] for key in _SWEEP_KEYS if key in data}
    if isinstance(top.get("zip"), list) and all(isinstance(key, str) for key in top["zip"]):
        top["zip"] = [top["zip"]] if top["zip"] else []
    sweep_measure = {key: value for key, value in measure.items() if not isinstance(value, list)}
    if "name" not in top:
        raise ConfigError(f"{where}: name is missing; it names the folder of the results")
    if "workload" not in point:
        raise ConfigError(f"{where}: workload is missing")
    sweep_measure.pop("instruments", None)
    checked = validated(SweepMeasure, sweep_measure, where, "measure")
    return validated(Sweep, {**top, "point": point, "measure": checked}, where)


def apply_overrides(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return ``data`` with each ``a.b=value`` put in; values are YAML, so lists make axes."""
    result = dict(data)
    for override in overrides:
        key, equals, text = override.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise ConfigError(f"--set {override}: write key=value, e.g. horovod.cycle_time_ms=0.1")
        value = _load_text(text, f"--set {override}")
        target = result
        for step in path[:-1]:
            inner = target.get(step, {})
            if isinstance(inner, str) and step == "workload":
                inner = {"name": inner}
            if not isinstance(inner, Mapping):
                raise ConfigError(f"--set {override}: {step} has no keys below it")
            target[step] = dict(inner)
            target = target[step]
        target[path[-1]] = value
    return result


def validated(model: type[Model], data: Any, where: str, prefix: str = "") -> Model:
    """Make ``model`` of ``data``; a fault is a ConfigError of one line."""
    try:
        return model.model_validate(data)
    except PydanticError as error:
        raise ConfigError(f"{where}: {_first_fault(error, model, prefix)}") from None


def _first_fault(error: PydanticError, model: type[BaseModel], prefix: str) -> str:
    faults = error.errors(include_url=False, include_context=False)
    # An unknown key explains the faults that follow from it, so it comes first.
    fault = min(faults, key=lambda f: f["type"] != "extra_forbidden")
    path = [str(part) for part in fault["loc"] if not _UNION_ARM.match(str(part))]
    key = ".".join([prefix, *path] if prefix else path)
    more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
    if fault["type"] == "extra_forbidden":
        near = did_you_mean(path[-1], _fields(model, path[:-1]))
        return f"{key}: unknown key{near}{more}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "literal_error":
        choices = message.removeprefix("Input should be ").replace(" or ", ", ")
        words = [word.strip("' ") for word in choices.split(",")]
        near = did_you_mean(str(fault["input"]), words)
        return f"{key}: {fault['input']!r} is not one of {', '.join(words)}{near}{more}"
    if fault["type"] == "missing":
        return f"{key}: is missing{more}"
    if fault["type"] == "value_error":
        return f"{key}: {message}{more}" if key else f"{message}{more}"
    return f"{key}: {message[0].lower()}{message[1:]}, got {fault['input']!r}{more}"


def _fields(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def _check_keys(data: Mapping[str, Any], where: str) -> None:
    known = [*_SWEEP_KEYS, *RunConfig.model_fields]
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: {key}: unknown key{did_you_mean(key, known)}")
    for key in ("execution", "horovod", "learning_rate", "measure"):
        inner = data.get(key, {})
        field = SweepMeasure if key == "measure" else RunConfig.model_fields[key].annotation
        assert isinstance(field, type) and issubclass(field, BaseModel)
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{where}: {key}: expected keys and values, got {inner!r}")
        for name in inner:
            if name not in field.model_fields:
                near = did_you_mean(name, field.model_fields)
                raise ConfigError(f"{where}: {key}.{name}: unknown key{near}")


def _read(source: str) -> tuple[str, str]:
    path = Path(source)
    if path.suffix not in (".yaml", ".yml") and "/" not in source:
        presets = preset_names()
        if source in presets:
            preset = files("harness") / "presets" / f"{source}.yaml"
            return preset.read_text(encoding="utf-8"), f"preset {source}"
        if not path.exists():
            near = did_you_mean(source, presets)
            raise ConfigError(
                f"'{source}' is no file and no preset{near}; presets: {', '.join(presets)}"
            )
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{source}: larger than 1 MiB; this is not a sweep")
        return path.read_text(encoding="utf-8"), source
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not UTF-8 text; a sweep is a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None


def _parse_yaml(text: str, where: str) -> dict[str, Any]:
    data = _load_text(text, where)
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected keys and values at the top, e.g. 'name: my-sweep'")
    return data


def _load_text(text: str, where: str) -> Any:
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader, see above
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not valid YAML: {error}") from None
    _check_depth(data, where)
    return data


def _check_depth(data: Any, where: str, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: nested more than {MAX_DEPTH} levels deep")
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for value in inner:
        _check_depth(value, where, depth + 1)
