"""``evaluations.parquet``: the trainings of a sweep, one row an evaluation."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.analysis.frame import arrow_table, facts
from harness.analysis.writing import mark_of, sum_path, write_table
from harness.errors import AnalysisError, StoreError
from harness.record import RunRecord, Training
from harness.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

EVALUATIONS = "evaluations.parquet"
EVALUATIONS_CSV = "evaluations.csv"
#: Raised when a column means something else.
_VERSION = 1

#: Which launch a row is of, as in ``table.parquet``.
POINT_COLUMNS = {
    "run_id": "string",
    "allocation": "string",
    "repeat": "Int64",
    "workload": "string",
    "framework": "string",
    "engine": "string",
    "backend": "string",
    "device": "string",
    "scaling": "string",
    "world_size": "Int64",
    "nodes": "Int64",
    "placement": "string",
    "batch_size": "Int64",
    "global_batch_size": "Int64",
    "rank_batch": "Int64",
    "global_batch": "Int64",
    "config": "string",
}
#: Every column, with the kind that it has also where a table has no value in it.
EVALUATION_COLUMNS = POINT_COLUMNS | {
    "step": "Int64",  # steps done; 0: the weights as they were initialised
    "epoch": "Float64",
    "train_s": "Float64",  # in training steps alone
    "wall_s": "Float64",  # until the metrics were known, with all that was not training
    "learning_rate": "Float64",  # of the last step
    "loss": "Float64",  # mean over ranks and the steps since the evaluation before
    "metric": "string",  # the workload's target metric
    "value": "Float64",  # of it, on the test split
    "lower_is_better": "boolean",
    "target": "Float64",
    "reached": "boolean",  # by this value; missing without a target
    "gradient_norm_sq": "Float64",  # |G|², estimated without bias
    "noise_trace": "Float64",  # tr(Σ) of one sample
    "noise_scale": "Float64",  # samples
    "metrics": "string",  # JSON of all metrics
}


def update_evaluations(store: Store, table: pa.Table) -> None:
    """Bring the files of a sweep's trainings up to date with its ``table.parquet``.

    A sweep without trainings has none. Raises AnalysisError where they cannot be written.
    """
    import pyarrow.compute as pc

    good = pc.and_(pc.equal(table["kind"], "train"), pc.equal(table["status"], "ok"))
    trained = table.filter(good)
    paths = store.path / EVALUATIONS, store.path / EVALUATIONS_CSV
    if not trained.num_rows:
        _remove(*paths, sum_path(paths[0]))
        return
    sources = trained.select(["file", "file_bytes", "file_mtime_ns"]).to_pylist()
    mark = hashlib.sha256(repr((_VERSION, EVALUATION_COLUMNS, sources)).encode()).hexdigest()
    if mark_of(paths[0]) == mark.encode() and paths[1].exists():
        return
    rows = [row for name in trained["run_id"].to_pylist() for row in _rows(store, name)]
    write_table(arrow_table(rows, EVALUATION_COLUMNS), *paths, mark.encode())


def load_evaluations(sweep_dir: Path | str) -> pa.Table:
    """Return the evaluations as ``collect`` last wrote them; no rows where nothing was trained."""
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(Path(sweep_dir) / EVALUATIONS).read()
    except FileNotFoundError:
        return arrow_table([], EVALUATION_COLUMNS)


def evaluation_rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record of kind ``train``, in the order of their steps."""
    found = record.training
    if found is None:
        raise StoreError(f"{record.run_id}: a training's record without its training")
    whole = facts(record.model_dump(mode="json"))
    point = {name: whole[name] for name in POINT_COLUMNS}
    noise = {one.step: one for one in found.noise}
    for evaluation in found.evaluations:
        value = evaluation.metrics[found.metric]
        estimate = noise.get(evaluation.step)
        yield point | {
            "step": evaluation.step,
            "epoch": evaluation.epoch,
            "train_s": evaluation.train_s,
            "wall_s": evaluation.wall_s,
            "learning_rate": evaluation.learning_rate,
            "loss": evaluation.loss,
            "metric": found.metric,
            "value": value,
            "lower_is_better": found.lower_is_better,
            "target": found.target,
            "reached": _reached(found, value),
            "gradient_norm_sq": estimate.gradient_norm_sq if estimate else None,
            "noise_trace": estimate.noise_trace if estimate else None,
            "noise_scale": estimate.noise_scale if estimate else None,
            "metrics": json.dumps(evaluation.metrics, sort_keys=True),
        }


def _reached(found: Training, value: float) -> bool | None:
    if found.target is None:
        return None
    return value <= found.target if found.lower_is_better else value >= found.target


def _rows(store: Store, run_id: str) -> Iterator[dict[str, Any]]:
    yield from evaluation_rows(store.read(run_id))


def _remove(*paths: Path) -> None:
    for path in paths:
        if not os.path.lexists(path):
            continue  # a read-only disk refuses even then
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise AnalysisError(
                f"{path}: of trainings that are not there any more, and cannot be removed: "
                f"{error.strerror}"
            ) from error
