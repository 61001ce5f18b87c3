"""The same page as PDF, printed by a headless Chromium: no shell, no network, no profile left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from harness.errors import AnalysisError, MissingDependencyError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT_S = 180.0
_PDF_HEAD, _PDF_END = b"%PDF-", b"%%EOF"


def find_browser() -> str:
    """Return the path of a Chromium; MissingDependencyError where none is on the PATH."""
    for name in BROWSERS:
        found = shutil.which(name)
        if found:
            return found
    raise MissingDependencyError(
        f"--pdf needs a Chromium on the PATH ({', '.join(BROWSERS)}); install one, e.g. "
        "apt install chromium, or print the HTML file from any browser"
    )


def pdf_bytes(page: bytes, browser: str, limit_s: float = LIMIT_S) -> bytes:
    """Return ``page``, an HTML file's content, as PDF.

    Raises AnalysisError where the browser gives none, or takes longer than ``limit_s`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="hvdscale-pdf-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        source, target = folder / "report.html", folder / "report.pdf"
        source.write_bytes(page)
        said = _run(command(browser, folder, source, target), folder, limit_s)
        data = target.read_bytes() if target.is_file() else b""
    if not data.startswith(_PDF_HEAD) or _PDF_END not in data[-64:]:
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "nothing")
        raise AnalysisError(
            f"{browser} printed no PDF; the last it said: {last[:300]}; print the HTML file from "
            "any browser instead"
        )
    return data


def command(browser: str, folder: Path, source: Path, target: Path) -> list[str]:
    """Return the argv that prints ``source`` into ``target``, with all it keeps in ``folder``."""
    return [
        browser,
        "--headless",
        # Only root needs it; Chromium does not start as root with its sandbox.
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        "--disable-gpu",
        "--disable-dev-shm-usage",  # containers have little of it
        "--no-first-run",
        "--no-default-browser-check",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        "--disable-extensions",
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        "--no-pdf-header-footer",
        f"--print-to-pdf={target}",
        source.as_uri(),
    ]


def _run(argv: list[str], folder: Path, limit_s: float) -> str:
    """Run the browser and return what it said; it and its children end with this."""
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    log = folder / "browser.log"  # not a pipe, which a child that lives on would keep open
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(
                argv,
                env=os.environ | home,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # so that its children can be ended with it
            )
        except OSError as error:
            raise AnalysisError(f"{argv[0]}: cannot be started: {error.strerror}") from error
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AnalysisError(
                f"{argv[0]}: printed no PDF in {limit_s:.0f} s; "
                "print the HTML file from any browser"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return log.read_text(encoding="utf-8", errors="replace")
