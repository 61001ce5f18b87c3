"""What may be turned, and a choice of it as a ``HorovodTuning`` and back.

Each knob has a short list of values, so that a choice is a list of places in these lists, and two
choices are the same or really different. Which values are legal is not known here: each is asked
for in a point that differs from the default in it alone (``harness.validate``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.config.models import HorovodTuning, RunConfig
from harness.errors import HarnessError
from harness.spec import Resolved
from harness.tuning import knob_text

#: By knob, the place of its value in ``Knob.values``.
Choice = dict[str, int]
#: Returns what is decided for a point; raises a HarnessError where it cannot run.
Check = Callable[[RunConfig], Resolved]

#: An operation over several nodes; of the two flags Horovod uses the first alone.
_ROUTES: Mapping[str, Mapping[str, bool]] = {
    "flat": {"hierarchical_allreduce": False, "torus_allreduce": False},
    "hierarchical": {"hierarchical_allreduce": True, "torus_allreduce": False},
    "torus": {"hierarchical_allreduce": False, "torus_allreduce": True},
}


@dataclass(frozen=True)
class Knob:
    """One thing to turn: its values, and the fields of ``HorovodTuning`` that it is."""

    name: str
    values: tuple[Any, ...]
    fields: tuple[str, ...]
    ordered: bool = True  # neighbours in ``values`` act alike
    lossy: bool = False  # changes what is trained

    def tuned(self, place: int) -> dict[str, Any]:
        """Return the fields with the value at ``place``."""
        value = self.values[place]
        return dict(_ROUTES[value]) if self.name == "route" else {self.name: value}

    def place_of(self, tuning: HorovodTuning) -> int:
        """Return where the value of ``tuning`` is; the nearest one where it is not in the list."""
        if self.name == "route":
            having = {field: getattr(tuning, field) for field in self.fields}
            same = [i for i, value in enumerate(self.values) if _ROUTES[value] == having]
            return same[0] if same else 0
        value = getattr(tuning, self.name)
        if value in self.values:
            return self.values.index(value)
        return _nearest(self.values, float(value)) if self.ordered else 0


#: The defaults of Horovod, and the values of named presets, are among them.
KNOBS = (
    Knob(
        "cycle_time_ms", (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0), ("cycle_time_ms",)
    ),
    Knob(
        "fusion_threshold_mb",
        (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
        ("fusion_threshold_mb",),
    ),
    Knob("groups", (0, 1, 2, 4, 8, 16), ("groups",)),
    Knob("async_completion", (False, True), ("async_completion",), ordered=False),
    Knob("cache_capacity", (0, 1024), ("cache_capacity",)),
    Knob("controller", ("mpi", "gloo"), ("controller",), ordered=False),
    Knob("route", tuple(_ROUTES), ("hierarchical_allreduce", "torus_allreduce"), ordered=False),
    Knob("compression", ("none", "fp16"), ("compression",), ordered=False, lossy=True),
)


@dataclass(frozen=True)
class Space:
    """The knobs that are searched, on top of a tuning that has all the others."""

    base: HorovodTuning
    knobs: tuple[Knob, ...]

    def tuning(self, choice: Mapping[str, int]) -> HorovodTuning:
        """Return the tuning of a choice; knobs that it leaves are the base's."""
        fields = self.base.model_dump()
        for knob in self.knobs:
            if knob.name in choice:
                fields |= knob.tuned(choice[knob.name])
        return HorovodTuning(**fields)

    def choice(self, tuning: HorovodTuning) -> Choice:
        """Return the choice that is ``tuning``, or the nearest to it."""
        return {knob.name: knob.place_of(tuning) for knob in self.knobs}

    @property
    def size(self) -> int:
        """Return how many choices there are."""
        return math.prod(len(knob.values) for knob in self.knobs)


def legal_space(
    base: RunConfig, check: Check, fixed: Iterable[str] = (), *, allow_lossy: bool = False
) -> tuple[Space, tuple[str, ...]]:
    """Return the space around ``base``, and why values were left out of it.

    ``fixed`` are fields that the user has set. A knob with one legal value is none. The base itself
    must be legal: ``check`` raises otherwise.
    """
    decided = check(base)
    kept: list[Knob] = []
    left_out: list[str] = []
    for known in KNOBS:
        knob = known
        if known.name == "controller" and base.horovod.controller is None:
            # The one that is taken anyway would be the base once more, by another name.
            others = (value for value in known.values if value != decided.controller)
            knob = replace(known, values=(None, *others))
        if set(fixed).intersection(knob.fields) or (knob.lossy and not allow_lossy):
            continue
        places, reasons = _legal_places(base, knob, check)
        left_out += reasons
        if len(places) > 1:
            values = tuple(knob.values[place] for place in places)
            kept.append(Knob(knob.name, values, knob.fields, knob.ordered, knob.lossy))
    return Space(base.horovod, tuple(kept)), tuple(left_out)


def with_tuning(base: RunConfig, tuning: HorovodTuning) -> RunConfig:
    """Return the point ``base`` with another tuning."""
    return base.model_copy(update={"horovod": tuning})


def turned(tuning: HorovodTuning, default: HorovodTuning) -> dict[str, Any]:
    """Return the fields of ``tuning`` that are not those of ``default``."""
    names = HorovodTuning.model_fields
    return {
        name: getattr(tuning, name)
        for name in names
        if getattr(tuning, name) != getattr(default, name)
    }


def words(tuning: HorovodTuning, default: HorovodTuning) -> str:
    """Return what was turned as text, "the default" where that is nothing."""
    found = turned(tuning, default)
    return " ".join(f"{name}={knob_text(value)}" for name, value in found.items()) or "the default"


def _legal_places(base: RunConfig, knob: Knob, check: Check) -> tuple[list[int], list[str]]:
    places, reasons = [], []
    for place in range(len(knob.values)):
        fields = base.horovod.model_dump() | knob.tuned(place)
        try:
            check(with_tuning(base, HorovodTuning(**fields)))
        except HarnessError as error:
            value = knob_text(knob.values[place])
            reasons.append(f"{knob.name} {value} is not searched: {error}")
        else:
            places.append(place)
    return places, reasons


def _nearest(values: tuple[float, ...], value: float) -> int:
    """Return the place of the value that is nearest on a logarithmic scale."""
    floor = min(one for one in values if one > 0) / 4  # where 0 is on that scale
    distances = [abs(math.log(max(one, floor) / max(value, floor))) for one in values]
    return distances.index(min(distances))
