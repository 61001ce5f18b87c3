"""What the ranks of ``hvdscale allreduce`` agree on before anything is measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.collectives import driver
from harness.collectives.api import AgreedError
from harness.config.models import RunConfig
from harness.spec import Resolved


class OtherNumpy:
    """The second of two ranks says what the first one does, but has another numpy."""

    def gather(self, value: Any) -> list[Any]:
        return [value, {**value, "numpy": "0.1"} if isinstance(value, dict) else value]


def test_ranks_with_other_software_measure_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = SimpleNamespace(world=SimpleNamespace(rank=0, size=2), control=OtherNumpy())
    monkeypatch.setattr(driver, "join", lambda *_: team)
    request = driver.Request((4096,), ("all_reduce",), ("torch",), max_iterations=1)
    config, resolved = cast(RunConfig, None), cast(Resolved, None)  # for whom joins
    with pytest.raises(AgreedError, match=r"rank 1 has numpy 0\.1, and rank 0 has \d+\.") as caught:
        driver.run(config, resolved, request, tmp_path, (0,), tell=lambda _: None)
    assert caught.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []
