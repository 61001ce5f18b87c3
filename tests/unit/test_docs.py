"""What docs/metrics.md says is complete: columns, units, and all that is to be said of a metric."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness import record
from harness.analysis.collecting import CSV, TABLE
from harness.analysis.columns import (
    COLUMNS,
    OF_ABLATION,
    OF_ALLREDUCE,
    OF_CLOCKS,
    OF_FEED,
    OF_PHASES,
    OF_STEADINESS,
    OF_TIMELINE,
)
from harness.analysis.evaluations import EVALUATION_COLUMNS, EVALUATIONS, EVALUATIONS_CSV
from harness.collectives.definitions import COLLECTIVES
from harness.config.models import Frozen
from harness.store.raw import RAW, raw_path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "results" / "README.md").read_text(encoding="utf-8")

#: What is said of every metric, in this order.
ASPECTS = ["formula", "includes", "leaves out", "taken", "clock", "cannot tell"]
#: How a unit is spelt in a name, the longest ending first, and in the page.
UNITS = {
    "_samples_per_s": "samples/s",
    "_bytes_per_s": "bytes/s",
    "_per_sample_j": "J/sample",
    "_bytes": "bytes",
    "_mhz": "MHz",
    "_w": "W",
    "_j": "J",
    "_s": "s",
}
NO_UNIT = "–"
#: Metric classes of a record, with the column of a field where the two have different names.
METRICS: dict[type[Frozen], dict[str, str]] = {
    record.WorkloadFacts: {},
    record.Window: {},
    record.Steadiness: OF_STEADINESS,
    record.Phases: OF_PHASES,
    record.Ablation: OF_ABLATION,
    record.ClockCheck: OF_CLOCKS,
    record.FeedTimes: OF_FEED,
    record.Timeline: OF_TIMELINE,
    record.Training: {},
    record.Evaluation: {},
    record.NoiseEstimate: {},
    record.AllReduce: OF_ALLREDUCE,
    record.Telemetry: {},
    record.NodeTelemetry: {},
    record.DeviceTelemetry: {},
}


def _sections() -> dict[str, str]:
    """Return anchor → text of each section, as GitHub makes anchors of headings."""
    parts = re.split(r"^#{2,3} (.+)$", PAGE, flags=re.MULTILINE)
    return {_anchor(title): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


SECTIONS = _sections()
ROWS = re.findall(
    r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", SECTIONS["columns-of-tableparquet"], re.MULTILINE
)
LINKED = {anchor for _, _, metric in ROWS for anchor in re.findall(r"\(#([\w-]+)\)", metric)}
DEFINED = [anchor for anchor, text in SECTIONS.items() if "\n| formula |" in text]


def _unit(name: str) -> str | None:
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), None)


def test_the_table_has_every_column_in_its_order() -> None:
    assert [name for name, _, _ in ROWS] == list(COLUMNS)


@pytest.mark.parametrize(("name", "unit", "metric"), ROWS)
def test_a_column_has_the_unit_of_its_name(name: str, unit: str, metric: str) -> None:
    if COLUMNS[name] in ("string", "boolean"):
        assert unit == NO_UNIT
    else:
        assert unit == (_unit(name) or unit) != NO_UNIT
    assert metric.strip()


def test_what_is_measured_leads_to_its_definition() -> None:
    """A number with a decimal point comes from a measurement, but for the learning rate."""
    for name, _, metric in ROWS:
        if COLUMNS[name] == "Float64" and name != "learning_rate":
            found = re.fullmatch(r"\[[^]]+\]\(#([\w-]+)\)", metric)
            assert found is not None, name
            assert found[1] in DEFINED, name


def test_links_inside_the_page_lead_somewhere() -> None:
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= set(SECTIONS)
    assert LINKED


def test_the_results_page_links_to_the_columns() -> None:
    (path, anchor) = re.findall(r"\]\(([^)#\s]+)#([\w-]+)\)", RESULTS)[0]
    assert (ROOT / "results" / path).resolve() == ROOT / "docs" / "metrics.md"
    assert anchor in SECTIONS


@pytest.mark.parametrize("anchor", DEFINED)
def test_all_is_said_of_every_metric(anchor: str) -> None:
    found = re.findall(
        rf"^\| ({'|'.join(ASPECTS)}) \| (.+) \|$", SECTIONS[anchor], flags=re.MULTILINE
    )
    assert [aspect for aspect, _ in found] == ASPECTS
    assert all(text.strip() for _, text in found)


def test_what_no_column_leads_to_is_defined_too() -> None:
    assert {"speedup-and-efficiency", "collectives"} <= set(DEFINED)
    # Of tables of their own, or of several launches.
    apart = {"collectives", "training-to-an-end", "gradient-noise-scale"}
    apart |= {"comparisons", "diagnosis", "advice"}
    assert set(DEFINED) - LINKED == apart


@pytest.mark.parametrize("kind", METRICS, ids=lambda kind: kind.__name__)
def test_every_field_with_a_unit_is_named(kind: type[Frozen]) -> None:
    names = [name for name in kind.model_fields if _unit(name)]
    missing = [
        name
        for name in names
        if f"`{name}`" not in PAGE and METRICS[kind].get(name) not in {row[0] for row in ROWS}
    ]
    assert not missing


def test_every_column_of_evaluations_is_named() -> None:
    section = SECTIONS["columns-of-evaluationsparquet"]
    named = set(re.findall(r"`(\w+)`", section))
    assert set(EVALUATION_COLUMNS) - set(COLUMNS) <= named


def test_every_collective_is_defined() -> None:
    found = re.findall(r"^\| `(\w+)` \|", SECTIONS["collectives"], flags=re.MULTILINE)
    assert found == list(COLLECTIVES)


def test_every_column_of_telemetry_is_defined() -> None:
    found = re.findall(r"^\| `(\w+)` \|", SECTIONS["telemetry"], flags=re.MULTILINE)
    wanted = [name for name, _, metric in ROWS if metric == "[Telemetry](#telemetry)"]
    assert sorted(found) == sorted(wanted)


def test_the_results_page_has_every_file() -> None:
    from harness.bench import TIMELINE
    from harness.collectives.record import RECORD
    from harness.collectives.writing import FOLDER, TIMES

    runs = [str(raw_path(Path("runs"), "<run_id>", kind, "<sha256>")) for kind in RAW]
    for name in (
        *runs,
        TIMELINE,
        f"results/{FOLDER}/<run>/",
        RECORD,
        TIMES,
        TABLE,
        CSV,
        EVALUATIONS,
        EVALUATIONS_CSV,
    ):
        assert name in RESULTS
