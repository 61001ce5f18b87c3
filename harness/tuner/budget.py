"""How the time is divided between search and validation. Pure; all times in seconds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from harness.errors import ConfigError
from harness.tuning import AUTOTUNE_STEPS

#: Of the whole time, what the validation leaves to the search.
SEARCH_SHARE = 1 / 3
MIN_BLOCKS = 2  # below it there is no interval
#: An autotuner's step is longer than the default's by about this: it tries cycle times from 1 to
#: 100 ms, and a step waits for one cycle at least.
_AUTOTUNE_CYCLE_S = 0.05

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,6})m)?(?:(\d{1,7})s)?", re.ASCII)


def parse_budget(text: str) -> float:
    """Return the seconds of ``90s``, ``20m`` or ``1h30m``; ConfigError where it is no time."""
    found = _TIME.fullmatch(text.strip().replace(" ", "").lower())
    parts = zip(found.groups() if found else (), ("h", "m", "s"), strict=False)
    seconds = sum(float(part) * _UNITS_S[unit] for part, unit in parts if part is not None)
    if seconds <= 0:
        raise ConfigError(f"--budget: '{text}' is no time; write e.g. 90s, 20m or 1h30m")
    return seconds


@dataclass(frozen=True)
class Costs:
    """What one launch takes from its start to its end, by what is launched."""

    launch_s: float  # of the default, and about of any trial
    autotune_s: float  # of Horovod's autotuner

    @classmethod
    def measured(cls, default_s: float, step_s: float) -> Costs:
        """Return the costs, from the default's launch and from its step."""
        return cls(default_s, default_s + AUTOTUNE_STEPS * (step_s + _AUTOTUNE_CYCLE_S))


@dataclass(frozen=True)
class Validation:
    """How the winner is validated: in how many blocks, and with the autotuner among them?"""

    blocks: int
    autotune: bool

    def takes_s(self, costs: Costs) -> float:
        """Return about how long all its launches take."""
        return self.blocks * (2 * costs.launch_s + costs.autotune_s * self.autotune)


@dataclass(frozen=True)
class Division:
    """What of the budget is the validation's, and what there is to say about it."""

    validation: Validation
    validation_s: float
    note: str = ""


def divide(budget_s: float, costs: Costs, blocks: int, *, autotune: bool) -> Division:
    """Return the validation that fits: as asked for if it does, else less of it.

    First with fewer blocks (three at least, with the autotuner), then without the autotuner. Two
    blocks are validated in any case: without an interval a search would be for nothing.
    """
    room_s = budget_s * (1 - SEARCH_SHARE)
    asked = Validation(blocks, autotune)
    least = min(blocks, 3)
    tries = [Validation(count, True) for count in range(blocks, least - 1, -1) if autotune]
    tries += [Validation(count, False) for count in range(blocks, min(blocks, MIN_BLOCKS) - 1, -1)]
    fits = next((one for one in tries if one.takes_s(costs) <= room_s), tries[-1])
    needed_s = fits.takes_s(costs)
    note = "" if fits == asked else _told(asked, fits, costs, budget_s)
    if needed_s > room_s:
        note = (
            f"{note}; even so it takes about {_time(needed_s)}, more than {_time(room_s)}, and the "
            "budget will not be kept"
        ).removeprefix("; ")
    return Division(fits, needed_s, note)


def _told(asked: Validation, fits: Validation, costs: Costs, budget_s: float) -> str:
    less = [f"{fits.blocks} blocks instead of {asked.blocks}"] * (fits.blocks < asked.blocks)
    less += ["without Horovod's autotuner"] * (asked.autotune and not fits.autotune)
    whole_s = asked.takes_s(costs) / (1 - SEARCH_SHARE)
    return (
        f"validation as asked for takes about {_time(asked.takes_s(costs))}, too much of a budget "
        f"of {_time(budget_s)}: {', '.join(less)} "
        f"(--budget {math.ceil(whole_s / 60)}m has room for all of it)"
    )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
