"""How figures look: one column of a paper wide, colours that survive colour blindness and print."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

WIDTH_IN = 85 / 25.4  # one column
DPI = 300
INK, FAINT = "#222222", "#8a8a8a"

#: Okabe & Ito, Color Universal Design (2008), without yellow (too light for lines on white).
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))

_RC: Any = {  # its keys are literals to the type checker
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that a figure is the same everywhere
    "font.size": 6.5,
    "axes.titlesize": 6.5,
    "axes.labelsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 6,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.6,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # text stays text: searchable, and editable in a drawing program
    "svg.hashsalt": "hvdscale",  # element ids that are the same in every run
    "path.simplify": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the style to figures made and saved inside; the user's settings play no part."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def new_figure(
    panels: int, title: str, notes: Sequence[str], legend_rows: int
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``panels`` axes one over the other, with a title and lines of notes."""
    lines = [line for note in notes if note for line in textwrap.wrap(note, 68)]
    heights = [1.75] + [1.45] * (panels - 1)
    height_in = sum(heights) + 0.3 + 0.105 * (len(lines) + legend_rows)
    figure = Figure(figsize=(WIDTH_IN, height_in))
    axes = figure.subplots(panels, 1, squeeze=False, height_ratios=heights)
    figure.suptitle(title, x=0.02, ha="left", fontsize=7.5, fontweight="bold", color=INK)
    first: Axes = axes[0, 0]
    first.set_title("\n".join(lines), loc="left", fontsize=5.6, color="#555555", linespacing=1.35)
    return figure, [axes[row, 0] for row in range(panels)]


def device_axis(ax: Axes, counts: Iterable[int], label: str = "devices N") -> None:
    """Give ``ax`` a log2 x axis with a tick at each measured count, written as an integer."""
    ticks = sorted(set(counts))
    log2_axis(ax, ticks)
    ax.set_xlabel(label)


def log2_axis(ax: Axes, ticks: Sequence[int]) -> None:
    """Make x logarithmic to base 2, from a little before the first tick to a little after."""
    ax.set_xscale("log", base=2)
    ax.set_xlim(min(ticks) / 2**0.35, max(ticks) * 2**0.35)
    ax.xaxis.set_major_locator(FixedLocator([float(tick) for tick in _readable(ticks)]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())


def ratio_axis(ax: Axes, values: Sequence[float]) -> None:
    """Make y logarithmic to base 2 with plain numbers, wide enough for ``values``."""
    ax.set_yscale("log", base=2)
    ax.set_ylim(min(values) / 2**0.3, max(values) * 2**0.3)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def legend_below(figure: Figure, handles: Sequence[Line2D], columns: int) -> None:
    """Put the legend under the axes, where it hides no data."""
    figure.legend(
        handles=list(handles),
        loc="outside lower left",
        ncols=columns,
        handlelength=2.6,
        columnspacing=1.2,
        labelspacing=0.35,
    )


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """Return a figure as a file's content, the same bytes for the same data.

    ``suffix`` is a format of matplotlib: png, svg, pdf, ...
    """
    dateless: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "hvdscale"},
        "pdf": {"CreationDate": None, "Creator": "hvdscale", "Producer": None},
        "png": {"Software": "hvdscale"},
    }
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=DPI, metadata=dateless.get(suffix))
    return buffer.getvalue()


def _readable(ticks: Sequence[int], nearest: float = 1.18) -> list[int]:
    """Leave out ticks whose labels would touch; the first and the last stay."""
    kept: list[int] = []
    for tick in ticks:
        if not kept or tick / kept[-1] >= nearest:
            kept.append(tick)
        elif tick == ticks[-1]:
            kept[-1:] = [tick] if len(kept) > 1 else [kept[-1], tick]
    return kept
