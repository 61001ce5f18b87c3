"""Which configs can be a curve's base is looked up, and not tried with all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.analysis import scaling
from harness.analysis.match import flat, is_base_of, parsed, shared_key
from harness.analysis.results import load_results
from harness.config.identity import canonical
from tests import factories
from tests.factories import config

BATCHES = tuple(range(10, 50))


def test_a_base_and_its_point_have_one_key() -> None:
    made = [
        config(engine, n, batch, **more)
        for engine, n, more in (
            ("none", 1, {}),
            ("horovod", 1, {"backend": "mpi"}),
            ("horovod", 4, {"backend": "gloo"}),
            ("horovod", 2, {"backend": "mpi", "horovod": {"cycle_time_ms": 5}}),
            ("ddp", 2, {"backend": "gloo"}),
            ("none", 1, {"seed": 2}),
            ("none", 1, {"measure": {"instruments": ["phases"]}}),
        )
        for batch in (75, 700)
    ]
    texts = [json.dumps(canonical(one)) for one in made]
    fitting = [(a, b) for a in texts for b in texts if is_base_of(a, b)]
    assert any(parsed(a)["engine"] != parsed(b)["engine"] for a, b in fitting)
    assert all(shared_key(a) == shared_key(b) for a, b in fitting)
    assert len({shared_key(text) for text in texts}) == 4  # two batches; one of two seeds


@pytest.mark.parametrize(
    ("engine", "tuning"),
    [("horovod", {"cycle_time_ms": 5}), ("ddp", {"gradient_as_bucket_view": True})],
)
def test_an_engines_tuning_is_its_own(engine: str, tuning: dict[str, object]) -> None:
    """It keeps no point from its base, and no other engine's points are told apart by it."""
    base, plain, tuned = (
        json.dumps(canonical(one))
        for one in (
            config("none", 1, 75),
            config(engine, 2, 75, backend="gloo"),
            config(engine, 2, 75, backend="gloo", **{engine: tuning}),
        )
    )
    assert is_base_of(base, tuned)
    assert is_base_of(base, plain)
    assert shared_key(base) == shared_key(tuned)
    own = {key for key in flat(tuned) if key.partition(".")[0] in ("horovod", "ddp")}
    assert {key.partition(".")[0] for key in own} == {engine}
    assert not any(key.startswith(("horovod.", "ddp.")) for key in flat(base))
    one, two = (
        json.dumps(canonical(config(engine, 1, 75, **more))) for more in ({}, {engine: tuning})
    )
    assert not is_base_of(one, tuned)  # of one engine, with one tuning
    assert not is_base_of(one, two)


def test_equal_numbers_are_one_key() -> None:
    assert shared_key('{"a": 1, "b": null, "c": [1]}') == shared_key('{"a": 1.0, "c": [1.0]}')
    assert shared_key('{"a": {"x": 1}}') != shared_key('{"a": {"x": 2}}')


def test_many_curves_do_not_try_every_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = factories.records((2,), ("mpi",), BATCHES, blocks=1)
    tried = []

    def counted(base: str, point: str) -> bool:
        tried.append((base, point))
        return is_base_of(base, point)

    monkeypatch.setattr(scaling, "is_base_of", counted)
    found = load_results(factories.write_results(tmp_path / "s", records))
    assert len(found.curves) == 2 * len(BATCHES)
    assert all(point.speedup is not None for curve in found.curves for point in curve.points)
    assert len(tried) == len(found.curves)
