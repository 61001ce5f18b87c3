"""The package as others install it: from its wheel, away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*argv: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the tracked files and install it into a folder."""
    source = tmp_path_factory.mktemp("source")
    names = ("harness", "slurm", "workloads", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
    copied = run("cp", "-r", *[str(ROOT / name) for name in names], str(source), cwd=ROOT)
    assert copied.returncode == 0, copied.stderr
    python = sys.executable
    wheels = tmp_path_factory.mktemp("wheels")
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels))
    built = run(*pip, "wheel", *options, str(source), cwd=source)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("hvdscale-*.whl")
    target = tmp_path_factory.mktemp("target")
    done = run(*pip, "install", "--no-deps", "--target", str(target), str(wheel), cwd=target)
    assert done.returncode == 0, done.stderr
    return target


def test_the_package_is_the_wheels_own(installed: Path, tmp_path: Path) -> None:
    code = "import harness, workloads; print(harness.__file__, workloads.__file__)"
    # -P: not the current folder; an editable install of the checkout must not come first either.
    done = run(sys.executable, "-P", "-c", code, cwd=tmp_path, path=installed)
    assert all(name.startswith(str(installed)) for name in done.stdout.split()), done.stdout


def test_presets_come_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    command = (sys.executable, "-P", "-m", "harness", "run", "demo", "--dry-run", "--slots", "2")
    done = run(*command, cwd=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    assert "harness bench --run" in done.stdout.replace("-m harness", "harness")
    assert list(tmp_path.iterdir()) == []


def test_sites_come_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    """Through a link, harness/sites; the checkout's own are in slurm/sites."""
    command = (sys.executable, "-P", "-m", "harness", "site", "ls", "--json")
    done = run(*command, cwd=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    found = {site["name"]: Path(site["path"]) for site in json.loads(done.stdout)}
    assert set(found) >= {path.stem for path in (ROOT / "slurm" / "sites").glob("*.yaml")}
    assert found["alpha"] == installed / "harness" / "sites" / "alpha.yaml"
    assert found["alpha"].is_file()
    assert not found["alpha"].is_symlink()


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    done = run(str(installed / "bin" / "hvdscale"), "--version", cwd=tmp_path, path=installed)
    assert done.stdout.startswith("hvdscale ")
