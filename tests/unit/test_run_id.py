"""Ids of measurements: the same for ever, and only as different as what is measured.

``tests/golden/run_ids.json`` and ``defaults.json`` may grow; a value in them that changes orphans
results on disk, or gives them out for what they are not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from harness.config import Placement, RunConfig, Sweep, expand, parse_sweep, run_id
from harness.config.identity import canonical, point_id
from harness.config.models import Train
from tests.pinning import assert_pinned
from workloads import registry

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "run_ids.json").read_text(encoding="utf-8")
)
BASIC: dict[str, Any] = {"workload": "stress_strain", "batch_size": 75}


def config(**keys: Any) -> RunConfig:
    return RunConfig.model_validate({**BASIC, **keys})


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["run_id"])
def test_ids_never_change(case: dict[str, Any]) -> None:
    made = RunConfig.model_validate(case["config"])
    assert run_id(made, case["repeat"]) == case["run_id"]
    assert point_id(made) == case["point_id"]


def test_defaults_written_out_change_nothing() -> None:
    written = RunConfig.model_validate(config().model_dump(mode="json"))
    assert point_id(written) == point_id(config())
    assert canonical(config()) == {"workload": {"name": "stress_strain"}, "batch_size": 75}


CHANGED: list[dict[str, Any]] = [
    {"workload": {"name": "lstm"}},
    {"workload": {"name": "stress_strain", "framework": "tensorflow"}},
    {"workload": {"name": "stress_strain", "samples": 10}},
    {"engine": "ddp"},
    {"engine": "none"},
    {"backend": "gloo"},
    {"launcher": "mpirun"},
    {"placement": "1x2"},
    {"placement": "2x1"},
    {"placement": 2},
    {"placement": 2, "placement_policy": "spread"},
    {"batch_size": 76},
    {"batch_size": None, "global_batch_size": 75, "scaling": "strong"},
    {"data": "host"},
    *[{"execution": {k: v}} for k, v in
      {"precision": "bf16", "graph": True, "compile": True, "channels_last": True,
       "accumulate": 2, "fused_optimiser": True, "cudnn_benchmark": True}.items()],
    *[{"engine": "ddp", "ddp": {k: v}} for k, v in
      {"bucket_mb": 50, "gradient_as_bucket_view": True, "static_graph": True}.items()],
    *[{"horovod": {k: v}} for k, v in
      {"controller": "gloo", "cycle_time_ms": 0.1, "fusion_threshold_mb": 64,
       "async_completion": True, "groups": 4, "compression": "fp16",
       "cache_capacity": 0, "op": "adasum", "hierarchical_allreduce": True,
       "torus_allreduce": True, "autotune": True}.items()],
    *[{"learning_rate": {k: v}} for k, v in
      {"base": 0.1, "base_batch": 75, "rule": "sqrt", "warmup_epochs": 5}.items()],
    {"cores_per_rank": "share"},
    {"cores_per_rank": 1},
    {"seed": 2},
    {"deterministic": True},
    *[{"train": {k: v}} for k, v in
      {"epochs": 2, "target": 0.1, "evaluate_every": 2, "checkpoint": True,
       "noise_scale": False}.items()],
    *[{"data": "disk", "loader": {k: v}} for k, v in {"workers": 3, "prefetch": 3}.items()],
    *[{"measure": {k: v}} for k, v in
      {"warmup_steps": 0, "window_s": 1, "min_steps": 5, "instruments": [],
       "timeline_steps": 5}.items()],
]  # fmt: skip


def test_every_field_that_changes_a_measurement_changes_the_id() -> None:
    ids = [point_id(config(**keys)) for keys in ({}, *CHANGED)]
    assert len(set(ids)) == len(ids)


def test_the_list_above_has_every_field() -> None:
    named = set()
    for keys in CHANGED:
        for key, value in keys.items():
            named |= {f"{key}.{k}" for k in value} if isinstance(value, dict) else {key}
    fields = set()
    for name, field in RunConfig.model_fields.items():
        inner = getattr(Train if name == "train" else field.annotation, "model_fields", None)
        fields |= {f"{name}.{k}" for k in inner} if inner else {name}
    fields -= {"workload.options"}  # written as keys of the workload
    assert fields <= named


DEFAULTS_RULE = (
    "Ids leave defaults out, so a default that changes would let every result measured with the "
    "old one pass for the new one. Give the new behaviour a new name, or keep the default and set "
    "the value in presets; if the default must change, migrate the stored configs to have the old "
    "value written out, and raise SCHEMA_VERSION. A new field or option is only added to the file: "
    "REGENERATE_GOLDEN=1."
)


def test_no_default_changes_behind_an_id() -> None:
    options = {
        name: {key: option.default for key, option in registry.info(name).options.items()}
        for name in registry.names()
    }
    data = {"config": dict(defaults(RunConfig)), "workloads": options}
    assert_pinned("defaults.json", data, DEFAULTS_RULE)


def defaults(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the default of every field, in a form that JSON has."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            assert field.is_required() or field.default == inner(), name
            yield from defaults(inner, f"{prefix}{name}.")
        elif not field.is_required():
            value = field.get_default(call_default_factory=True)
            yield prefix + name, str(value) if isinstance(value, Placement) else value


def sweep(**keys: Any) -> Sweep:
    return parse_sweep({"name": "s", **BASIC, **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"name": "other"},
        {"base": None},
        {"base": "horovod@1"},
        {"measure": {"blocks": 9}},
        {"measure": {"timeout_s": 6}},
        {"measure": {"ci_target": 0.1}},
        {"measure": {"max_blocks": 7}},
    ],
)
def test_what_organises_a_campaign_changes_no_id(keys: dict[str, Any]) -> None:
    assert expand(sweep(**keys)).points == expand(sweep()).points


def test_repeats_differ_and_the_point_stays() -> None:
    ids = {run_id(config(), repeat) for repeat in range(100)}
    assert len(ids) == 100
    assert point_id(config()) not in ids


def test_equal_numbers_have_equal_ids_however_they_are_written() -> None:
    written = [0.001, "1e-3", "0.001", 1e-3]
    ids = {point_id(config(horovod={"cycle_time_ms": value})) for value in written}
    assert len(ids) == 1
    assert point_id(config(batch_size=75.0)) == point_id(config())


def test_what_has_no_meaning_is_in_no_id() -> None:
    none = config(engine="none")
    assert point_id(config(engine="none", backend="mpi", horovod={"groups": 3})) == point_id(none)
    assert point_id(config(engine="none", launcher="mpirun")) == point_id(none)
    ddp = config(engine="ddp")
    assert point_id(config(engine="ddp", horovod={"cycle_time_ms": 9})) == point_id(ddp)
    explicit = config(placement="1x2")
    assert point_id(config(placement="1x2", placement_policy="spread")) == point_id(explicit)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "engine": st.sampled_from(["horovod", "ddp", "none"]),
            "backend": st.sampled_from([None, "nccl", "mpi", "gloo"]),
            "placement": st.sampled_from([1, 4, "1x1", "2x4", "8+2"]),
            "batch_size": st.integers(1, 10**6),
            "cores_per_rank": st.sampled_from(["fixed", "share", 1, 7]),
            "seed": st.integers(0, 9),
            "workload": st.fixed_dictionaries(
                {"name": st.just("w")},
                optional={
                    "a": st.booleans(),
                    "b": st.floats(allow_nan=False, allow_infinity=False),
                },
            ),
            "horovod": st.fixed_dictionaries(
                {}, optional={"cycle_time_ms": st.floats(0, 100), "groups": st.integers(0, 9)}
            ),
            "measure": st.fixed_dictionaries(
                {}, optional={"instruments": st.sampled_from([[], ["phases"]])}
            ),
        },
    )
)
def test_the_fast_form_is_pydantics_own(keys: dict[str, Any]) -> None:
    made = config(**keys)
    plain = made.model_dump(mode="json", exclude_defaults=True)
    assert canonical(made) == plain
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    assert point_id(made) == hashlib.sha256(text.encode()).hexdigest()[:16]
