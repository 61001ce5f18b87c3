"""The synthetic source: its entropy rate is exact, its text is one unbroken run of the chain."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from workloads.api import WorkloadError
from workloads.lstm import source
from workloads.lstm.source import MarkovSource


def next_token(chain: MarkovSource) -> NDArray[np.float64]:
    """P(next token | context), (contexts, symbols), entry by entry."""
    successors, probabilities = chain.table
    rows = np.full((chain.contexts, chain.symbols), chain.noise / chain.symbols)
    for context in range(chain.contexts):
        for branch in range(chain.branches):
            share = (1 - chain.noise) * probabilities[context, branch]
            rows[context, successors[context, branch]] += share
    return rows


def stationary(chain: MarkovSource, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The eigenvector of the dense matrix between contexts, by linear algebra."""
    count = chain.contexts
    matrix = np.zeros((count, count))
    for context in range(count):
        for token in range(chain.symbols):
            after = (context * chain.symbols) % count + token
            matrix[context, after] += rows[context, token]
    system = np.vstack([matrix.T - np.eye(count), np.ones(count)])
    found: NDArray[np.float64] = np.linalg.lstsq(system, np.append(np.zeros(count), 1.0))[0]
    return found


@settings(max_examples=25, deadline=None)
@given(
    symbols=st.integers(2, 5),
    order=st.integers(1, 3),
    branches=st.integers(1, 4),
    noise=st.floats(0.02, 1.0),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_entropy_rate_is_that_of_the_dense_chain(
    symbols: int, order: int, branches: int, noise: float, seed: int
) -> None:
    chain = MarkovSource(symbols, order, min(branches, symbols), noise, seed)
    rows = next_token(chain)
    assert np.allclose(rows.sum(axis=1), 1)
    share = stationary(chain, rows)
    assert chain.stationary == pytest.approx(share, abs=1e-8)
    assert chain.floor_nats == pytest.approx(-(share[:, None] * rows * np.log(rows)).sum())
    # What is known of the next token by the last one alone.
    both = np.zeros((symbols, symbols))
    for context in range(chain.contexts):
        both[context % symbols] += share[context] * rows[context]
    alone = both.sum(axis=1, keepdims=True)
    assert chain.short_floor_nats == pytest.approx(-(both * np.log(both / alone)).sum())
    assert chain.floor_nats <= chain.short_floor_nats + 1e-9 <= math.log(symbols) + 2e-9


def test_noise_alone_has_the_entropy_of_a_die() -> None:
    assert MarkovSource(6, 1, 2, 1.0, 3).floor_nats == pytest.approx(math.log(6), abs=1e-12)


def test_one_successor_leaves_only_the_noise() -> None:
    # Next token: 0.9 + 0.1/4 for the successor, 0.1/4 for each of three others, in every context.
    expected = -(0.925 * math.log(0.925) + 3 * 0.025 * math.log(0.025))
    assert MarkovSource(4, 2, 1, 0.1, 7).floor_nats == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_pieces_side_by_side_are_the_chain_token_by_token(order: int) -> None:
    chain = MarkovSource(5, order, 3, 0.3, 11)
    made = chain._chunk(np.random.default_rng(1), context=2, count=4000)
    random = np.random.default_rng(1)
    noisy = random.random(4000) < chain.noise
    symbol, choice = random.integers(0, 5, 4000, dtype=np.int32), random.random(4000)
    successors, probabilities = chain.table
    context = 2
    for t in range(4000):
        branch = int((choice[t] >= np.cumsum(probabilities[context])[:-1]).sum())
        token = symbol[t] if noisy[t] else successors[context, branch]
        assert made[t] == token
        context = int(context * 5 % chain.contexts + token)


def test_text_is_unbroken_where_chunks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK", 3)
    chain = MarkovSource(50, 2, 1, 0.02, 5)
    tokens = np.concatenate(list(chain.text(2000)))
    assert len(tokens) == 2000
    context = tokens[1:-1] + 50 * tokens[:-2]
    surprises = int((chain.table[0][context, 0] != tokens[2:]).sum())
    assert surprises <= 80  # of noise: 39 expected, while 1,300 contexts span two chunks


def test_text_follows_the_table_and_its_floor() -> None:
    chain = MarkovSource(8, 2, 3, 0.05, 1)
    tokens = np.concatenate(list(chain.text(400_000)))
    rows = next_token(chain)
    context = tokens[1:-1] + 8 * tokens[:-2]
    nats = -np.log(rows[context, tokens[2:]])
    assert float(nats.mean()) == pytest.approx(chain.floor_nats, abs=5 * nats.std() / 400_000**0.5)
    seen = np.bincount(context, minlength=64) / len(context)
    assert np.abs(seen - chain.stationary).max() < 0.005


def test_a_seed_stands_for_its_text_for_ever() -> None:
    first = np.concatenate(list(MarkovSource(256, 1, 4, 0.05, 1).text(8)))
    assert first.tolist() == [180, 147, 237, 244, 107, 22, 84, 229]
    other = np.concatenate(list(MarkovSource(256, 1, 4, 0.05, 2).text(8)))
    assert other.tolist() != first.tolist()


def test_a_source_that_is_too_large_or_impossible_is_one_line() -> None:
    with pytest.raises(WorkloadError, match=r"100000000 contexts.*set symbols to at most 1024, or"):
        MarkovSource(10_000, 2, 4, 0.05, 1)
    with pytest.raises(WorkloadError, match="4 branches of 3 symbols; set branches"):
        MarkovSource(3, 1, 4, 0.05, 1)
