"""The soak itself, on stub launches alone: one short episode, which must find nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.soak import plan

RUN = Path(__file__).with_name("run.py")


def is_short(made: plan.Episode) -> bool:
    """A killed runner, a second one, damage, and no launch that is waited for."""
    (first, *others) = made.runs
    return (
        not others
        and first.ending == "SIGKILL"
        and 2 < first.ending_after_s < 4
        and first.second == "other host"
        and len(first.damages) >= 2
        and made.blocks * len(made.batches) <= 3
        and set(first.faults.values()) <= {"raise", "segfault", "nothing", "garbage"}
        and len(first.faults) > 0
    )


def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    kinds = ("stub",)
    episode = next(s for s in range(10**6) if is_short(plan.make(s, kinds, may_mount=False)))
    asked = plan.make(episode, kinds, may_mount=False)
    options = ["--kinds", "stub", "--no-mount", "--episode", str(episode), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(RUN), *options],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (written,) = tmp_path.glob("*/summary.json")
    found = json.loads(written.read_text())
    assert found["points"] == len(asked.batches) * asked.blocks
    assert found["launches"] >= found["points"]
    assert (found["lost"], found["duplicated"], found["leaked_processes"]) == (0, 0, 0)
    assert found["broken"] == []
    assert found["faults"]["runner: a second, other host"] == 1
    assert "records lost | 0" in written.with_name("README.md").read_text()
    assert list(tmp_path.glob("hvdscale-soak-*")) == []
