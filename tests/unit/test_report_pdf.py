"""How a Chromium is found and asked for a PDF, with small programs in its place."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from harness.analysis.report import pdf
from harness.cli.report import command_report
from harness.errors import AnalysisError, MissingDependencyError
from tests import factories
from tests.factories import config, record

GOOD = """
for argument in "$@"; do
  case "$argument" in --print-to-pdf=*) printf '%%PDF-1.4\\n%%%%EOF\\n' > "${argument#*=}";; esac
done
"""


def browser(folder: Path, script: str, name: str = "chromium") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_without_a_browser_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="apt install chromium"):
        pdf.find_browser()
    factories.write_results(tmp_path / "s", [record(config("horovod", 2))])
    with pytest.raises(MissingDependencyError):
        command_report("s", None, True, tmp_path, base=None, mixed=False)
    assert not (tmp_path / "s" / "report.html").exists()  # said before any work


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_each_of_its_names_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    there = browser(tmp_path, "", name)
    assert pdf.find_browser() == there


def test_the_sandbox_is_off_for_root_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path("/x")
    for user, off in ((0, True), (1000, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        argv = pdf.command("chromium", place, place / "a.html", place / "a.pdf")
        assert ("--no-sandbox" in argv) is off
    assert argv[-1] == "file:///x/a.html"
    assert "--user-data-dir=/x/profile" in argv
    assert "--host-resolver-rules=MAP * ~NOTFOUND" in argv


def test_the_browser_gets_a_home_of_its_own_that_is_gone_afterwards(tmp_path: Path) -> None:
    script = f'{GOOD}\necho "$HOME" > {tmp_path}/home'
    assert pdf.pdf_bytes(b"<p>", browser(tmp_path, script)).startswith(b"%PDF-")
    home = Path((tmp_path / "home").read_text().strip())
    assert home != Path.home()
    assert not home.exists()


@pytest.mark.parametrize("script", ["echo broken >&2; exit 1", f"{GOOD.replace('%%%%EOF', '')}"])
def test_half_a_pdf_is_none(tmp_path: Path, script: str) -> None:
    with pytest.raises(AnalysisError, match=r"printed no PDF; the last it said: (broken|nothing)"):
        pdf.pdf_bytes(b"<p>", browser(tmp_path, script))


def test_a_browser_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    with pytest.raises(AnalysisError, match="printed no PDF in 15 s"):
        pdf.pdf_bytes(b"<p>", browser(tmp_path, script), limit_s=15.0)
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    deadline = time.monotonic() + 60
    while _lives(child):  # a kill takes effect when the system comes to it
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _lives(process: Path) -> bool:
    try:
        return process.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
