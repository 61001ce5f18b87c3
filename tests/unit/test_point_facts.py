"""What a launch's environment gives to its ranks and to its record, also when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.runner import point
from harness.spec import RunSpec
from harness.store import Store
from tests.unit import stub_sweep
from tests.unit.stub_sweep import make_sweep


@pytest.mark.parametrize("job", [None, "4711"])
def test_a_failed_launch_has_its_job_and_its_ranks_the_scratch(
    job: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point, "build", stub_sweep.fake_build(lambda config: "raise"))
    for name in ("SLURM_JOB_ID", "HVDSCALE_SCRATCH"):
        monkeypatch.delenv(name, raising=False)
    if job:
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("HVDSCALE_SCRATCH", "$TMPDIR")
    stub_sweep.run(make_sweep(), tmp_path)
    store = Store.open(tmp_path / "stub")
    (key,) = store.attempts()
    record = store.read_failure(*key)
    assert record.slurm == ({"job_id": job, "restart_count": 0} if job else None)
    spec = RunSpec.read(store.logs / key[0] / "1" / "run.json")
    assert spec.scratch == (f"$TMPDIR/hvdscale-{job}" if job else None)
