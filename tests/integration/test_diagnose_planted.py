"""A limiter that is planted in real launches is the one that the diagnosis names first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ranks import PROGRAMS, ROOT
from tests.requirements import require_modules, require_mpi

pytestmark = [pytest.mark.alone, pytest.mark.slow]

DELAY_S = 0.08  # as programs/limited/limited.py has it
CYCLE_MS = 80

#: One block: a limiter's size is told, and that it was not tested.
COMMON = """\
engine: horovod
backend: mpi
placement: 1x2
cores_per_rank: 1
data: disk
loader: {workers: 0}
measure: {warmup_steps: 2, window_s: 1, min_steps: 20, blocks: 1, timeout_s: 200}
"""
PAIRED = f"""\
name: paired
workload: limited
batch_size: 8
horovod: {{cycle_time_ms: [1, {CYCLE_MS}]}}
base: none@1
{COMMON}"""
ALONE = f"""\
name: without_base
workload: {{name: limited, plant: [data, straggler, transfer, update, overhead]}}
batch_size: [8, 64]
exclude:
- {{workload.plant: [data, straggler, transfer, update], batch_size: 64}}
base: null
{COMMON}"""


def environment(folder: Path) -> dict[str, str]:
    """Make the workload known by an entry point, as an installed package does."""
    made = folder / "limited-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: limited\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text("[hvdscale.workloads]\nlimited = limited:Limited\n")
    path = os.pathsep.join(map(str, (ROOT, PROGRAMS / "limited", folder)))
    return os.environ | {"PYTHONPATH": path, "HVDSCALE_DATA_DIR": str(folder / "data")}


class Sweeps:
    """A folder in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = environment(folder)

    def hvdscale(self, *argv: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *argv],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def measure(self, sweep: str) -> str:
        name = sweep.split()[1]
        (self._folder / f"{name}.yaml").write_text(sweep)
        self.hvdscale("run", f"{name}.yaml", "--slots", "2")
        return name

    def diagnosed(self, sweep: str) -> dict[str, dict[str, Any]]:
        """Run a sweep; return the diagnoses of its points by what tells their labels apart."""
        told = self.hvdscale("diagnose", self.measure(sweep), "--worst", "9", "--json")
        return {one["label"]: one for one in json.loads(told)}


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    require_modules("torch", "horovod")
    require_mpi()
    return Sweeps(tmp_path_factory.mktemp("limited"))


@pytest.fixture(scope="module")
def paired(sweeps: Sweeps) -> dict[str, dict[str, Any]]:
    return sweeps.diagnosed(PAIRED)


@pytest.fixture(scope="module")
def alone(sweeps: Sweeps) -> dict[str, dict[str, Any]]:
    return sweeps.diagnosed(ALONE)


def the(diagnoses: dict[str, dict[str, Any]], *words: str) -> dict[str, Any]:
    """Return the one diagnosis whose label has all ``words``."""
    (found,) = [one for label, one in diagnoses.items() if all(word in label for word in words)]
    return found


def assert_first(diagnosis: dict[str, Any], limiter: str) -> dict[str, Any]:
    """Assert that ``limiter`` is named first, with what was planted; return its finding."""
    first: dict[str, Any] = diagnosis["findings"][0]
    assert first["limiter"] == limiter, diagnosis["findings"]
    assert first["time_s"]["estimate"] > 0.7 * DELAY_S
    assert first["share_of_lost"] > 0.25  # a busy machine adds to the other parts
    assert first["verdict"] == "one block"
    assert first["evidence"]
    assert first["knobs"]
    return first


def test_a_late_rank_is_named_with_its_phase(alone: dict[str, dict[str, Any]]) -> None:
    first = assert_first(the(alone, "plant straggler"), "stragglers")
    told = " ".join(first["evidence"])
    assert "rank 1 is last" in told
    assert "its forward takes" in told
    assert "rank 1" in first["knobs"][0]["action"]


def test_a_slow_wire_is_transfer(alone: dict[str, dict[str, Any]]) -> None:
    assert_first(the(alone, "plant transfer"), "transfer")


def test_a_long_cycle_is_negotiation(paired: dict[str, dict[str, Any]]) -> None:
    first = assert_first(the(paired, f"cycle {CYCLE_MS} ms"), "negotiation")
    assert first["knobs"][0]["key"] == "horovod.cycle_time_ms"


def test_what_nothing_is_planted_in_does_not_lose_as_much(
    paired: dict[str, dict[str, Any]],
) -> None:
    plain = the(paired, "cycle 1 ms")
    assert plain["lost_s"]["estimate"] < 0.5 * DELAY_S
    assert plain["rank"] == len(paired)


def test_slow_data_is_data(alone: dict[str, dict[str, Any]]) -> None:
    first = assert_first(the(alone, "plant data"), "data")
    assert first["knobs"][0]["key"] == "loader.workers"


def test_a_slow_optimiser_is_update(alone: dict[str, dict[str, Any]]) -> None:
    assert_first(the(alone, "plant update"), "update")


def test_what_no_batch_changes_is_overhead(alone: dict[str, dict[str, Any]]) -> None:
    first = assert_first(the(alone, "plant overhead", "batch 8"), "launch-bound")
    assert "for 8.0 times the samples" in first["evidence"][0]


def test_a_person_reads_the_answer_first(sweeps: Sweeps, alone: dict[str, dict[str, Any]]) -> None:
    """Six points that sleep in most of a step; of the straggler half of it is forward's mean."""
    assert len(alone) == 6
    text = sweeps.hvdscale("diagnose", "without_base", "--worst", "1")
    assert re.match(r"[56] of 6 points spend more than half of the step outside compute", text)
    assert "one block: not tested" in text.splitlines()[0]
