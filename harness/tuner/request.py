"""What is to be tuned, and the sweeps that its launches belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.config import RunConfig, Sweep, apply_overrides, expand, parse_sweep
from harness.config.identity import point_id
from harness.config.models import AUTOTUNED, HorovodTuning
from harness.config.placement import Placement
from harness.config.tuning_presets import with_preset
from harness.detect import Machine
from harness.errors import ConfigError
from harness.tuner.space import turned
from harness.tuning import AUTOTUNE_STEPS
from workloads import registry

WHERE = "tune"
VALIDATION = "-validation-"
_DIGITS = 8  # that tell validations of one name apart
_LONGEST_NAME = 100 - len(VALIDATION) - _DIGITS  # a folder's name has 100 characters at most


@dataclass(frozen=True)
class Request:
    """What to tune, and how long."""

    data: Mapping[str, Any]  # of a sweep with one point: what flags and --set said
    budget_s: float
    trials: int | None = None  # None: as many as the budget has room for
    blocks: int = 5
    seed: int = 1
    autotune: bool = True  # validate Horovod's own, too
    allow_lossy: bool = False

    @property
    def name(self) -> str:
        """Return the name of the search's folder."""
        return str(self.data["name"])

    @property
    def fixed(self) -> frozenset[str]:
        """Return the fields of Horovod's tuning that the user has set: they are not searched."""
        return frozenset(self.data.get("horovod", {}))

    @property
    def key(self) -> str:
        """Return what tells two requests apart, as hexadecimal digits."""
        told = {**vars(self), "data": dict(self.data)}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def request_data(
    workload: str, flags: Mapping[str, Any], overrides: Sequence[str], machine: Machine
) -> dict[str, Any]:
    """Return a sweep's plain data of what was typed; ConfigError where it is not one point.

    ``flags`` are keys of a sweep, None where they were not given. The placement is all of the
    machine where nothing names it, the batch the one that the workload's learning rate is for.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    framework = given.pop("framework", None)
    named: dict[str, Any] = {"name": workload}
    data = {"workload": named | ({"framework": framework} if framework else {}), **given}
    data = apply_overrides(data, overrides)
    _check(data, workload)
    data.setdefault("name", f"tune-{data['workload']['name']}")
    data.setdefault("engine", "horovod")
    if data["engine"] != "horovod":
        raise ConfigError(
            f"--engine {data['engine']}: there is nothing to tune; the knobs are Horovod's"
        )
    data.setdefault("placement", str(Placement.parse(machine.slots)))
    if "batch_size" not in data and "global_batch_size" not in data:
        info = registry.info(str(data["workload"]["name"]))
        data["batch_size"] = info.learning_rate_batch
    if "global_batch_size" in data:
        data.setdefault("scaling", "strong")
    if "horovod" in data:
        data["horovod"] = dict(_group("horovod", with_preset(data["horovod"])))
    # Only the window counts here, and a launch without instruments is over sooner.
    data["measure"] = {"instruments": [], **data.get("measure", {})}
    return {**data, "base": None}


def base_of(request: Request) -> RunConfig:
    """Return the point that is tuned, at the user's own tuning; ConfigError where it is many."""
    points = expand(parse_sweep(request.data, WHERE)).points
    if len(request.name) > _LONGEST_NAME:
        raise ConfigError(
            f"{WHERE}: name: longer than {_LONGEST_NAME} characters; the validation's folder is "
            "named after it"
        )
    if len(points) != 1:
        raise ConfigError(f"{WHERE}: {len(points)} points; give one value of every key")
    (base,) = points
    if base.world_size < 2:
        raise ConfigError(
            f"{WHERE}: placement {base.placement} is one rank, and alone Horovod reduces nothing; "
            "give -n 2 or more (--slots lets a host take more ranks than it has devices)"
        )
    if base.horovod.autotune:
        raise ConfigError(
            f"{WHERE}: horovod.autotune is compared with in any case; leave it out, or see "
            "--no-autotune"
        )
    return base


def validation_sweep(
    request: Request, winner: HorovodTuning, blocks: int, *, autotune: bool, timeout_s: float
) -> Sweep:
    """Return the sweep of default, winner and Horovod's autotuner, in interleaved blocks.

    Named after what it compares: another winner, or the autotuner beside it, is measured together
    with a default of the same hour, and not paired with one that an earlier validation has left.
    """
    measure = request.data["measure"]
    base = base_of(request)
    include: list[dict[str, Any]] = []
    if winner != base.horovod:
        include.append({"horovod": turned(winner, base.horovod)})
    if autotune:
        # What it has found is warmed up like everything else.
        warmup = AUTOTUNE_STEPS + base.measure.warmup_steps
        include.append({"horovod": {"autotune": True}, "measure": {"warmup_steps": warmup}})
    data = {
        **request.data,
        "measure": {**measure, "blocks": blocks, "timeout_s": timeout_s},
        "include": include,
    }
    where = f"{WHERE}, validation"
    compared = sorted(point_id(point) for point in expand(parse_sweep(data, where)).points)
    digits = hashlib.sha256(" ".join(compared).encode()).hexdigest()[:_DIGITS]
    return parse_sweep({**data, "name": f"{request.name}{VALIDATION}{digits}"}, where)


def can_autotune(request: Request) -> str:
    """Return why Horovod's autotuner cannot be compared with; "" where it can."""
    if not request.autotune:
        return "--no-autotune"
    fixed = sorted(request.fixed.intersection(AUTOTUNED))
    return f"horovod.{fixed[0]} is set, and it would choose that" if fixed else ""


def _check(data: Mapping[str, Any], workload: str) -> None:
    for key in ("train", "base", "include", "exclude", "zip"):
        if key in data:
            raise ConfigError(f"--set {key}: {WHERE} measures one point; it has no {key}")
    if _group("workload", data["workload"]).get("name") != workload:
        raise ConfigError(
            f"--set workload.name: the workload is {workload}, as WORKLOAD says; take it out"
        )
    measure = _group("measure", data.get("measure", {}))
    for key in ("blocks", "ci_target", "max_blocks"):
        if key in measure:
            raise ConfigError(f"--set measure.{key}: see --blocks")
    if "timeline" in _listed(measure.get("instruments", ())):
        raise ConfigError(
            "--set measure.instruments: a timeline measures no throughput; leave timeline out"
        )


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _group(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"--set {key}: expected keys and values, got {value!r}")
    return value
