"""Who measures what, when and for how long; pure.

Cost: a round of links takes at most ``Limits.pair_s``, 3.8 s with the default limits (half a second
over 100 Gbit/s), and n nodes need n − 1 rounds (n for an odd n). 64 nodes: the nodes' own speeds
half a minute to two with the start, and 63 rounds half a minute to 4 minutes, once a library.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.config.faults import validated_json
from harness.config.models import Frozen, RunConfig
from harness.errors import ConfigError
from harness.spec import Resolved
from harness.store import write_atomic
from harness.store.files import named_errors

Stage = Literal["speed", "gloo", "nccl", "mpi"]
Pair = tuple[int, int]
Rounds = tuple[tuple[Pair, ...], ...]

PING_BYTES = 8


class Limits(Frozen):
    """How long the parts of a preflight may take."""

    start_s: float = 120.0  # torch from a busy shared file system, on all nodes at once
    blocks: int = 12  # of training steps on each device
    block_s: float = 0.5
    speed_s: float = 60.0  # of all blocks: a slow step makes fewer of them
    min_blocks: int = 3
    warmups: int = 10  # round trips that are not kept
    round_trips: int = 50
    latency_s: float = 0.25  # of them: a slow link makes fewer
    smallest_bytes: int = 64 << 10  # of a transfer; times 4 until it lasts long enough
    largest_bytes: int = 64 << 20
    transfer_s: float = 1.0  # of the kept transfers of one direction
    enough_s: float = 0.125  # of one transfer
    transfers: int = 5
    patience_s: float = 30.0  # for a node that does not answer

    @property
    def pair_s(self) -> float:
        """Return what a pair with a working link may take: both directions, one after the other.

        The last of the transfers that find the size lasts at most 4 × ``enough_s``, and all of
        them a third more.
        """
        return 2 * (self.latency_s + self.transfer_s + 4 / 3 * 4 * self.enough_s)


class Task(Frozen):
    """What the program on every node is told: one stage, in one file."""

    stage: Stage
    look: int = 0
    nodes: tuple[str, ...]  # node of each rank, as the launcher was told
    folder: Path  # shared by the nodes: answers and logs of this stage
    config: RunConfig  # of one device: engine none
    resolved: Resolved
    data_dir: Path
    devices: int = 1  # of a node
    rounds: Rounds = ()  # pairs of ranks
    port: int = 0  # on the first node
    limits: Limits = Limits()
    timeout_s: float

    def write(self, path: Path) -> None:
        """Write the task where all nodes read it; StoreError where that cannot be."""
        with named_errors(path, "written"):
            write_atomic(path, self.model_dump_json().encode())

    @classmethod
    def read(cls, path: Path) -> Task:
        """Read what ``write`` wrote; ConfigError where it is something else."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read on this node ({error.strerror or error}): --results must "
                "be in a file system that all nodes share"
            ) from None
        return validated_json(cls, text, f"{path}: not the task of a preflight")


def rounds_of(nodes: int) -> Rounds:
    """Return every pair of ``nodes`` ranks once, in rounds in which a rank is in one pair at most.

    The round-robin tournament's circle: one stays, the others turn. With an odd count somebody
    pauses in each round. As few rounds as there can be: nodes − 1, or nodes where that is odd.
    """
    places = list(range(nodes + nodes % 2))  # the last one is nobody where nodes is odd
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        meetings = zip(places[:half], reversed(places[half:]), strict=True)
        pairs = [(min(pair), max(pair)) for pair in meetings if max(pair) < nodes]
        found.append(tuple(sorted(pairs)))
        places = [places[0], places[-1], *places[1:-1]]
    return tuple(round_ for round_ in found if round_)


def one_by_one(pairs: Sequence[Pair]) -> Rounds:
    """Return rounds of a single pair, so that nothing else is on the network meanwhile."""
    return tuple((pair,) for pair in pairs)


def speed_timeout_s(limits: Limits) -> float:
    """Return how long the nodes' own speeds may take, start and warm-up included."""
    return limits.start_s + limits.patience_s + 2 * limits.speed_s


def links_timeout_s(limits: Limits, rounds: Rounds) -> float:
    """Return how long the links may take; a silent node costs patience, and not in each round."""
    return limits.start_s + 4 * limits.patience_s + 2 * limits.pair_s * len(rounds)
