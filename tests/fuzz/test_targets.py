"""The targets of the fuzzer take anything, by chance and, in a short run of each, by coverage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, check


@settings(max_examples=60)
@given(st.sampled_from(sorted(TARGETS)), st.binary(max_size=200))
def test_any_bytes(name: str, data: bytes) -> None:
    check(name, data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_by_coverage(tmp_path: Path, name: str) -> None:
    # The same inputs each time, but where somebody looks for new ones.
    seconds = os.environ.get("HVDSCALE_FUZZ_S")
    how = [f"-max_total_time={seconds}"] if seconds else ["-seed=1", "-runs=20000"]
    argv = [sys.executable, "-m", "tests.fuzz", name, *how, "-timeout=300", "-rss_limit_mb=2048",
            f"-artifact_prefix={tmp_path}/"]  # fmt: skip
    # It ends without tidying up: what it leaves is left there.
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        argv, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
