"""Perplexity over a split, read in order: which samples go together, and what is made of a loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: A split is read as so many streams side by side, whatever is trained on: a metric must not
#: depend on the batch size. Each begins with an empty state.
ROWS = 32


@dataclass(frozen=True)
class Scoring:
    """What is said of a mean loss, besides the loss itself."""

    byte_level: bool
    floor_nats: float | None  # no model's expected loss is less, where that is known

    def metrics(self, loss: float) -> dict[str, float]:
        """Return the metrics of a mean cross-entropy in nats a token.

        ``perplexity`` is exp(loss); at byte level ``bits_per_byte`` is loss / ln 2. Where the
        source's entropy rate is known it is ``floor_nats``, and ``excess_nats`` what the loss is
        above it; of a finite split that may fall below zero by what the split differs from its
        source.
        """
        found = {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf}
        if math.isnan(loss):
            found["perplexity"] = math.nan
        if self.byte_level:
            found["bits_per_byte"] = loss / math.log(2)
        if self.floor_nats is not None:
            found |= {"floor_nats": self.floor_nats, "excess_nats": loss - self.floor_nats}
        return found


def streams(samples: int, rows: int = ROWS) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of samples that are read together; row r of each goes on in the next.

    All samples come once. Streams are as long as each other, or the first ones by one sample
    longer: the last indices may be fewer, of the first rows alone.
    """
    rows = min(rows, samples)
    if not rows:
        return
    length, longer = divmod(samples, rows)
    row = np.arange(rows, dtype=np.int64)
    first = row * length + np.minimum(row, longer)
    for step in range(length):
        yield first + step
    if longer:
        yield first[:longer] + length
