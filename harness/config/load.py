"""From YAML and ``--set`` to a checked ``Sweep``; a fault is one line naming file, key and cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from harness.bounded import UnfitError, read_input
from harness.config.faults import validated as validated
from harness.config.models import (
    DdpTuning,
    Execution,
    HorovodTuning,
    LearningRate,
    Loader,
    Measure,
    RunConfig,
    Sweep,
    SweepMeasure,
    WorkloadConfig,
)
from harness.config.tuning_presets import KEY, inlined, inlined_entry, written_out
from harness.config.yaml_dialect import MAX_DEPTH, dump, load_text
from harness.errors import ConfigError, did_you_mean

MAX_CONFIG_BYTES = 1 << 20
#: The keys of RunConfig that have keys of their own.
GROUPS: Mapping[str, type[BaseModel]] = {
    "workload": WorkloadConfig,
    "execution": Execution,
    "horovod": HorovodTuning,
    "ddp": DdpTuning,
    "learning_rate": LearningRate,
    "loader": Loader,
    "measure": Measure,
}
_SWEEP_KEYS = ("name", "train", "base", "include", "exclude", "zip")
SWEEP_ONLY_MEASURE = ("blocks", "ci_target", "max_blocks", "timeout_s")


def preset_names() -> tuple[str, ...]:
    """Return the names of the sweeps that come with the package."""
    folder = files("harness") / "presets"
    found = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return tuple(sorted(name[: -len(".yaml")] for name in found if name.endswith(".yaml")))


def load_sweep(source: str, overrides: Iterable[str] = ()) -> Sweep:
    """Read a sweep from a path, or by the name of a preset, with ``key=value`` overrides."""
    text, where = _read(source)
    data = _parse_yaml(text, where)
    return parse_sweep(apply_overrides(data, overrides), where)


def parse_sweep(data: Mapping[str, Any], where: str = "sweep") -> Sweep:
    """Check a sweep given as plain data; the axes' values are checked when it is expanded."""
    data = _with_presets(data, where)
    _check_keys(data, where)
    measure = data.get("measure", {})
    if not isinstance(measure, Mapping):
        raise ConfigError(f"{where}: measure: expected keys and values, got {measure!r}")
    for key in SWEEP_ONLY_MEASURE:
        if isinstance(measure.get(key), list):
            raise ConfigError(f"{where}: measure.{key}: one value for the whole sweep, no axis")
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
        raise ConfigError(f"{where}: workload is missing; write workload: {{name: stress_strain}}")
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
        if len(path) > MAX_DEPTH:
            raise ConfigError(f"--set {override}: nested more than {MAX_DEPTH} levels deep")
        value = load_text(text, f"--set {override}")
        target = result
        for step in path[:-1]:
            inner = target.get(step, {})
            if isinstance(inner, str) and step in ("workload", "horovod"):
                inner = {"name" if step == "workload" else KEY: inner}
            if not isinstance(inner, Mapping):
                raise ConfigError(f"--set {override}: {step} has no keys below it")
            target[step] = dict(inner)
            target = target[step]
        target[path[-1]] = value
    return result


def sweep_to_yaml(sweep: Sweep) -> str:
    """Return a sweep as YAML with every default written out; loading it gives the same points.

    Defaults that a later version changes do not change what was meant here.
    """
    # What was written comes first and in its order, which is the order of the points.
    point = dict(sweep.point)
    for name, field in RunConfig.model_fields.items():
        if name == "train":
            continue
        if name not in GROUPS:
            point.setdefault(name, _plain(field.get_default()))
        elif name != "workload" and isinstance(point.get(name), Mapping | None):
            defaults = GROUPS[name]().model_dump(mode="json")
            given = point.get(name) or {}
            point[name] = written_out(given, defaults)
    only = sweep.measure.model_dump(include=set(SWEEP_ONLY_MEASURE))
    point["measure"] = {**point.pop("measure"), **only}  # last, as in parse_sweep
    data = {
        "name": sweep.name,
        **point,
        "train": sweep.train.model_dump(mode="json"),
        "base": sweep.base.model_dump(mode="json") if sweep.base else None,
        "include": list(sweep.include),
        "exclude": list(sweep.exclude),
        "zip": [list(group) for group in sweep.zip],
    }
    return dump(data)


def _with_presets(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return ``data`` with the knobs of tuning presets in place of their names and files."""
    made = dict(data)
    try:
        if "horovod" in made:
            made["horovod"] = inlined(made["horovod"])
        if isinstance(made.get("include"), list):
            made["include"] = [inlined_entry(one) for one in made["include"]]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return made


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _check_keys(data: Mapping[str, Any], where: str) -> None:
    known = [*_SWEEP_KEYS, *RunConfig.model_fields]
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: {key}: unknown key{did_you_mean(key, known)}")
    for key in ("execution", "horovod", "ddp", "learning_rate", "measure"):
        inner = data.get(key, {})
        field = SweepMeasure if key == "measure" else GROUPS[key]
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{where}: {key}: expected keys and values, got {inner!r}")
        known = [*field.model_fields, *([KEY] if key == "horovod" else [])]
        for name in inner:
            if name not in known:
                near = did_you_mean(name, known)
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
            known = ", ".join(presets) or "none"
            raise ConfigError(f"'{source}' is no file and no preset{near}; presets: {known}")
    try:
        return read_input(path, MAX_CONFIG_BYTES).decode("utf-8-sig"), source
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not UTF-8 text; a sweep is a YAML file") from None
    except UnfitError as error:
        raise ConfigError(f"{source}: {error}; this is not a sweep") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None


def _parse_yaml(text: str, where: str) -> dict[str, Any]:
    data = load_text(text, where)
    if data is None:
        raise ConfigError(f"{where}: is empty; a sweep has at least name, workload and batch_size")
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected keys and values at the top, e.g. 'name: my-sweep'")
    return data
