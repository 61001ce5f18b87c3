"""The report as text: what is in it, in which order, and that nothing of a record can harm it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import diagnose as diagnose_module
from harness.analysis.report import figures as figures_module
from harness.analysis.report import report_html, write_report
from harness.analysis.report.document import Paragraph, Section, number_cell
from harness.analysis.report.limits import CURVES, shown
from harness.analysis.report.page import page_html
from harness.analysis.results import Results, load_results
from harness.analysis.scaling import Failure
from harness.cli.report import command_report
from harness.errors import AnalysisError, ConfigError
from harness.record import RunRecord
from tests import factories
from tests.factories import config, failure, record

HOSTILE = "<script>alert('x')</script> \"&\" **bold** [a](javascript:b) ΔƱ\u202e\x1b[31m {{7*7}}"


class Seen(HTMLParser):
    """What a browser would make of a page: its elements, their attributes and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            while self._inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


@pytest.fixture
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a report, and are looked at in other tests."""
    monkeypatch.setattr(figures_module, "_images", lambda _: iter(()))


without_figures = pytest.mark.usefixtures("_no_figures")


def written(folder: Path, records: list[RunRecord], **more: Any) -> Results:
    return load_results(factories.write_results(folder, records), **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A sweep of two backends with one failed launch, and one that a later attempt mended."""
    made = config("horovod", 2, 75, backend="mpi")
    records = [
        *factories.records((1, 2, 4), batches=(75,), blocks=3),
        failure(made, 0),
        failure(config("horovod", 8, 75, backend="gloo"), 0, status="timeout", cause="600 s\nover"),
    ]
    return written(tmp_path_factory.mktemp("report") / "whole", records)


@pytest.fixture(scope="module")
def page(whole: Results) -> str:
    return report_html(whole)


def test_the_answer_comes_first_then_evidence_then_provenance_then_failures(page: str) -> None:
    anchors = re.findall(r'<section id="([a-z]+)"', page)
    assert [a for a in anchors if a in ("answer", "evidence", "provenance", "failed")] == [
        "answer", "evidence", "provenance", "failed",
    ]  # fmt: skip
    assert anchors[1:3] == ["limiter", "advice"]
    parts = ["speedup", "figures", "sync", "phases", "backends", "models", "diagnosis"]
    assert [anchor for anchor in anchors if anchor in parts] == parts


def test_the_answer_names_what_was_measured_base_and_the_best_and_worst_efficiency(
    page: str, whole: Results
) -> None:
    lead = Seen(page).text.partition("Best efficiency")[0]
    assert "stress_strain (torch), weak scaling, CPU" in lead
    assert "horovod over gloo and mpi" in lead
    assert "with 1 to 4 ranks, and the plain step with 1 rank, batch of 75 a rank." in lead
    assert "none@1 (the plain training step on one device, without Horovod)" in lead
    points = [p for c in whole.curves if c.engine != "none" for p in c.points if p.world_size > 1]
    values = [p.efficiency.estimate for p in points if p.efficiency]
    assert f"efficiency on 2 devices or more lies between {min(values):#.3g} [" in lead
    assert f"and {max(values):#.3g} [" in lead
    assert "1 launch gave no measurement" in lead


@without_figures
def test_the_bases_ranks_are_not_said_to_be_the_engines(tmp_path: Path) -> None:
    records = [record(config("none"), is_base=True)]
    records += [
        record(config("horovod", backend="mpi", placement=placement)) for placement in ("2", "1+1")
    ]
    lead = Seen(report_html(written(tmp_path / "s", records))).text.partition("Best efficiency")[0]
    assert (
        "horovod over mpi was measured with 2 ranks on up to 2 nodes, and the plain step with "
        "1 rank, batch of 75 a rank."
    ) in lead
    alone = Seen(report_html(written(tmp_path / "alone", records[:1]))).text
    assert "the plain step without Horovod was measured with 1 rank, batch of 75 a rank." in alone


@without_figures
def test_an_advised_command_has_the_path_of_the_sweeps_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.write_results(tmp_path / "results" / "alloc", factories.records((1, 2), ("mpi",)))
    monkeypatch.chdir(tmp_path)
    text = Seen(report_html(load_results(Path("results/alloc")))).text
    assert "hvdscale train results/alloc/sweep.yaml --set" in text
    # A path from the root says nothing to a colleague, and is another on every host.
    text = Seen(report_html(load_results(tmp_path / "results" / "alloc"))).text
    assert "hvdscale train RESULTS/alloc/sweep.yaml --set" in text
    assert str(tmp_path) not in text


def test_terms_are_explained_where_they_first_appear(page: str) -> None:
    text = Seen(page).text
    for term in ("Weak scaling", "Efficiency E", "Exposed sync", "Transfer, wait", "Device-hours"):
        meaning = re.search(rf"{term} (\w[^.]{{20,}})", text)
        assert meaning, term
    assert text.index("Efficiency E S divided by") < text.index("Exposed sync what a rank waits")


def test_every_failed_launch_is_listed_with_its_cause_and_what_was_said_last(page: str) -> None:
    text = Seen(page).text.partition("Failed launches")[2].rpartition("Failed launches")[2]
    assert "2 launches gave no measurement. 1 of them was measured by a later attempt." in text
    assert "600 s over" in text
    assert "rank 1: killed by SIGKILL, probably out of memory" in text
    assert "exit code 137" in text
    assert re.search(r"rank 1:\s+Killed", text)


def test_the_same_records_give_the_same_bytes_wherever_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "FIGURES", 1)
    records = factories.records((1, 2), ("mpi",), (75,), blocks=2)
    records.append(failure(config("horovod", 8, 75, backend="mpi")))
    first, second = (written(tmp_path / name / "same", records) for name in ("a", "bb"))
    page = report_html(first)
    assert page == report_html(second)
    assert str(tmp_path) not in page


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    seen = Seen(page)
    for tag, attributes in seen.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "video", "audio")
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "srcset", "data", "action"):
                assert value is not None
                assert value.startswith(("data:image/", "#")), value[:80]
    (policy,) = [a["content"] for _, a in seen.elements if a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    own = re.sub(r'src="data:[^"]*"', "", page)
    assert not re.search(r"https?://|@import|url\(|src=\"//", own)


def test_figures_are_inline_and_have_an_alternative_text(page: str) -> None:
    images = [attributes for tag, attributes in Seen(page).elements if tag == "img"]
    assert len(images) > 4
    assert all(str(one["src"]).startswith("data:image/svg+xml;base64,") for one in images)
    assert all(len(one["alt"] or "") > 20 for one in images)


def test_tables_have_heads_that_a_keyboard_reaches_and_values_to_sort_by(page: str) -> None:
    assert page.count("<table>") > 5
    heads = re.findall(r"<thead>.*?</thead>", page, re.DOTALL)
    assert all(head.count("<th ") == head.count('<button type="button">') for head in heads)
    assert re.search(r'<td class="number" data-v="[\d.]+">', page)
    assert 'data-v="None"' not in page


def _hostile(folder: Path) -> Results:
    base = config("none", 1)
    made = config("horovod", 2, backend="mpi")
    broken = failure(config("horovod", 4, backend="mpi"), cause=HOSTILE)
    assert broken.error is not None
    said = broken.error.model_copy(update={"rank_tails": {"0": ("</pre>" + HOSTILE,)}})
    provenance = factories.PROVENANCE | {"cpu_model": HOSTILE, "hosts": [HOSTILE]}
    records = [
        record(base, is_base=True, provenance=provenance),
        record(made, provenance=provenance),
        broken.model_copy(update={"error": said}).sealed(),
    ]
    found = written(folder / "<img src=x onerror=alert(1)>", records)
    curves = tuple(replace(c, label=f"{HOSTILE} {i}", workload=HOSTILE)
                   for i, c in enumerate(found.curves))  # fmt: skip
    return replace(found, curves=curves)


@without_figures
def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path) -> None:
    page = report_html(_hostile(tmp_path))
    seen = Seen(page)
    assert [tag for tag, _ in seen.elements].count("script") == 1
    assert "img src=x onerror" in seen.text  # as text, not as an element
    assert all(a.get("src", "").startswith("data:") for t, a in seen.elements if t == "img")  # type: ignore[union-attr]
    assert "<script>alert('x')</script>" in seen.text
    assert "**bold** [a](javascript:b) ΔƱ" in seen.text
    assert "{{7*7}}" in seen.text
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert "\ufffd[31m" in page


def test_half_a_character_does_not_stop_a_page() -> None:
    page = page_html("t", "s", [Section("a", "A", (Paragraph("x\ud800y\x00z"),))], "f")
    assert "x\ufffdy\ufffdz" in page.encode().decode()


@without_figures
def test_a_folder_without_any_record_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="holds no measurements; run the sweep first"):
        report_html(written(tmp_path / "empty", []))


@without_figures
def test_where_all_failed_the_report_is_of_the_failures(tmp_path: Path) -> None:
    records = [failure(config("horovod", n), cause="no such device: <cuda>") for n in (1, 2, 4)]
    page = report_html(written(tmp_path / "s", records))
    seen = Seen(page)
    lead = "all 3 launches failed, most often (3 of 3 attempts): no such device: <cuda>."
    assert f"Failed launches Answer Nothing was measured: {lead}" in seen.text
    assert 'id="evidence"' not in page
    assert seen.text.count("rank 1: Killed") == 3


@without_figures
def test_one_point_alone_has_no_speedup_and_the_report_says_what_is_missing(
    tmp_path: Path,
) -> None:
    text = Seen(report_html(written(tmp_path / "s", [record(config("horovod", 2))]))).text
    assert "There is no speedup or efficiency: no launch is its base none@1" in text
    assert "Best efficiency" not in text
    assert re.search(r"Nothing is predicted for .*3|at least three|three device counts", text)


@without_figures
def test_a_missing_base_is_said_in_the_answer(tmp_path: Path) -> None:
    records = factories.records((1, 2), ("mpi",), (75,), blocks=2, base=None)
    text = Seen(report_html(written(tmp_path / "s", records))).text
    lead = text.partition("Main limiter")[0]
    assert "There is no speedup or efficiency: no launch is its base none@1" in lead
    assert "name another with --base" in lead


def _mixed() -> list[RunRecord]:
    other = factories.PROVENANCE | {"cpu_model": "Another CPU"}
    made = config("horovod", 2, backend="mpi")
    return [
        record(config("none", 1), is_base=True),
        record(made),
        record(config("none", 1), 1, is_base=True, provenance=other),
        record(made, 1, provenance=other),
    ]


@without_figures
def test_mixed_hardware_is_refused_or_named(tmp_path: Path) -> None:
    folder = factories.write_results(tmp_path / "s", _mixed())
    with pytest.raises(AnalysisError, match="unlike hardware"):
        load_results(folder)
    text = Seen(report_html(load_results(folder, mixed=True))).text
    assert "CPU: Another CPU (2); Test CPU 3000 (2)" in text
    assert "unlike launches mixed: cpu_model is" in text


@without_figures
def test_a_record_with_numbers_that_are_none_is_a_failed_launch(tmp_path: Path) -> None:
    good = factories.records((1, 2), ("mpi",), (75,), blocks=2)
    folder = factories.write_results(tmp_path / "s", good)
    path = sorted((folder / "runs").glob("*.json"))[0]
    rate = re.search(r'"throughput_samples_per_s": ([\d.]+)', path.read_text())
    assert rate
    path.write_text(path.read_text().replace(rate[1], "NaN", 1))
    text = Seen(report_html(load_results(folder))).text
    assert "1 launch gave no measurement" in text
    assert not re.search(r"\bnan\b", text.partition("Failed launches Answer")[2].rpartition(
        "Failed launches")[0], re.IGNORECASE)  # fmt: skip


def test_of_many_curves_few_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    batches = tuple(10 * k for k in range(1, 31))
    results = written(tmp_path / "s", factories.records((1, 2), ("mpi",), batches, blocks=1))
    found = shown(results)
    count = len(found.results.curves)
    assert CURVES - 2 <= count <= CURVES  # the best may be among those that are spread evenly
    (note,) = found.notes
    assert f"show {count} of 60 curves" in note
    assert "table.csv" in note
    best = max((c for c in results.curves if c.engine != "none"),
               key=lambda c: max(p.efficiency.estimate for p in c.points if p.world_size == 2
                                 and p.efficiency))  # fmt: skip
    assert best.label in [curve.label for curve in found.results.curves]


@without_figures
def test_of_many_failures_the_rest_is_counted(whole: Results) -> None:
    many = tuple(
        Failure(f"run{k:04d}", 1, "failed", f"cause {k % 20}", "mpi", False) for k in range(400)
    )
    text = Seen(report_html(replace(whole, curves=(), trainings=(), failures=many))).text
    assert "100 more are not shown; they are the rows of table.csv" in text
    assert "20 × cause 0" in text
    assert "8 other causes, in the table below" in text


def test_of_many_figures_the_rest_is_named(whole: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures_module, "FIGURES", 1)
    blocks = list(figures_module.figure_blocks(whole))
    assert "More than 1 figures can be drawn" in str(blocks[-1])


def test_a_figure_with_very_many_marks_is_a_png(
    whole: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_module, "_ROWS_OF_SVG", 3)
    monkeypatch.setattr(figures_module, "FIGURES", 1)
    assert "data:image/png;base64,iVBOR" in str(list(figures_module.figure_blocks(whole)))


@without_figures
def test_points_are_diagnosed_once(whole: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads raw steps, which takes most of the time of many launches."""
    made, calls = diagnose_module.diagnose, []

    def counted(*given: Any, **more: Any) -> Any:
        calls.append(given)
        return made(*given, **more)

    monkeypatch.setattr(diagnose_module, "diagnose", counted)
    text = Seen(report_html(whole)).text
    assert "Diagnosis of the worst points" in text
    assert len(calls) == 1


@without_figures
def test_what_the_data_cannot_support_is_said_in_its_place(
    whole: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Iterator[Any]:
        raise AnalysisError(f"{whole.folder} has no such thing; measure it")

    monkeypatch.setattr("harness.analysis.advise.advise", refuse)
    monkeypatch.setattr("harness.analysis.diagnose.diagnose", refuse)
    monkeypatch.setattr("harness.analysis.compare.compare_values", refuse)
    monkeypatch.setattr("harness.analysis.models.predict.predict", refuse)
    text = Seen(report_html(whole)).text
    assert text.count("Whole has no such thing; measure it.") == 5
    assert str(whole.folder) not in text


def test_a_number_is_shown_with_a_true_minus() -> None:
    assert number_cell("-1.5 ms ±2 ms", -1.5e-3).text == "−1.5 ms ±2 ms"
    assert number_cell("1e-05 W [-1, 2]", 0.1).text == "1e-05 W [−1, 2]"


@without_figures
def test_the_command_writes_beside_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = factories.records((1, 2), ("mpi",), (75,), blocks=1)
    folder = factories.write_results(tmp_path / "s", records)
    assert command_report("s", None, False, tmp_path, base=None, mixed=False) == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("name", ["x.pdf", "."])
def test_out_is_a_file_of_html(tmp_path: Path, name: str) -> None:
    factories.write_results(tmp_path / "s", [record(config("horovod", 2))])
    with pytest.raises(ConfigError, match=r"report\.html"):
        command_report("s", tmp_path / name, False, tmp_path, base=None, mixed=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AnalysisError, match=r"cannot be written: .*; choose another file"):
        write_report(tmp_path / "report.html", b"")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"cannot be written: No such .*; choose another file"):
        write_report(tmp_path / "none" / "report.html", b"")
