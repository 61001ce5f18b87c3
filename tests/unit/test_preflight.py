"""The preflight lists all that is missing at once, and finds a fitting Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "preflight.sh"
SYSTEM_TOOLS = ("sh", "uname", "df", "awk", "cut", "cat", "make")
# Stands for an interpreter: says what it lacks on "-", its version on "-c".
FAKE_PYTHON = """#!/bin/sh
if [ "$1" = - ]; then cat >/dev/null; echo "{lacks}"; else echo 3.11; fi
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder of commands that stands for a whole machine's PATH, all well."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in SYSTEM_TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (folder / tool).symlink_to(found)
    command(folder, "g++", "#!/bin/sh\necho 12.2.0\n")
    command(folder, "python3.11", FAKE_PYTHON.format(lacks=""))
    return folder


def command(folder: Path, name: str, text: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def preflight(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    where = {"PREFLIGHT_DIR": str(folder), "PREFLIGHT_MIB": "1", "PATH": str(folder)}
    return subprocess.run(
        [str(folder / "sh"), str(SCRIPT)],
        env={**where, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_machine_with_everything_names_its_python(machine: Path) -> None:
    done = preflight(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{machine}/python3.11\n"


def test_everything_missing_is_listed_at_once(machine: Path) -> None:
    for name in ("g++", "make", "python3.11"):
        (machine / name).unlink()
    done = preflight(machine, PREFLIGHT_MIB="999999999")
    assert done.returncode == 2
    assert done.stdout == ""
    items = [line[4:] for line in done.stderr.splitlines() if line.startswith("  - ")]
    assert len(items) == 4
    assert items[0].startswith("Python 3.11 or 3.12")
    assert items[1].startswith("g++ 11 or newer (g++ is not on the PATH)")
    assert items[2].startswith("make")
    assert items[3].startswith(f"999999999 MiB of free disk in {machine}")
    assert "apt install python3 python3-venv python3-dev" in done.stderr


def test_venv_and_headers_are_named_apart(machine: Path) -> None:
    command(machine, "python3.11", FAKE_PYTHON.format(lacks="venv headers"))
    done = preflight(machine)
    assert done.returncode == 2
    assert "apt install python3.11-venv" in done.stderr
    assert "apt install python3.11-dev" in done.stderr


def test_a_second_python_that_fits_is_taken(machine: Path) -> None:
    command(machine, "python3.11", FAKE_PYTHON.format(lacks="headers"))
    command(machine, "python3.12", FAKE_PYTHON.format(lacks=""))
    assert preflight(machine).stdout == f"{machine}/python3.12\n"


def test_the_python_that_was_asked_for_is_the_only_one(machine: Path) -> None:
    command(machine, "other", FAKE_PYTHON.format(lacks="version"))
    done = preflight(machine, PYTHON=str(machine / "other"))
    assert done.returncode == 2
    assert f"looked for: {machine}/other" in done.stderr


def test_a_shim_that_does_not_run_is_passed_over(machine: Path) -> None:
    command(machine, "python3.11", "#!/bin/sh\nexit 127\n")
    command(machine, "python3", FAKE_PYTHON.format(lacks=""))
    assert preflight(machine).stdout == f"{machine}/python3\n"


def test_an_old_compiler_is_refused(machine: Path) -> None:
    command(machine, "g++", "#!/bin/sh\necho 10\n")
    done = preflight(machine)
    assert done.returncode == 2
    assert "g++ is version 10" in done.stderr


@pytest.mark.parametrize(
    ("system", "processor"), [("Linux", "aarch64"), ("Darwin", "x86_64"), ("FreeBSD", "amd64")]
)
def test_other_platforms_are_refused_by_name(machine: Path, system: str, processor: str) -> None:
    command(
        machine,
        "uname",
        f'#!/bin/sh\nif [ "$1" = -s ]; then echo {system}; else echo {processor}; fi\n',
    )
    done = preflight(machine)
    assert done.returncode == 2
    assert f"this is {processor} {system}" in done.stderr


def test_this_machine_fits() -> None:
    done = subprocess.run(
        ["sh", str(SCRIPT)],
        env={**os.environ, "PREFLIGHT_MIB": "1"},
        cwd=SCRIPT.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).exists()
