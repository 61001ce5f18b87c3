"""The page in a real browser, of records in which every text that can be is markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.report import report_html
from harness.analysis.results import load_results
from harness.record import RunRecord
from harness.store import Store
from tests import factories
from tests.faults import hostile_records as hostile
from tests.integration.devtools import Page

#: Ends attributes, elements and a script, and says so in the title if any of it is run.
MARKUP = (
    "'\"></style></title></script></svg><img src=x onerror=\"document.title='run'\">"
    "<script>document.title='run'</script><svg onload=\"document.title='run'\">"
    "<a href=\"javascript:document.title='run'\">&lt;b&gt; {{7*7}} ${7*7} ]]> <!--"
)
FOLDER = "s<img src=x onerror=alert(1)>&amp;'\""
#: What a record is found, or understood, by.
KEPT = ("run_id", "sha256", "schema_version", "started_at", "ended_at")


def _planted(one: RunRecord) -> RunRecord:
    """Return a record with markup in each of its texts that may be any text, and in new ones."""
    data: dict[str, Any] = json.loads(one.text())
    data["argv"] = [MARKUP]
    data["slurm"] = dict.fromkeys(("job_id", "partition", "job_name", "cluster"), MARKUP)
    data["slurm"] |= {"nodelist": [MARKUP] * 7}
    data["placed"] = {"hosts": [MARKUP], "ranks_per_host": [1], "local_ranks": [0]}
    data["provenance"] |= {"gpu_model": MARKUP, MARKUP: MARKUP}
    for place in list(hostile.places(data)):
        value: Any = data
        for key in place:
            value = value[key]
        if not isinstance(value, str) or place[0] in KEPT or place == ("block", "allocation"):
            continue
        changed = hostile.put(data, place, MARKUP)
        try:
            RunRecord.model_validate(changed)
        except ValueError:
            continue
        data = changed
    return RunRecord.model_validate(data).sealed()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    good = factories.records((1, 2, 4), ("mpi",), (75,), blocks=2)
    broken = factories.failure(factories.config("horovod", 8, 75, backend="mpi"))
    made = [_planted(one) for one in (*good, broken)]
    assert {one.error.cause for one in made if one.error} == {MARKUP}
    assert made[0].config.workload.name == MARKUP
    assert made[0].resolved.hosts == (MARKUP,)
    folder = tmp_path_factory.mktemp("markup") / FOLDER
    store = Store.open(factories.write_results(folder, made))
    (store.runs / "<b>.json").write_text("{")
    path = tmp_path_factory.mktemp("page") / "report.html"
    results = load_results(folder, base="none@1", mixed=True)
    path.write_text(report_html(results), encoding="utf-8")
    return path


def test_all_of_it_is_text(page: Page, file: Path) -> None:
    page.open(file, width=1280)
    page.events.clear()
    page.open(file, width=390)
    assert page.value("document.title").startswith("s<img")  # the folder's name, whole
    assert page.value("document.scripts.length") == 1
    inside = (
        "[...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => "
        "a.name.startsWith('on') || /^\\s*javascript:/i.test(a.value))).length"
    )
    assert page.value(inside) == 0
    assert page.value("document.querySelectorAll('a[href^=\"javascript\"], iframe').length") == 0
    images = page.value("[...document.images].filter(i => !i.src.startsWith('data:')).length")
    assert images == 0
    text = page.value("document.body.innerText")
    assert text.count("<script>document.title='run'</script>") > 5  # seen, as it is
    assert "{{7*7}}" in text
    asked = [
        event["params"]["request"]["url"]
        for event in page.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert {url for url in asked if not url.startswith("data:image/")} == {file.as_uri()}
    kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")
    assert [event for event in page.events if event["method"] in kinds] == []
