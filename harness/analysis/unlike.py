"""Refusing to draw one curve through unlike machines or software."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from harness.errors import AnalysisError

_SHOWN = 3


def differences(provenances: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return each key that has several values, with the number of launches of each value.

    ``provenances`` are JSON texts as the table has them. A key that an older record lacks says
    nothing, so it is compared among those that have it.
    """
    found: dict[str, Counter[str]] = {}
    for text, launches in Counter(provenances).items():
        for key, value in json.loads(text).items():
            found.setdefault(key, Counter())[value] += launches
    return {key: dict(counts) for key, counts in sorted(found.items()) if len(counts) > 1}


def refuse_unlike(what: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise AnalysisError, naming what differs, where ``rows`` ran on unlike machines."""
    unlike = differences(row["provenance"] or "{}" for row in rows)
    if not unlike:
        return
    parts = [_named(key, counts) for key, counts in list(unlike.items())[:_SHOWN]]
    more = f", and {len(unlike) - _SHOWN} more keys" if len(unlike) > _SHOWN else ""
    raise AnalysisError(
        f"{what} has launches on unlike hardware or software: {'; '.join(parts)}{more}; "
        "keep them in results folders of their own, or mix them on purpose with --mixed "
        "(in Python: mixed=True)"
    )


def _named(key: str, counts: Mapping[str, int]) -> str:
    values = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{value} ({count})" for value, count in values[:_SHOWN])
    return f"{key} is {shown}" + (", ..." if len(values) > _SHOWN else "")
