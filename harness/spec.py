"""One launch, as it is handed to its ranks: what is decided before they start.

The launcher's side writes it to a file, ``hvdscale bench --run FILE`` reads it on every rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from harness.bounded import UnfitError, read_file
from harness.config.faults import validated_json
from harness.config.models import Frozen, RunConfig
from harness.errors import ConfigError

_MAX_BYTES = 1 << 24


class Resolved(Frozen):
    """What a config left open, as it was decided for one machine."""

    launcher: str
    backend: str | None
    controller: str | None
    placement: tuple[int, ...]  # devices per node, in the order of ``hosts``
    hosts: tuple[str, ...]
    device: Literal["cpu", "cuda"]
    cores_per_rank: int
    bind: bool  # each rank keeps to cores of its own; False where there are more ranks than cores

    @property
    def world_size(self) -> int:
        """Return N."""
        return sum(self.placement)


class BlockRef(Frozen):
    """Which repetition a launch belongs to: base and points of one block are paired."""

    repeat: int  # from 0
    allocation: str  # "local:HOST" or "slurm:JOBID"; blocks pair inside one allocation only
    order: int = 0  # position in the shuffled order of the block
    is_base: bool = False
    # Of a sweep with ci_target: how many blocks there are then depends on what was measured.
    sequential: bool = False


class RunSpec(Frozen):
    """Everything that the ranks of one launch are told."""

    run_id: str
    attempt: int
    sweep: str
    config: RunConfig
    resolved: Resolved
    block: BlockRef
    results: Path  # the sweep's folder; rank 0 writes the record below it
    log_dir: Path  # rank-K.log of this attempt
    data_dir: Path
    timeout_s: float
    #: A folder of each node's own that files are read from, variables left in (harness/scratch.py).
    scratch: str | None = None
    argv: tuple[str, ...] = ()  # what starts the ranks
    launch_id: str = ""  # marks the processes of this launch in their environment

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        """Read a file of ``text``; ConfigError where it is something else."""
        try:
            text = read_file(path, _MAX_BYTES)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnfitError as error:
            raise ConfigError(f"{path}: {error}; this is not the file of a launch") from None
        return validated_json(cls, text, f"{path}: not the run.json of a launch")

    def text(self) -> bytes:
        """Return the spec as the file has it that its ranks read."""
        return self.model_dump_json(indent=1).encode()
