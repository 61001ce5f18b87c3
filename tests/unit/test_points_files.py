"""What a sweep was asked for: windows and trainings in files of their own, side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.runner import point, run_sweep
from harness.runner.listing import list_sweep
from harness.runner.progress import PlainReport
from harness.store import Store
from tests.unit import stub_sweep


def asked(label: str, training: bool) -> dict[str, Any]:
    return {"point_id": label, "label": label, "base": False, "runs": ["r"], "training": training}


def write(folder: Path, name: str, *points: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps({"schema_version": 3, "points": points}))


def labels(folder: Path) -> list[str]:
    return [one.label for one in list_sweep(folder).points]


def test_who_asks_for_windows_does_not_write_what_others_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions had all in one file, of which the trainings are kept until they are new."""
    monkeypatch.setattr(point, "build", stub_sweep.fake_build(lambda config: "ok"))
    folder = tmp_path / "stub"
    Store.open(folder, create=True)
    write(folder, "points.json", asked("old window", False), asked("old training", True))
    assert labels(folder) == ["old window", "old training"]

    def run() -> list[str]:
        run_sweep(
            stub_sweep.make_sweep(), stub_sweep.MACHINE, tmp_path,
            report=PlainReport(sys.stderr), data_dir=tmp_path,
        )  # fmt: skip
        return labels(folder)

    (window, training) = run()
    assert training == "old training"
    assert window == "stress_strain none 1x1 batch 75"
    write(folder, "points-train.json", asked("new training", True))
    assert labels(folder) == [window, "new training"]
    assert run() == [window, "new training"]
    assert "old training" not in (folder / "points.json").read_text()
