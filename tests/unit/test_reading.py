from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import reading
from harness.analysis.collecting import load_arrow
from harness.analysis.results import load_results
from harness.errors import StoreError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, failure


def _resealed(path: Path, **changes: Any) -> None:
    """Change fields of a record's window and give it a checksum that fits."""
    data = json.loads(path.read_text())
    data["window"] |= changes
    text = json.dumps(data | {"sha256": ""}, indent=1)
    # The record's own way to seal is of its typed text, which refuses what is planted here.
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(text.replace('"sha256": ""', f'"sha256": "{digest}"'))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return factories.write_results(tmp_path / "s", factories.records((1, 2), blocks=2))


def _planted(sweep: Path) -> Path:
    return next(p for p in sorted((sweep / "runs").iterdir()) if _is_point(p))


def _is_point(path: Path) -> bool:
    made = RunRecord.model_validate_json(path.read_text())
    return made.resolved.placement == (2,) and made.config.engine == "horovod"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"throughput_samples_per_s": math.nan}, "per_s: Input should be a finite number"),
        ({"last_loss": math.inf}, "last_loss: Input should be a finite number"),
        ({"throughput_samples_per_s": -5.0}, "its throughput is not above 0"),
        ({"throughput_samples_per_s": 10**400}, "per_s: Input should be a valid number"),
        ({"steps": 10**30}, "its numbers are none that can be measured"),
        ({"throughput_samples_per_s": 0.0}, "its numbers are none that can be measured"),
        # Finite, and yet the ratio of two of them would be more than a number can hold.
        ({"throughput_samples_per_s": 1e300}, "its throughput is none that can be measured"),
        ({"throughput_samples_per_s": 1e-300}, "its throughput is none that can be measured"),
        (
            {"throughput_samples_per_s": None},
            "no record of this schema: window.throughput_samples_per_s: Input should be",
        ),
    ],
)
def test_a_record_with_impossible_numbers_is_a_failure(
    sweep: Path, changes: dict[str, Any], words: str
) -> None:
    whole = load_results(sweep)
    path = _planted(sweep)
    _resealed(path, **changes)
    found = load_results(sweep)
    (fault,) = found.failures
    assert (fault.status, fault.run_id) == ("unreadable", path.stem)
    assert words in fault.cause
    assert path.name in fault.cause
    launches = [sum(len(p.launches) for c in r.curves for p in c.points) for r in (whole, found)]
    assert launches[1] == launches[0] - 1


def test_several_processes_read_what_one_does(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = sweep / "runs"
    (runs / f"{'f' * 16}.json").write_text("cut off {")
    bad = failure(config("horovod", 4, backend="mpi"))
    (runs / f"{bad.run_id}.attempt-1.json").write_bytes(bad.text())
    alone = load_arrow(sweep)
    (sweep / "table.parquet").unlink()
    started: list[Any] = []
    whole = reading._started
    monkeypatch.setattr(reading, "_SHARE", 4)
    monkeypatch.setattr(reading.os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(
        reading, "_started", lambda store: started.append(whole(store)) or started[-1]
    )
    assert load_arrow(sweep).equals(alone)
    assert len(started) == 2
    assert [one.returncode for one in started] == [0, 0]


def test_what_a_process_could_not_read_is_read_again_and_its_error_raised(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = load_arrow(sweep)
    (sweep / "table.parquet").unlink()
    monkeypatch.setattr(reading, "_SHARE", 4)
    monkeypatch.setattr(reading.os, "sched_getaffinity", lambda _: {0, 1})
    with monkeypatch.context() as broken:
        broken.setattr(reading.sys, "executable", "/bin/false")
        assert load_arrow(sweep).equals(alone)
    (sweep / "table.parquet").unlink()
    last = sorted((sweep / "runs").iterdir())[-1]  # in a process's share
    last.write_text(json.dumps(json.loads(last.read_text()) | {"schema_version": 99}))
    with pytest.raises(StoreError, match="99"):
        load_arrow(sweep)
