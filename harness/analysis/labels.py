"""Names of curves: what tells one from the others, and nothing that all have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.match import flat

#: Where one key explains itself by its value; of the others the key is written too.
_WORDS = {
    "batch_size": "batch {}",
    "global_batch_size": "global batch {}",
    "engine": "{}",
    "backend": "{}",
    "device": "{}",
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
#: Named first, in this order; the batch is named last, everything else between.
_FIRST = ("workload.name", "workload.framework", "scaling", "engine", "backend", "device")
_LAST = ("batch_size", "global_batch_size")
_ALWAYS = ("backend", *_LAST)


def label_curves(curves: Sequence[tuple[str, str | None, str]]) -> list[str]:
    """Return a label for each curve, given its (config JSON, backend in force, device).

    Labels of different curves differ, since their configs, backends or devices do. The backend (the
    engine where it has none) and the batch are always named, other keys where the curves differ.
    """
    facts = [_facts(*curve) for curve in curves]
    keys = sorted({key for one in facts for key in one}, key=_rank)
    varied = _Varied(facts)
    return [
        ", ".join(
            _words(key, one[key]) for key in keys if key in one and _is_said(key, one, varied)
        )
        for one in facts
    ]


def _facts(config: str, backend: str | None, device: str) -> dict[str, str]:
    found = flat(config) | {"device": device}
    found.pop("backend", None)
    return found | ({"backend": backend} if backend else {})


class _Varied:
    """Which keys have several values among curves, each asked once: there may be thousands."""

    def __init__(self, facts: Sequence[Mapping[str, str]]) -> None:
        self._facts = facts
        self._known: dict[tuple[str, str, str | None], bool] = {}

    def among_all(self, key: str) -> bool:
        """Say whether the curves differ in ``key``; one without it is another value."""
        return self._ask(key, "all", None)

    def among_those_with(self, key: str, needed: str) -> bool:
        """Say so of the curves that have the key ``needed``."""
        return self._ask(key, needed, None)

    def among_engine(self, key: str, engine: str | None) -> bool:
        """Say so of the curves of one engine."""
        return self._ask(key, "of engine", engine)

    def _ask(self, key: str, needed: str, engine: str | None) -> bool:
        asked = (key, needed, engine)
        if asked not in self._known:
            among = (one for one in self._facts if _counts(one, needed, engine))
            self._known[asked] = len({one.get(key) for one in among}) > 1
        return self._known[asked]


def _counts(one: Mapping[str, str], needed: str, engine: str | None) -> bool:
    if needed == "of engine":
        return one.get("engine") == engine
    return needed == "all" or needed in one


def _is_said(key: str, one: Mapping[str, str], varied: _Varied) -> bool:
    if key in _ALWAYS:
        return True
    if key == "engine":
        # Beside curves with a backend, the engine that has none is told by its name alone.
        return "backend" not in one or varied.among_those_with(key, "backend")
    if key == "measure.instruments":
        # Each engine has the instruments that it can have, which is no choice of the sweep's.
        return varied.among_engine(key, one.get("engine"))
    if key.startswith("horovod."):
        # Curves of other engines have no tuning, which is not another tuning.
        return varied.among_those_with(key, key)
    return varied.among_all(key)


def _words(key: str, value: str) -> str:
    return _WORDS.get(key, f"{key.removeprefix('workload.options.')} {{}}").format(value)


def _rank(key: str) -> tuple[int, str]:
    if key in _FIRST:
        return (_FIRST.index(key), key)
    return (len(_FIRST) + (key in _LAST), key)
