"""A rank that the kernel ends because its cgroup's memory is full, as a batch system limits it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.matrix import FaultSweep, expected
from tests.requirements import require

LIMIT_BYTES = 2 << 30
#: Where a cgroup for memory can be made: the hierarchy of version 1, or the only one of version 2.
PLACES = {
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
ENTER = 'echo $$ > "$1/cgroup.procs" || exit 9; shift; exec "$@"'


def made_group() -> Path | None:
    """Make a cgroup of little memory; None where this user, or this machine, has none to make."""
    for place, limit in PLACES.items():
        group = place / "hvdscale-test-memory"
        with suppress(OSError):
            group.mkdir(exist_ok=True)
            if (group / limit).is_file():
                (group / limit).write_text(str(LIMIT_BYTES))
                return group
            group.rmdir()
    return None


@pytest.fixture
def group() -> Iterator[Path]:
    made = made_group()
    require("cgroup", made is not None, "no cgroup with a memory limit can be made here")
    assert made is not None
    yield made
    made.rmdir()  # refused where a process is left in it


def test_the_kernels_end_of_a_rank_is_known_as_such(
    group: Path, tmp_path: Path, data_dir: Path
) -> None:
    sweep = FaultSweep(tmp_path / "memory", data_dir, "torchrun", ("balloon",))
    found = sweep.end(sweep.begin(before=("/bin/sh", "-c", ENTER, "sh", str(group))))
    assert found.exit_code == 1
    status, cause = expected("torchrun", "balloon", sweep.timeout_s)
    assert found.records["balloon"].status == status
    assert re.fullmatch(cause, found.error("balloon").cause), found.error("balloon").cause
    assert any("now comes balloon" in line for line in found.error("balloon").rank_tails["1"])
    assert found.left == []
