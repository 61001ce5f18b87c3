"""Names of curves: what tells one from the others, and nothing that all have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.analysis.match import flat, parsed

#: Where one key explains itself by its value; of the others the key is written too.
_WORDS = {
    "batch_size": "batch {}",
    "global_batch_size": "global batch {}",
    "engine": "{}",
    "backend": "{}",
    "device": "{}",
    "asked": "backend {}",
    "workload.name": "{}",
    "workload.framework": "{}",
    "scaling": "{}",
    "launcher": "{}",
    "horovod.cycle_time_ms": "cycle {} ms",
    "horovod.fusion_threshold_mb": "fusion {} MiB",
    "horovod.controller": "{} controller",
    "execution.precision": "{}",
    "measure.instruments": "{}",
}
_TUNINGS = ("horovod.", "ddp.")  # each of the engine of that name
#: Named first, in this order; the batch is named last, everything else between.
_FIRST = ("workload.name", "workload.framework", "scaling", "engine", "backend", "device")
_LAST = ("batch_size", "global_batch_size")
_ALWAYS = ("backend", *_LAST)


def label_curves(curves: Sequence[tuple[str, str | None, str]]) -> list[str]:
    """Return a label for each curve, given its (config JSON, backend in force, device).

    Labels of different curves differ, since their configs, backends or devices do; what is one in
    words (an option 1 and an option "1") is numbered. The backend (the engine where it has none)
    and the batch are always named, other keys where the curves differ.
    """
    facts = [_facts(*curve) for curve in curves]
    keys = sorted({key for one in facts for key in one}, key=_rank)
    values = _values(facts, keys)
    labels = [
        ", ".join(
            _words(key, one[key]) for key in keys if key in one and _is_said(key, one, values)
        )
        for one in facts
    ]
    return _numbered(labels, curves)


def _numbered(labels: list[str], curves: Sequence[tuple[str, str | None, str]]) -> list[str]:
    """Give those that are equal a number each, in the order of what they are of."""
    if len(set(labels)) == len(labels):
        return labels
    places = sorted(range(len(labels)), key=lambda place: (curves[place][0], place))
    counts, seen, found = Counter(labels), Counter[str](), list(labels)
    for place in places:
        label = labels[place]
        seen[label] += 1
        found[place] = f"{label} ({seen[label]})" if counts[label] > 1 else label
    return found


def _facts(config: str, backend: str | None, device: str) -> dict[str, str]:
    found = flat(config) | {"device": device}
    found.pop("backend", None)
    if backend is None:
        return found
    # A backend that was asked for and the same one that was left open are two configs.
    asked = "left open" if parsed(config).get("backend") is None else "asked for"
    return found | {"backend": backend, "asked": asked}


def _values(
    facts: Sequence[Mapping[str, str]], keys: Sequence[str]
) -> Mapping[tuple[str, str], set[str | None]]:
    """Return what curves have at each key, by the curves that it is compared among."""
    found: dict[tuple[str, str], set[str | None]] = {}
    for one in facts:
        for key in keys:
            among = _among(key, one)
            if among is not None:
                found.setdefault((key, among), set()).add(one.get(key))
    return found


def _among(key: str, one: Mapping[str, str]) -> str | None:
    """Return among which curves ``one`` is compared in ``key``; None: among none."""
    if key == "engine":
        # Beside curves with a backend, the engine that has none is told by its name alone.
        return "" if "backend" in one else None
    if key == "asked":
        return one.get("backend")
    if key == "measure.instruments":
        # Each engine has the instruments that it can have, which is no choice of the sweep's.
        return one.get("engine", "")
    tuning = next((group for group in _TUNINGS if key.startswith(group)), None)
    if tuning is not None:
        # Curves of other engines have no such tuning, which is not another tuning; of the engine's
        # own a key without a value (a controller that was left open) is another than one with.
        return "" if any(name.startswith(tuning) for name in one) else None
    return ""


def _is_said(
    key: str, one: Mapping[str, str], values: Mapping[tuple[str, str], set[str | None]]
) -> bool:
    among = _among(key, one)
    return key in _ALWAYS or among is None or len(values[key, among]) > 1


def _words(key: str, value: str) -> str:
    return _WORDS.get(key, f"{key.removeprefix('workload.options.')} {{}}").format(value)


def _rank(key: str) -> tuple[int, str]:
    if key in _FIRST:
        return (_FIRST.index(key), key)
    return (len(_FIRST) + (key in _LAST), key)
