"""What to try next: the first tunings as given, then what the optimiser proposes.

The optimiser is optuna's tree-structured Parzen estimator (TPE), seeded: with the same measurements
it proposes the same, so that a search that was broken off goes on as if it had not been.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.config.models import HorovodTuning
from harness.errors import MissingDependencyError
from harness.tuner.space import Choice, Space

if TYPE_CHECKING:
    import optuna

_STARTUP = 8  # measurements, the first tunings among them, before the estimator is asked
_PATIENCE = 5  # proposals in a row that were measured before
_DRAWS = 200  # at random, for a tuning that was not


@dataclass(frozen=True)
class Candidate:
    """A tuning to measure; ``origin`` says who named it."""

    tuning: HorovodTuning
    origin: str


#: Samples a second of what was measured; None where there was no measurement.
Seen = dict[HorovodTuning, float | None]
#: Yields what to measure; is sent its samples a second, None where there is no measurement.
Candidates = Generator[Candidate, float | None, None]


def require_optuna() -> None:
    """Raise MissingDependencyError where the optimiser is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"hvdscale tune searches with optuna ({error}); install it: pip install "
            "'hvdscale[tune]'"
        ) from None


def candidates(space: Space, first: Sequence[Candidate], seed: int) -> Candidates:
    """Yield ``first``, then proposals without end, or until every tuning was tried.

    No tuning is yielded twice: one launch of each is enough to go on from, and the winner is
    measured again anyway.
    """
    study = _Study(space, seed)
    seen: Seen = {}
    for candidate in first:
        if candidate.tuning not in seen:
            rate = yield candidate
            seen[candidate.tuning] = rate
            study.add(candidate.tuning, rate)
    while (tuning := _unseen(study, seen)) is not None:
        rate = yield Candidate(tuning, "search")
        seen[tuning] = rate
        study.tell(rate)


def _unseen(study: _Study, seen: Seen) -> HorovodTuning | None:
    """Return a proposal that was not measured; None where there seems to be none left.

    After the start two of three differ from the best so far in a single knob: most knobs act by
    themselves, and 40 launches are few for an estimator of seven. The third is the estimator's.
    """
    if len(seen) >= _STARTUP and len(seen) % 3:
        near = study.ask_nearby(seen)
        if near is not None:
            return near
    for _ in range(_PATIENCE):
        tuning = study.ask()
        if tuning not in seen:
            return tuning
        study.tell(seen[tuning])
    return study.ask_at_random(seen)


def _neighbours(space: Space, choice: Choice) -> Iterator[Choice]:
    """Yield the choices one step away: the next values of a list, or any other where unordered."""
    for knob in space.knobs:
        here = choice[knob.name]
        steps = (here - 1, here + 1) if knob.ordered else range(len(knob.values))
        for place in steps:
            if 0 <= place < len(knob.values) and place != here:
                yield {**choice, knob.name: place}


class _Study:
    """Optuna's study of one space: it maximises the logarithm of the throughput."""

    def __init__(self, space: Space, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, n_startup_trials=_STARTUP
        )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._space = space
        self._random = random.Random(seed)
        self._distributions: dict[str, optuna.distributions.BaseDistribution] = {
            knob.name: (
                optuna.distributions.IntDistribution(0, len(knob.values) - 1)
                if knob.ordered
                else optuna.distributions.CategoricalDistribution(range(len(knob.values)))
            )
            for knob in space.knobs
        }
        self._trial: optuna.trial.Trial | None = None

    def add(self, tuning: HorovodTuning, rate: float | None) -> None:
        """Learn of a measurement that was not proposed."""
        self._add(self._space.choice(tuning), rate)

    def ask(self) -> HorovodTuning:
        """Return what to measure next; ``tell`` follows."""
        self._trial = self._study.ask(self._distributions)
        return self._space.tuning(self._trial.params)

    def tell(self, rate: float | None) -> None:
        """Learn what came of the last proposal."""
        from optuna.trial import TrialState

        assert self._trial is not None
        if rate is None:
            self._study.tell(self._trial, state=TrialState.PRUNED)
        else:
            self._study.tell(self._trial, math.log(rate))

    def ask_at_random(self, seen: Seen) -> HorovodTuning | None:
        """Return a tuning that is not in ``seen``; None after many draws in vain."""
        for _ in range(_DRAWS):
            drawn = {k.name: self._random.randrange(len(k.values)) for k in self._space.knobs}
            if self._space.tuning(drawn) not in seen:
                return self._ask_for(drawn)
        return None

    def ask_nearby(self, seen: Seen) -> HorovodTuning | None:
        """Return an unmeasured neighbour of the best measurement; None where there is none."""
        rates = {tuning: rate for tuning, rate in seen.items() if rate is not None}
        if not rates:
            return None
        best = self._space.choice(max(rates, key=lambda tuning: rates[tuning]))
        near = [c for c in _neighbours(self._space, best) if self._space.tuning(c) not in seen]
        return self._ask_for(self._random.choice(near)) if near else None

    def _ask_for(self, choice: Choice) -> HorovodTuning:
        self._study.enqueue_trial(choice)
        return self.ask()

    def _add(self, choice: Choice, rate: float | None) -> None:
        import optuna

        if rate is None:
            return  # a pruned trial without a value would teach it nothing
        trial = optuna.trial.create_trial(
            params=choice, distributions=self._distributions, value=math.log(rate)
        )
        self._study.add_trial(trial)
