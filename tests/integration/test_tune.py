"""``hvdscale tune`` on two real ranks, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.config import expand, load_sweep
from harness.store import Store
from tests.requirements import require_modules, require_mpi

ROOT = Path(__file__).parents[2]
ARGV = """\
tune stress_strain --backend mpi -n 2 --slots 2 --batch-size 75 --trials 3 --blocks 2
--no-autotune --out tuned.yaml --json --set workload.samples=2000 --set cores_per_rank=1
--set measure.window_s=0.2 --set measure.warmup_steps=2 --set measure.min_steps=5
"""

SWEEP = """\
name: tuned
workload: {name: stress_strain, samples: 2000}
backend: mpi
placement: 1x2
batch_size: 75
base: null
horovod: {preset: tuned.yaml}
"""


def hvdscale(folder: Path, data_dir: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "harness", *ARGV.split()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HVDSCALE_DATA_DIR": str(data_dir)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_searches_validates_and_writes_and_does_nothing_twice(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_modules("torch", "horovod", "optuna")
    require_mpi()
    found = hvdscale(tmp_path, data_dir)

    search = Store.open(tmp_path / "results" / "tune-stress_strain")
    assert [trial["origin"] for trial in found["trials"]] == ["default", "search", "search"]
    for trial in found["trials"]:
        record = search.read(trial["run_id"])
        assert record.window is not None
        assert record.window.throughput_samples_per_s == trial["rate"]
        assert record.config.horovod.model_dump(mode="json") == trial["tuning"]
        assert record.backend is not None
        assert record.backend.proven == "mpi"
    assert search.done_ids() == {trial["run_id"] for trial in found["trials"]}
    best = max(found["trials"], key=lambda trial: float(trial["rate"]))
    assert found["winner"] == best["tuning"]

    # On two busy cores any of them may be the fastest; the default needs no validation.
    arms = ["default", "winner"] if found["knobs"] else []
    assert [(arm["name"], arm["blocks"]) for arm in found["arms"]] == [(name, 2) for name in arms]
    if arms:
        validation = Store.open(Path(found["validation"]))
        assert len(validation.done_ids()) == 4
        assert found["over_default"]["ratio"]["low"] < found["over_default"]["ratio"]["high"]

    (tmp_path / "sweep.yaml").write_text(SWEEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (point,) = expand(load_sweep("sweep.yaml")).points
    assert point.horovod.model_dump(mode="json") == found["winner"]

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*/runs/*")}
    logs = sorted((tmp_path / "results").glob("*/logs/*/*"))
    text = (tmp_path / "tuned.yaml").read_bytes()
    assert hvdscale(tmp_path, data_dir) == found
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*/runs/*")}
    assert after == before
    assert sorted((tmp_path / "results").glob("*/logs/*/*")) == logs
    assert (tmp_path / "tuned.yaml").read_bytes() == text
