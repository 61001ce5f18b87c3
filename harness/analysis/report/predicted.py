"""Scaling models and what they predict beyond the measured device counts."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis.report.document import Block, Paragraph, Quote
from harness.analysis.results import Results


def prediction_blocks(results: Results) -> Iterator[Block]:
    """Yield the models' predictions at twice and four times the largest measured count."""
    from harness.analysis.models.predict import predict, render_predictions

    largest = max((p.world_size for c in results.curves for p in c.points), default=1)
    found = predict(results, [2 * largest, 4 * largest])
    yield Paragraph("Everything beyond the measured device counts is an extrapolation.")
    yield Quote(render_predictions(found))
