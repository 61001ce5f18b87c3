"""Two real ranks that read their data from a folder of the node's own."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from harness.record import RunRecord
from harness.store import Store
from tests.requirements import require_modules

ROOT = Path(__file__).parents[2]

SWEEP = """\
name: local
workload: {name: stress_strain, samples: 2000}
engine: ddp
backend: gloo
placement: 1x2
batch_size: 20
data: disk
cores_per_rank: 1
measure: {warmup_steps: 2, window_s: 0.2, min_steps: 5, blocks: 1, instruments: [], timeout_s: 120}
base: null
"""


class Job:
    """A job of one node, with scratch that only its own variable names."""

    def __init__(self, folder: Path, data_dir: Path) -> None:
        self.folder = folder
        self.local = folder / "local"
        self.local.mkdir()
        self.env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "HVDSCALE_DATA_DIR": str(data_dir),
            "HVDSCALE_SCRATCH": "$NODES_OWN",
            "NODES_OWN": str(self.local),
        }
        (folder / "local.yaml").write_text(SWEEP)

    def python(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *argv],
            cwd=self.folder,
            env=self.env | more,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return self.python("harness", "run", "local.yaml", "--slots", "2", *argv)

    @property
    def data(self) -> Path:
        (folder,) = self.local.glob("hvdscale-*")
        return folder / "data"

    def records(self, status: str) -> list[RunRecord]:
        store = Store.open(self.folder / "results" / "local")
        found = [one for one in store.records() if one.status == status]
        return sorted(found, key=lambda one: one.started_at)


@pytest.mark.slow
def test_ranks_read_a_copy_that_is_made_once_and_cleaned_away(
    tmp_path: Path, data_dir: Path
) -> None:
    require_modules("torch")
    job = Job(tmp_path, data_dir)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = [path for path in job.data.iterdir() if path.is_file()]
    (record,) = job.records("ok")
    assert record.data_source is not None
    assert record.data_source.folder == str(job.data)
    assert record.data_source.copied_bytes == file.stat().st_size
    assert record.placed is not None
    assert (record.placed.ranks_per_host, record.placed.local_ranks) == ((2,), (0, 1))

    # That they read there, and copy once, shows where the copy is not what it should be.
    facts = file.stat()
    with file.open("r+b") as content:
        content.write(b"no header")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert job.run("--set", "measure.blocks=2").returncode == 1
    (failed,) = job.records("failed")
    assert failed.error is not None
    assert str(file) in failed.error.cause

    cleaned = job.python("harness.scratch", "clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert list(job.local.iterdir()) == []


def test_typed_by_hand_a_variable_that_is_not_set_is_named(tmp_path: Path, data_dir: Path) -> None:
    require_modules("torch")
    env = Job(tmp_path, data_dir).env | {"HVDSCALE_SCRATCH": "$NOT_SET_HERE"}
    path = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    start = ["torchrun", "--nproc-per-node", "2", "--no-python"]
    short = ["--set", "workload.samples=2000", "--set", "measure.window_s=0.2"]
    done = subprocess.run(
        [*start, "hvdscale", "bench", "stress_strain", "--batch-size", "20", *short],
        cwd=tmp_path,
        env=env | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    user = pwd.getpwuid(os.getuid()).pw_name
    said = f"on node {os.uname().nodename}: NOT_SET_HERE is not set there; set it"
    assert f"hvdscale: error: scratch $NOT_SET_HERE/hvdscale-{user} {said}" in done.stderr
