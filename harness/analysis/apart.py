"""What is said wherever a speedup shows whose base was measured apart from its points."""

from __future__ import annotations

from collections.abc import Iterable

from harness.analysis.facets import is_base_point
from harness.analysis.flags import where
from harness.analysis.scaling import Apart, Curve

_SHOWN = 3  # curves that are named


def apart_sentence(apart: Apart, whose: str = "its") -> str:
    """Say that a base is apart: ``its base was measured in other jobs: what differs …``."""
    units = apart.removeprefix("other ")
    return f"{whose} base was measured in {apart}: what differs between {units} looks like scaling"


def apart_text(curve: Curve) -> str | None:
    """Say that a curve's base is apart, and of which points; None where it is of none."""
    if curve.apart is None:
        return None
    apart = [point for point in curve.points if point.apart]
    said = apart_sentence(curve.apart)
    if len(apart) == len(curve.points):
        return said
    return f"at {', '.join(where(curve, point) for point in apart)} {said}"


def apart_notes(curves: Iterable[Curve]) -> tuple[str, ...]:
    """Return the same of several curves: one note a text, with the names of its curves.

    Without names where it holds for all of them; curves that are nothing but the base do not count.
    """
    asked = [c for c in curves if c.base and not all(is_base_point(c, p) for p in c.points)]
    groups: dict[str, list[Curve]] = {}
    for curve in asked:
        text = apart_text(curve)
        if text is not None:
            groups.setdefault(text, []).append(curve)
    notes = []
    for text, found in groups.items():
        names = "; ".join(curve.label for curve in found[:_SHOWN])
        more = f" + {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        of_all = len(found) == len(asked) and text.startswith("its ")
        notes.append(f"the{text.removeprefix('its')}" if of_all else f"{names}{more}: {text}")
    return tuple(notes)
