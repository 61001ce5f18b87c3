"""Labels of curves: unlike curves never have the same one."""

from __future__ import annotations

import json
from collections.abc import Iterable

from harness.analysis.labels import label_curves
from harness.analysis.match import curve_key
from harness.config import RunConfig
from harness.config.identity import canonical
from tests.factories import config


def _labels(configs: Iterable[RunConfig]) -> list[str]:
    keys = [curve_key(json.dumps(canonical(one))) for one in configs]
    return label_curves([(key, "mpi", "cpu") for key in keys])


def test_labels_of_unlike_curves_are_never_equal() -> None:
    plain = config("horovod", 2)
    unlike = {
        "mpi, backend asked for, batch 75": config("horovod", 2, backend="mpi"),
        "mpi, backend left open, batch 75": plain,
    }
    assert _labels(unlike.values()) == list(unlike)
    assert _labels([plain, config("horovod", 2, placement_policy="spread")]) == [
        "mpi, placement_policy pack, batch 75", "mpi, placement_policy spread, batch 75",
    ]  # fmt: skip
    close = [config("horovod", 2, measure={"window_s": w}) for w in (1.0, 1.0000001)]
    assert _labels(close) == [
        "mpi, measure.window_s 1, batch 75", "mpi, measure.window_s 1.0000001, batch 75",
    ]  # fmt: skip
    options = [config("horovod", 2, workload={"name": "x", "y": y}) for y in (1, "1")]
    assert sorted(_labels(options)) == ["mpi, batch 75 (1)", "mpi, batch 75 (2)"]
