"""A sweep's records as every answer starts from them: read once, then pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.collecting import load_arrow
from harness.analysis.evaluations import load_evaluations
from harness.analysis.scaling import Curve, Failure, curves, failures
from harness.analysis.training import TrainedPoint, trainings
from harness.errors import AnalysisError
from harness.stats import LEVEL
from harness.store import Store

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Results:
    """What one sweep's folder holds. Curves are of launches with a window, never of trainings."""

    folder: Path
    name: str
    table: pa.Table  # as ``collect`` writes it: one row a record
    curves: tuple[Curve, ...]
    failures: tuple[Failure, ...]
    trainings: tuple[TrainedPoint, ...]

    @property
    def missing(self) -> tuple[Failure, ...]:
        """Return the last failure of every launch that no later attempt repaired."""
        last = {one.run_id: one for one in self.failures if not one.repaired}
        return tuple(last.values())

    def require_curves(self, what: str) -> tuple[Curve, ...]:
        """Return the curves; AnalysisError that says what is missing for ``what`` where none is."""
        if not self.curves:
            raise AnalysisError(f"{what}: {nothing_measured(self.folder, self.failures)}")
        return self.curves

    def steps(self, run_id: str, instrument: str = "none") -> pa.Table:
        """Return the raw steps of a launch, one row a rank and step: ``record.STEP_COLUMNS``.

        ``instrument`` names the block: ``none`` is the window. Raises StoreError where the file is
        not there, or is not what the record was written with.
        """
        import pyarrow.compute as pc

        found = Store.open(self.folder).read_steps(run_id)
        return found.filter(pc.equal(found["instrument"], instrument))


def load_results(
    sweep_dir: Path | str, *, base: str | None = None, mixed: bool = False, level: float = LEVEL
) -> Results:
    """Collect a sweep and return what it holds.

    ``base``, ``mixed`` and errors as of ``scaling.curves`` and ``training.trainings``. A folder
    without any record gives empty results: what needs some says so (``require_curves``).
    """
    folder = Path(sweep_dir)
    table = load_arrow(folder)
    return Results(
        folder=folder,
        name=Store.open(folder).name,
        table=table,
        curves=curves(table, base=base, level=level, mixed=mixed),
        failures=failures(table),
        trainings=trainings(table, load_evaluations(folder), level=level, mixed=mixed),
    )


def nothing_measured(folder: Path, failed: Sequence[Failure]) -> str:
    """Say why a folder holds no measurement, and what to do."""
    if not failed:
        return f"{folder} holds no measurements; run the sweep first: hvdscale run SWEEP.yaml"
    count = len({one.run_id for one in failed})
    launches = "its only launch" if count == 1 else f"all {count} launches"
    return (
        f"{folder} holds no measurements, {launches} failed, the last one: {failed[-1].cause}; "
        f"mend the cause and run the sweep again: hvdscale run SWEEP.yaml"
    )
