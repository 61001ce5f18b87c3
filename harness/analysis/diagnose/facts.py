"""What a launch's row of the table says beyond ``points.Launch``, and its raw steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.analysis.diagnose.lateness import Spread, spread
from harness.analysis.points import Launch
from harness.analysis.results import Results
from harness.digits import whole
from harness.errors import StoreError
from harness.store.raw import raw_ids

_COLUMNS = (
    *("run_id", "status", "cores_per_rank", "provenance", "telemetry_overhead"),
    *("telemetry_overhead_error", "gpu_utilisation", "gpu_sm_activity", "rank_cpu_cores"),
    *("allreduce_bytes", "busbw_bytes_per_s", "gradient_bytes", "gpu_throttle_reasons"),
    *("phase_overhead", "drifting"),
)


class Facts:
    """The rows and raw steps of a sweep's launches, each read when it is asked for."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._spreads: dict[str, Spread | None] = {}
        self.unread: dict[str, str] = {}  # raw steps that are not there, by run, and why

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        table = self._results.table.select(list(_COLUMNS))
        return {row["run_id"]: row for row in table.to_pylist() if row["status"] == "ok"}

    @property
    def _runs(self) -> Path:
        return self._results.folder / "runs"

    @cached_property
    def _with_steps(self) -> frozenset[str]:
        return raw_ids(self._runs, "steps")

    def row(self, launch: Launch) -> Mapping[str, Any]:
        """Return the columns of a launch that are used here, None where not measured."""
        return self._rows[launch.run_id]

    def spread(self, launch: Launch) -> Spread | None:
        """Return how a launch's ranks differ; None where nobody waits, or it cannot be read."""
        if launch.exposed_sync_s is None:
            return None
        run_id = launch.run_id
        if run_id not in self._spreads:
            self._spreads[run_id] = self._read(run_id)
        return self._spreads[run_id]

    def _read(self, run_id: str) -> Spread | None:
        if run_id not in self._with_steps:  # said without reading thousands of records
            self.unread[run_id] = f"{self._runs / run_id}.*.steps.parquet: is missing"
            return None
        try:
            found = self._results.steps(run_id, "phases")
        except StoreError as error:
            # A diagnosis without the rank's name is worth having; that it is missing is said.
            self.unread[run_id] = str(error)
            return None
        return spread(found)

    def telemetry_s(self, launch: Launch) -> tuple[float, float | None] | None:
        """Return what the sampler cost a step of the window, and the standard error of that."""
        row = self.row(launch)
        cost, error = row["telemetry_overhead"], row["telemetry_overhead_error"]
        if cost is None or cost <= -1:
            return None
        plain_s = launch.step_s / (1 + cost)
        return cost * plain_s, None if error is None else error * plain_s

    def crowding(self, launch: Launch, ranks_on_node: int) -> str | None:
        """Say that a node has more ranks, or cores given to them, than cores; None where not."""
        row = self.row(launch)
        known = json.loads(row["provenance"] or "{}")
        cores = _number(known.get("cores"))
        if cores is None:
            return None
        given = ranks_on_node * (row["cores_per_rank"] or 1)
        if ranks_on_node > cores:
            return f"{ranks_on_node} ranks on the {cores} cores of a node"
        if given > cores:
            each = row["cores_per_rank"]
            return f"{ranks_on_node} ranks of {each} cores each on the {cores} cores of a node"
        return None

    def shared_cores(self, launch: Launch, ranks_on_node: int) -> str | None:
        """Say that ranks share physical cores as hardware threads; None where not, or unknown."""
        known = json.loads(self.row(launch)["provenance"] or "{}")
        physical, threads = _number(known.get("node.physical_cores")), _number(known.get("cores"))
        if physical is None or threads is None or not physical < ranks_on_node <= threads:
            return None
        return f"{ranks_on_node} ranks share {physical} physical cores as hardware threads"


def _number(value: object) -> int | None:
    """Return a count that all nodes have in common; None for ``2 / 4`` or nothing."""
    return whole(str(value))
