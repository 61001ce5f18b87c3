"""The figures inside the page: SVG, or PNG where so much is drawn that an SVG would be huge."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.analysis.report.document import Block, Gallery, Image, Paragraph
from harness.analysis.results import Results
from harness.errors import AnalysisError

if TYPE_CHECKING:
    from harness.analysis.plots.series import Plot

FIGURES = 24  # more would make a file that no mail takes
_ROWS_OF_SVG = 1500  # of the CSV behind a figure: each is about one mark
_BYTES_OF_SVG = 400_000
_PIXELS_PER_IN = 96  # of CSS
_LEGEND = "Every number drawn is in the CSV that hvdscale plot writes beside each figure."

#: What to see in a figure, by its name in the registry of figures.
_CAPTIONS = {
    "speedup": "How many times the base's throughput, and the throughput itself. On the dashed "
    "line N devices do N times the work.",
    "efficiency": "How much of the devices is used: 1 is as good as the base.",
    "throughput": "Samples a second of all ranks.",
    "exposed_sync": "What a step waits for its gradients; the shaded part waits for late ranks.",
    "exposed_sync_epoch": "The same, summed over an epoch.",
    "phases": "Where a step's time goes.",
    "phase_shares": "The same as shares of the step.",
    "epoch_time": "Time of an epoch against the batch size.",
    "epoch_time_devices": "Time of an epoch against the number of devices.",
    "batches": "Batches an epoch, each with one synchronisation.",
    "allreduce": "The gradient's bytes reduced with nothing else running.",
    "utilisation": "How busy the devices were during the window.",
    "training": "The metric on the test split while training goes on.",
}


def figure_blocks(results: Results) -> Iterator[Block]:
    """Yield the figures that the records allow, the first ``FIGURES`` of them."""
    images: list[Image] = []
    more = False
    try:
        for image in _images(results):
            if len(images) == FIGURES:
                more = True
                break
            images.append(image)
    except AnalysisError as error:
        yield Paragraph(f"Figures: {error}.")
    if images:
        yield Paragraph(
            "Points are means over blocks with their intervals, the faint marks beside them single "
            f"launches. {_LEGEND}",
            muted=True,
        )
        yield Gallery(tuple(images))
    if more:
        yield Paragraph(
            f"More than {FIGURES} figures can be drawn; the others are not shown here: "
            "hvdscale plot draws all of them."
        )


def _images(results: Results) -> Iterator[Image]:
    from harness.analysis.plots import draw

    for drawn in draw(results):
        source = _source(drawn.plot)
        width, height = (round(x * _PIXELS_PER_IN) for x in drawn.plot.figure.get_size_inches())
        alt = f"{drawn.title}. Its points are those of the tables in this report."
        caption = _CAPTIONS.get(drawn.name.partition("-")[0], drawn.title)
        yield Image(caption, alt, source, width, height)


def _source(plot: Plot) -> str:
    data, media = b"", "image/svg+xml"
    if len(plot.rows) <= _ROWS_OF_SVG:
        data = plot.image("svg")
    if not data or len(data) > _BYTES_OF_SVG:
        data, media = plot.image("png"), "image/png"
    return f"data:{media};base64,{base64.b64encode(data).decode()}"
