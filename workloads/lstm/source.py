"""Synthetic text of a known entropy rate: a Markov chain with a sparse random transition table.

Of the tokens before it, the next one depends on the last ``order``, its context. Each context has
``branches`` successors, drawn at random, with probabilities from a flat Dirichlet distribution;
with probability ``noise`` the next token is instead any symbol, all alike. So every context
follows from every other, and the chain has one stationary distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workloads.api import WorkloadError

Tokens = NDArray[np.int32]
Float = NDArray[np.float64]

VERSION = 1  # of the tokens that a seed stands for
MAX_CONTEXTS = 1 << 20
CHUNK = 1 << 20  # tokens made at a time
_TABLE, _START, _TEXT = range(3)  # what a stream of random numbers is for
_SETTLED = 1e-12
_MAX_ITERATIONS = 20_000


@dataclass(frozen=True)
class MarkovSource:
    """A chain over the symbols 0 to ``symbols - 1``, everything in it drawn from ``seed``."""

    symbols: int
    order: int
    branches: int
    noise: float
    seed: int

    def __post_init__(self) -> None:
        if self.contexts > MAX_CONTEXTS:
            most = int(MAX_CONTEXTS ** (1 / self.order))
            raise WorkloadError(
                f"workload lstm: a source of order {self.order} over {self.symbols} symbols has "
                f"{self.contexts} contexts, and {MAX_CONTEXTS} is the most; set symbols to at most "
                f"{most}, or order to 1"
            )
        if self.branches > self.symbols:
            raise WorkloadError(
                f"workload lstm: {self.branches} branches of {self.symbols} symbols; set branches "
                "to at most that many"
            )

    @property
    def contexts(self) -> int:
        """The number of contexts; context x[t-1] + symbols * x[t-2] + ... comes before x[t]."""
        return int(self.symbols**self.order)

    @cached_property
    def table(self) -> tuple[Tokens, Float]:
        """Successors and their probabilities, less the noise: both (contexts, branches)."""
        random = self._random(_TABLE, 0)
        weights = random.standard_exponential((self.contexts, self.branches))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        successors = random.integers(
            0, self.symbols, (self.contexts, self.branches), dtype=np.int32
        )
        return successors, probabilities

    @cached_property
    def stationary(self) -> Float:
        """The share of every context in an endless text, (contexts,), by power iteration."""
        share = np.full(self.contexts, 1 / self.contexts)
        for _ in range(_MAX_ITERATIONS):
            following = self._step(share)
            change = float(np.abs(following - share).sum())
            if change < _SETTLED:
                return following
            share = following
        raise WorkloadError(
            f"workload lstm: the source's stationary distribution is not found in {_MAX_ITERATIONS}"
            " iterations; set noise higher"
        )

    @cached_property
    def floor_nats(self) -> float:
        """The entropy rate, nats a token: what no model's expected loss is below.

        Sum over contexts c of share(c) * H(next | c); Cover and Thomas, Elements of Information
        Theory, theorem 4.2.4.
        """
        return float(self.stationary @ self._row_entropies())

    @property
    def short_floor_nats(self) -> float:
        """As ``floor_nats``, for a model that sees but the token before: H(x[t+1] | x[t])."""
        both = np.zeros((self.symbols, self.symbols))
        successors, probabilities = self.table
        last = np.arange(self.contexts) % self.symbols
        flow = (1 - self.noise) * self.stationary[:, None] * probabilities
        np.add.at(both, (last[:, None], successors), flow)
        alone = np.bincount(last, self.stationary, self.symbols)
        both += self.noise / self.symbols * alone[:, None]
        return float(-(both * np.log(both / alone[:, None])).sum())

    def text(self, length: int) -> Iterator[Tokens]:
        """Yield ``length`` tokens, chunk by chunk, of one unbroken run of the chain."""
        share = np.cumsum(self.stationary)
        start = self._random(_START, 0).random() * share[-1]
        context = min(int(np.searchsorted(share, start, side="right")), self.contexts - 1)
        for chunk in range(-(-length // CHUNK)):
            count = min(CHUNK, length - chunk * CHUNK)
            tokens = self._chunk(self._random(_TEXT, chunk), context, count)
            for token in tokens[-self.order :].tolist():
                context = self._follow(context, token)
            yield tokens

    def _step(self, share: Float) -> Float:
        """Return the distribution of contexts one token after ``share``."""
        successors, probabilities = self.table
        kept = np.arange(self.contexts) % (self.contexts // self.symbols) * self.symbols
        flow = (1 - self.noise) * share[:, None] * probabilities
        target = kept[:, None] + successors
        following = np.bincount(target.ravel(), flow.ravel(), self.contexts)
        spread = np.bincount(kept // self.symbols, share, self.contexts // self.symbols)
        return following + np.repeat(spread, self.symbols) * (self.noise / self.symbols)

    def _row_entropies(self) -> Float:
        """Return H(next | context) in nats, (contexts,); successors may be drawn twice."""
        successors, probabilities = self.table
        order = np.argsort(successors, axis=1)
        sorted_successors = np.take_along_axis(successors, order, 1)
        mass = np.take_along_axis(probabilities, order, 1) * (1 - self.noise)
        last = np.ones(mass.shape, np.bool_)
        for column in range(self.branches - 1):  # equal successors' mass goes to the last of them
            same = sorted_successors[:, column] == sorted_successors[:, column + 1]
            mass[same, column + 1] += mass[same, column]
            last[:, column] = ~same
        uniform = self.noise / self.symbols
        each = np.where(last, mass + uniform, 1.0)  # 1 log 1 is nothing
        others = self.symbols - last.sum(axis=1)
        entropies: Float = -(each * np.log(each)).sum(axis=1) - others * uniform * math.log(uniform)
        return entropies

    def _follow(self, context: int, token: int) -> int:
        return context % (self.contexts // self.symbols) * self.symbols + token

    def _random(self, purpose: int, chunk: int) -> np.random.Generator:
        sequence = np.random.SeedSequence([self.seed, purpose, chunk])
        return np.random.Generator(np.random.Philox(sequence))

    def _chunk(self, random: np.random.Generator, context: int, count: int) -> Tokens:
        """Return the next ``count`` tokens after ``context``.

        After ``order`` tokens of noise the context is known, whatever came before. Such places cut
        the text into pieces that are filled side by side, a token of each at a time.
        """
        noisy = random.random(count) < self.noise
        any_symbol = random.integers(0, self.symbols, count, dtype=np.int32)
        choice = random.random(count)
        starts, contexts = self._pieces(noisy, any_symbol, context)
        lengths = np.diff(starts, append=count)
        longest_first = np.argsort(-lengths, kind="stable")
        starts, contexts = starts[longest_first], contexts[longest_first]
        lengths = lengths[longest_first]
        successors, probabilities = self.table
        bounds = np.cumsum(probabilities, axis=1)[:, :-1]
        tokens = np.empty(count, np.int32)
        keep = self.contexts // self.symbols
        for step in range(int(lengths[0])):
            active = int(np.searchsorted(-lengths, -step, side="left"))
            place, before = starts[:active] + step, contexts[:active]
            branch = (choice[place, None] >= bounds[before]).sum(axis=1)
            token = np.where(noisy[place], any_symbol[place], successors[before, branch])
            tokens[place] = token
            contexts[:active] = before % keep * self.symbols + token
        return tokens

    def _pieces(
        self, noisy: NDArray[np.bool_], any_symbol: Tokens, context: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where pieces begin, the first at 0, and the contexts there."""
        count = len(noisy)
        known = np.zeros(count, np.bool_)
        known[self.order :] = True
        code = np.zeros(count, np.int64)
        for back in range(1, self.order + 1):
            known[self.order :] &= noisy[self.order - back : max(count - back, 0)]
            code[back:] += self.symbols ** (back - 1) * any_symbol[: max(count - back, 0)]
        starts = np.concatenate([[0], np.flatnonzero(known)])
        return starts, np.concatenate([[context], code[starts[1:]]])
