"""What an episode does: a sweep, the faults of its launches, and what befalls its runners.

All of it follows from the episode's seed; the moments at which things happen are real time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.faults.small_sweep import ENGINES

STUB_FAULTS = (
    *("raise", "segfault", "nothing", "garbage", "ok-then-3", "ok-then-hang", "hang"),
    *("hang-deaf", "hang-stopped", "daemon", "daemon-without-marker", "beaten"),
)
RANK_FAULTS = ("kill", "raise", "garbage", "leave", "stop")
ENDINGS = ("", "", "SIGKILL", "SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP")
DAMAGES = ("cut", "flip", "empty", "steps", "folder")
KINDS = tuple(ENGINES)  # of real launches: under which launcher
DAY_S = 86_400


@dataclass(frozen=True)
class Run:
    """One run of the sweep, and what is done to it."""

    faults: dict[int, str]  # of its launches, by batch size
    ending: str  # the signal that ends it, "" where it may come to its own end
    ending_after_s: float
    second: str  # a second runner at once: "", "same host" or "other host"
    clock_s: int  # how wrong its clock is
    full_disk: bool
    damages: tuple[str, ...]  # done to records after it


@dataclass(frozen=True)
class Episode:
    """A sweep that is run again and again, disturbed, and then to its end."""

    seed: int
    kind: str  # "stub", or one of KINDS
    batches: tuple[int, ...]
    blocks: int
    runs: tuple[Run, ...]
    small_disk: bool

    @property
    def faults(self) -> list[str]:
        """Return the kinds of all faults that are planned, as often as they are."""
        found = ["disk: small"] * self.small_disk
        for run in self.runs:
            found += [f"launch: {name}" for name in run.faults.values()]
            found += [f"runner: {run.ending}"] * bool(run.ending)
            found += [f"runner: a second, {run.second}"] * bool(run.second)
            found += ["runner: clock"] * bool(run.clock_s) + ["disk: full"] * run.full_disk
        return found


def make(seed: int, kinds: tuple[str, ...], *, may_mount: bool) -> Episode:
    """Return the episode of a seed; ``kinds`` are those to choose from."""
    dice = random.Random(seed)
    kind = dice.choice(kinds)
    stub = kind == "stub"
    batches = tuple(sorted(dice.sample(range(70, 100), dice.randint(2, 6 if stub else 2))))
    small_disk = dice.random() < 0.3 and may_mount and stub
    runs = tuple(_run(dice, stub, batches, small_disk) for _ in range(dice.randint(1, 3)))
    blocks = dice.randint(1, 3 if stub else 1)
    return Episode(seed, kind, batches, blocks, runs, small_disk)


def _run(dice: random.Random, stub: bool, batches: tuple[int, ...], small_disk: bool) -> Run:
    struck = [batch for batch in batches if dice.random() < 0.5]
    second = dice.choice(("", "", "same host", "other host"))
    if not stub and second == "other host":
        second = ""  # measurements side by side on two cores take too long
    return Run(
        faults={batch: dice.choice(STUB_FAULTS if stub else RANK_FAULTS) for batch in struck},
        ending=dice.choice(ENDINGS),
        ending_after_s=dice.uniform(0.5, 15.0 if stub else 60.0),
        second=second,
        clock_s=dice.choice((0, 0, -30 * DAY_S, 400 * DAY_S)),
        full_disk=small_disk and dice.random() < 0.7,
        damages=tuple(dice.choice(DAMAGES) for _ in range(dice.randint(0, 3))),
    )
