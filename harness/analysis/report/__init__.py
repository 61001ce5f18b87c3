"""One HTML file that needs nothing else: the answer, its evidence, where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import harness
from harness.analysis.report.document import Block, Bullets, Section
from harness.analysis.results import Results, nothing_measured
from harness.errors import AnalysisError

if TYPE_CHECKING:
    from harness.analysis.report.diagnosed import Worst

__all__ = ["report_html", "write_report"]


def report_html(results: Results) -> str:
    """Return the report of a sweep as one HTML file's text, the same for the same records.

    Of what the data cannot support there is the sentence that says so. A sweep whose launches all
    failed has a report of the failures. Raises AnalysisError where a folder holds no record at all,
    MissingDependencyError without jinja2 or matplotlib.
    """
    from harness.analysis.report.page import page_html

    if not (results.curves or results.trainings or results.failures):
        raise AnalysisError(nothing_measured(results.folder, results.failures))
    footer = (
        f"Made by hvdscale {harness.__version__} from the records of the sweep {results.name}. "
        "This file loads nothing from anywhere. Click a column's head to sort by it."
    )
    return page_html(
        f"{results.name}: scaling report", _subtitle(results), tuple(_sections(results)), footer
    )


def write_report(path: Path, data: bytes) -> None:
    """Write a report so that it appears whole or not at all; AnalysisError where it cannot be."""
    from harness.store import write_atomic

    try:
        write_atomic(path, data)
    except OSError as error:
        raise AnalysisError(
            f"{path}: the report cannot be written: {error.strerror}; "
            "choose another file with --out"
        ) from error


def _subtitle(results: Results) -> str:
    from harness.analysis.report.jobs import moment

    table = results.table
    starts = [text for text in table["started_at"].to_pylist() if text]
    ends = [text for text in table["ended_at"].to_pylist() if text]
    if not starts or not ends:
        return "No record tells when it was made."
    return f"Measured from {moment(min(starts))} to {moment(max(ends))} UTC"


def _sections(results: Results) -> Iterator[Section]:
    from harness.analysis.report.answer import answer
    from harness.analysis.report.diagnosed import worst_of
    from harness.analysis.report.failed import failed_blocks

    measured, worst = bool(results.curves or results.trainings), worst_of(results)
    parts = tuple(_answers(results, worst)) if measured else ()
    yield Section("answer", "Answer", answer(results), parts)
    if measured:
        yield Section("evidence", "Evidence", (), tuple(_evidence(results, worst)))
    yield Section("provenance", "Provenance", (), tuple(_provenance(results)))
    yield Section("failed", "Failed launches", tuple(failed_blocks(results)))


def _answers(results: Results, worst: Worst) -> Iterator[Section]:
    from harness.analysis.report.advised import advice_blocks
    from harness.analysis.report.diagnosed import limiter_blocks
    from harness.analysis.report.said import or_sentence

    if results.curves:
        yield Section(
            "limiter", "Main limiter", or_sentence(results, lambda _: limiter_blocks(worst))
        )
    yield Section("advice", "Advice", or_sentence(results, advice_blocks))


def _evidence(results: Results, worst: Worst) -> Iterator[Section]:
    from harness.analysis.report.compared import comparison_blocks
    from harness.analysis.report.diagnosed import diagnosis_blocks
    from harness.analysis.report.figures import figure_blocks
    from harness.analysis.report.limits import shown
    from harness.analysis.report.predicted import prediction_blocks
    from harness.analysis.report.said import or_sentence
    from harness.analysis.report.scaling_tables import (
        more_blocks,
        phase_blocks,
        speedup_blocks,
        sync_blocks,
    )
    from harness.analysis.report.training_tables import training_blocks

    part = shown(results)
    left_out: tuple[Block, ...] = (Bullets(part.notes),) if part.notes else ()
    seen, curves = part.results, bool(results.curves)
    found = (
        ("speedup", "Speedup and efficiency", (*left_out, *speedup_blocks(seen)), curves),
        ("figures", "Figures", tuple(figure_blocks(seen)), True),
        ("sync", "Synchronisation of gradients", tuple(sync_blocks(seen)), curves),
        ("phases", "Where a step's time goes", tuple(phase_blocks(seen)), curves),
        ("more", "Further measurements", tuple(more_blocks(seen)), curves),
        ("backends", "Backends compared", or_sentence(results, comparison_blocks), curves),
        ("models", "Models and predictions", or_sentence(results, prediction_blocks), curves),
        ("diagnosis", "Diagnosis of the worst points",
         or_sentence(results, lambda _: diagnosis_blocks(worst)), curves),
        ("trainings", "Trainings", tuple(training_blocks(seen.trainings)), True),
    )  # fmt: skip
    yield from (
        Section(name, title, blocks) for name, title, blocks, is_ in found if is_ and blocks
    )


def _provenance(results: Results) -> Iterator[Section]:
    from harness.analysis.report.limits import shown
    from harness.analysis.report.origin import config_blocks, interval_blocks, machine_blocks

    yield Section("machines", "Machines and versions", tuple(machine_blocks(results)))
    configs = tuple(config_blocks(shown(results).results))
    if configs:
        yield Section("configs", "Configurations", configs)
    if results.curves or results.trainings:
        yield Section("intervals", "How intervals are made", tuple(interval_blocks(results)))
