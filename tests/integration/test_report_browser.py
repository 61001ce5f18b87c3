"""The report in a real browser: it fits, sorts, loads nothing, and runs nothing of a record."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.report import report_html
from harness.analysis.report.pdf import pdf_bytes
from harness.analysis.results import Results, load_results
from tests import factories
from tests.factories import config, failure
from tests.integration.devtools import Page, require_chromium

HOSTILE = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
LONG = "a_name_without_any_space_" * 12


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A sweep whose names would be scripts, and are wider than a phone."""
    broken = failure(config("horovod", 8, 75, backend="mpi"), cause=f"{HOSTILE} {LONG}")
    records = [*factories.records((1, 2, 4, 16), ("mpi",), (75,), blocks=3), broken]
    folder = tmp_path_factory.mktemp("report") / "sweep"
    found = load_results(factories.write_results(folder, records))
    first, *rest = found.curves
    return replace(found, name=HOSTILE, curves=(replace(first, label=f"{HOSTILE} {LONG}"), *rest))


@pytest.fixture(scope="module")
def file(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_html(results), encoding="utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_and_nothing_of_it_goes_wrong(
    page: Page, file: Path, width: int, dark: bool
) -> None:
    page.events.clear()
    page.open(file, width=width, dark=dark)
    assert page.value("innerWidth") == width
    assert page.value("document.documentElement.scrollWidth") <= width
    # What is too wide scrolls in a box of its own.
    assert page.value("[...document.querySelectorAll('.scroll, pre')].every("
                      "box => box.getBoundingClientRect().right <= innerWidth)")  # fmt: skip
    wide = page.value("[...document.querySelectorAll('.scroll')].some("
                      "box => box.scrollWidth > box.clientWidth)")  # fmt: skip
    assert wide or width > 390
    images = "[...document.images]"
    assert page.value(f"{images}.length") > 3
    assert page.value(f"{images}.every(one => one.complete && one.naturalWidth > 0 && one.alt)")
    black = page.value("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    assert black is dark
    _nothing_was_said_or_asked_for(page, file)


def _nothing_was_said_or_asked_for(page: Page, file: Path) -> None:
    kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    assert [event for event in page.events if event["method"] in kinds] == []
    asked = [event["params"]["request"]["url"] for event in page.events
             if event["method"] == "Network.requestWillBeSent"]  # fmt: skip
    # An image inside the page counts as a request, too, but asks nobody.
    assert {url for url in asked if not url.startswith("data:image/")} <= {file.as_uri()}
    assert file.as_uri() in asked  # so requests are really told


def test_names_of_records_run_nothing(page: Page, file: Path) -> None:
    page.open(file, width=1280)
    assert page.value("document.title") == f"{HOSTILE}: scaling report"
    assert page.value("document.scripts.length") == 1
    assert page.value("document.body.innerText").count("<script>document.title='run'") > 2


def test_the_policy_stops_what_would_be_loaded_or_run(page: Page, file: Path) -> None:
    """Not by luck: a script and a picture that someone writes into the page come to nothing."""
    page.open(file, width=1280)
    page.events.clear()
    page.value(
        "window.stopped = [];"
        "addEventListener('securitypolicyviolation', e => stopped.push(e.effectiveDirective));"
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s); const i = new Image(); i.src = 'https://example.org/x.png';"
        "document.body.append(i); })()"
    )
    deadline = time.monotonic() + 60
    while len(page.value("stopped")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert sorted(page.value("stopped")) == ["img-src", "script-src-elem"]
    assert page.value("window.ran") is None
    answered = [event for event in page.events if event["method"] == "Network.responseReceived"]
    assert answered == []


TABLE = "#speedup table"


def _column(page: Page, index: int) -> list[str]:
    found: list[str] = page.value(
        f"[...document.querySelectorAll('{TABLE} tbody tr')]"
        f".map(row => row.cells[{index}].innerText)"
    )
    return found


def _heads(page: Page) -> list[str]:
    found: list[str] = page.value(
        f"[...document.querySelectorAll('{TABLE} thead th')].map(head => head.innerText.trim())"
    )
    return found


def _sort_state(page: Page, index: int) -> str | None:
    found: str | None = page.value(
        f"document.querySelectorAll('{TABLE} thead th')[{index}].getAttribute('aria-sort')"
    )
    return found


@pytest.mark.parametrize("width", [1280, 390])
def test_a_click_on_a_head_sorts_up_down_and_back(page: Page, file: Path, width: int) -> None:
    page.open(file, width=width)
    before = _column(page, 0)
    sync = _heads(page).index("Exposed sync")
    as_it_was = _column(page, sync)

    page.click(f"{TABLE} thead button", sync)
    assert _sort_state(page, sync) == "ascending"
    up = _column(page, sync)
    known = [text for text in up if text != "–"]
    assert len(known) == 3
    assert [_seconds(text) for text in known] == sorted(map(_seconds, known))
    assert up[-2:] == ["–", "–"]  # one rank alone, and the base

    page.click(f"{TABLE} thead button", sync)
    assert _sort_state(page, sync) == "descending"
    assert _column(page, sync) == [*reversed(known), "–", "–"]

    page.click(f"{TABLE} thead button", sync)
    assert _sort_state(page, sync) is None
    assert _column(page, sync) == as_it_was
    assert _column(page, 0) == before


def _seconds(text: str) -> float:
    number, unit, *_ = text.split()
    return float(number) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_a_keyboard_sorts_numbers_as_numbers(page: Page, file: Path) -> None:
    page.open(file, width=1280)
    page.value(f"document.querySelectorAll('{TABLE} thead button')[1].focus()")
    page.press("Enter", 13, "\r")
    assert _sort_state(page, 1) == "ascending"
    assert [int(text) for text in _column(page, 1)] == [1, 1, 2, 4, 16]
    page.press("Enter", 13, "\r")
    assert [int(text) for text in _column(page, 1)] == [16, 4, 2, 1, 1]


def test_the_browser_prints_the_page_as_pdf(file: Path) -> None:
    found = pdf_bytes(file.read_bytes(), require_chromium())
    assert found.startswith(b"%PDF-")
    assert found.rstrip().endswith(b"%%EOF")
    assert found.count(b"/Type /Page\n") + found.count(b"/Type /Page ") > 2
