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
    seconds = os.environ.get("HVDSCALE_FUZZ_S", "5")
    argv = [sys.executable, "-m", "tests.fuzz", name, f"-max_total_time={seconds}", "-timeout=300",
            "-rss_limit_mb=2048", f"-artifact_prefix={tmp_path}/"]  # fmt: skip
    done = subprocess.run(
        argv, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
