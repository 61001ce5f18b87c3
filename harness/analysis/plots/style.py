"""How figures look: one column of a paper wide, colours that survive colour blindness and print."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

WIDTH_IN = 85 / 25.4  # one column
DPI = 300
_NOTE_CHARS, _NOTE_IN = 80, 0.098  # characters a line of notes has room for; its height
_NOTE_PT, _LEGEND_PT = 5.6, 6.0
_LEGEND_CHARS, _LEGEND_IN = 66, 2.9  # characters a line of a single column has room for; its width
_HALF_CHARS = 30  # of a legend entry that leaves room for another beside it
_PANEL_PT = 180.0  # how wide a panel is beside the labels of y, about
_DIGIT_PT = 3.9  # of a tick's label
_NARROW = 5.0  # below this ratio of its ends a log axis would have one or two ticks at 1, 2, 5
INK, FAINT = "#222222", "#8a8a8a"

#: Okabe & Ito, Color Universal Design (2008), without yellow (too light for lines on white).
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: The same colour in every figure of every sweep, where colour tells only engine and backend.
COLOURS = {
    ("horovod", "nccl"): "#0072B2",
    ("horovod", "mpi"): "#D55E00",
    ("horovod", "gloo"): "#009E73",
    ("horovod", "mpi-host"): "#CC79A7",
    ("ddp", "nccl"): "#56B4E9",
    ("ddp", "gloo"): "#E69F00",
    ("none", None): "#000000",
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))

_FONT, _FINE = "DejaVu Sans", 16
_RC: Any = {  # its keys are literals to the type checker
    "font.family": _FONT,  # comes with matplotlib, so that a figure is the same everywhere
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
    "legend.fontsize": _LEGEND_PT,
    "legend.frameon": False,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.2,
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
    panels: int,
    title: str,
    notes: Sequence[str],
    handles: Sequence[Artist],
    *,
    panels_in: Sequence[float] = (),
) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``panels`` axes one over the other, ``panels_in`` inches high if given.

    The title and the notes stand over them, the legend under them, where it hides no data.
    """
    lines = [line for note in notes if note for line in _wrapped(note, _NOTE_CHARS, _NOTE_PT)]
    for one in handles:
        label = _wrapped(str(one.get_label()), _LEGEND_CHARS, _LEGEND_PT, _LEGEND_IN)
        one.set_label("\n".join(label))
    head_in = 0.28 + _NOTE_IN * len(lines)
    labels = [str(one.get_label()) for one in handles]
    columns = 2 if max(map(len, labels), default=0) <= _HALF_CHARS else 1
    rows = sum(label.count("\n") for label in labels) + math.ceil(len(handles) / columns)
    legend_in = 0.1 + 0.125 * rows
    panels_in = panels_in or [1.85] + [1.6] * (panels - 1)
    height_in = head_in + sum(panels_in) + legend_in
    figure = Figure(figsize=(WIDTH_IN, height_in))
    figure.set_label(title)
    engine = ConstrainedLayoutEngine(h_pad=0.03, w_pad=0.03)
    engine.set(rect=(0, 0, 1, 1 - head_in / height_in))
    figure.set_layout_engine(engine)
    axes = figure.subplots(panels, 1, squeeze=False, height_ratios=panels_in)
    figure.text(
        0.015, 1 - 0.06 / height_in, title, fontsize=7.5, fontweight="bold", color=INK, va="top"
    )
    for number, line in enumerate(lines):
        y = 1 - (0.21 + _NOTE_IN * number) / height_in
        figure.text(0.015, y, line, fontsize=_NOTE_PT, color="#555555", va="top")
    figure.legend(
        handles=list(handles),
        loc="outside lower left",
        ncols=columns,
        handlelength=2.6,
        columnspacing=1.2,
        labelspacing=0.35,
    )
    return figure, [axes[row, 0] for row in range(panels)]


def _wrapped(text: str, chars: int, size_pt: float, width_in: float = WIDTH_IN - 0.07) -> list[str]:
    """Break a text into lines of at most ``chars``, and of fewer where they are wide ones."""
    font = get_font(findfont(_FONT))
    font.set_size(_FINE * size_pt, 72)  # at its own size each glyph would be rounded to a pixel

    def too_wide(line: str) -> bool:
        font.set_text(line)
        return font.get_width_height()[0] / 64 > 72 * width_in * _FINE

    lines = textwrap.wrap(text, chars)
    while any(map(too_wide, lines)) and chars > 1:
        chars -= 1
        lines = textwrap.wrap(text, chars)
    return lines or [text]


def device_axis(ax: Axes, counts: Iterable[int], label: str = "devices N") -> None:
    """Give ``ax`` a log2 x axis with a tick at each measured count, written as an integer."""
    log2_axis(ax, counts)
    ax.set_xlabel(label)


def log2_axis(ax: Axes, values: Iterable[int], text: Callable[[int], str] = "{:,}".format) -> None:
    """Make x logarithmic to base 2, from a little before the least value to a little after.

    Each value has a tick and a label, which ``text`` makes, but where labels would touch.
    """
    ticks = sorted(set(values))
    ax.set_xscale("log", base=2)
    ax.set_xlim(ticks[0] / 2**0.35, ticks[-1] * 2**0.35)
    ax.xaxis.set_major_locator(FixedLocator([float(tick) for tick in _readable(ax, ticks, text)]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(round(value))))
    ax.xaxis.set_minor_locator(NullLocator())


def ratio_axis(ax: Axes) -> None:
    """Label a y axis that is logarithmic as powers of two, with plain numbers."""
    limits = ax.get_ylim()
    ax.set_yscale("log", base=2)
    ax.set_ylim(limits)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def unit_axis(ax: Axes, unit: str = "") -> None:
    """Label a logarithmic y axis at 1, 2, 5 (``200k``), or evenly where its range is narrow."""
    low, high = ax.get_ylim()
    narrow = high / low < _NARROW
    ax.yaxis.set_major_locator(MaxNLocator(4) if narrow else LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(EngFormatter(unit=unit, sep=" " if unit else ""))
    ax.yaxis.set_minor_locator(NullLocator())


def log_ticks(ax: Axes) -> None:
    """Label a logarithmic y axis with plain numbers at 1, 2, 5, or evenly in a narrow range."""
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(
        MaxNLocator(4) if high / low < _NARROW else LogLocator(subs=(1, 2, 5))
    )
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_locator(NullLocator())


def figure_bytes(figure: Figure, suffix: str) -> bytes:
    """Return a figure as a file's content, the same bytes for the same data.

    ``suffix`` is a format of matplotlib: png, svg, pdf, ... Places are found once and then kept:
    found anew for each format they would hang on which formats were written before.
    """
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.set_dpi(DPI)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    dateless: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "hvdscale"},
        "pdf": {"CreationDate": None, "Creator": "hvdscale", "Producer": None},
        "png": {"Software": "hvdscale"},
    }
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=DPI, metadata=dateless.get(suffix))
    return buffer.getvalue()


def _readable(ax: Axes, ticks: Sequence[int], text: Callable[[int], str]) -> list[int]:
    """Leave out ticks whose labels would touch: first and last stay, powers of two if they can."""
    low, high = ax.get_xlim()

    def ends(tick: int) -> tuple[float, float]:
        middle = _PANEL_PT * math.log(tick / low) / math.log(high / low)
        half = _DIGIT_PT * (len(text(tick)) + 0.5) / 2  # a quarter of a digit to either side
        return middle - half, middle + half

    kept = {tick: ends(tick) for tick in (ticks[0], ticks[-1])}
    for tick in sorted(ticks[1:-1], key=lambda tick: (tick.bit_count() != 1, tick)):
        left, right = ends(tick)
        if all(right <= others[0] or others[1] <= left for others in kept.values()):
            kept[tick] = left, right
    return sorted(kept)
