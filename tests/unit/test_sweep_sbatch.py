"""What ``slurm/sweep.sbatch`` starts, in the environment that Slurm gives an element."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "slurm" / "sweep.sbatch"


def start(folder: Path, *arguments: str, **environ: str) -> tuple[int, list[str], str]:
    """Return exit code, what hvdscale was started with, and what was said."""
    program = folder / "hvdscale"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


def array(task: int, last: int, count: int) -> dict[str, str]:
    return {
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_ARRAY_TASK_MAX": str(last),
        "SLURM_ARRAY_TASK_COUNT": str(count),
    }


def test_an_element_has_its_part_and_the_arguments_as_they_are(tmp_path: Path) -> None:
    code, argv, _ = start(tmp_path, "my sweep.yaml", "--set", "a=[1, 2]", **array(3, 23, 24))
    assert code == 0
    assert argv == ["run", "my sweep.yaml", "--set", "a=[1, 2]", "--share", "3/24"]
    assert start(tmp_path, "s.yaml", **array(0, 0, 1))[1][-1] == "0/1"
    assert start(tmp_path, "s.yaml")[1] == ["run", "s.yaml"]


@pytest.mark.parametrize(("last", "count"), [(9, 5), (8, 5), (7, 2)])  # 5-9, 0-8:2, 3,7
def test_an_array_that_would_leave_parts_out_is_refused(
    tmp_path: Path, last: int, count: int
) -> None:
    code, argv, said = start(tmp_path, "s.yaml", **array(last, last, count))
    assert (code, argv) == (2, [])
    assert f"not all of 0-{last}" in said
    told = start(tmp_path, "s.yaml", **array(last, last, count), SHARES="24")
    assert told == (0, ["run", "s.yaml", "--share", f"{last}/24"], "")
