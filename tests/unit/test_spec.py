"""The file that a launch's ranks read."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.config import RunConfig
from harness.errors import ConfigError
from harness.spec import BlockRef, Resolved, RunSpec


def spec(folder: Path) -> RunSpec:
    return RunSpec(
        run_id="0123456789abcdef",
        attempt=1,
        sweep="s",
        config=RunConfig.model_validate({"workload": "stress_strain", "batch_size": 75}),
        resolved=Resolved(
            launcher="mpirun",
            backend="mpi",
            controller="mpi",
            placement=(1,),
            hosts=("n1",),
            device="cpu",
            cores_per_rank=1,
            bind=True,
        ),
        block=BlockRef(repeat=0, allocation="local:n1"),
        results=folder,
        log_dir=folder,
        data_dir=folder,
        timeout_s=60.0,
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(spec(tmp_path).text())
    assert RunSpec.read(tmp_path / "run.json") == spec(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not the run.json of a launch: invalid JSON"),
        (b"name: x\nworkload: w\n", "invalid JSON"),
        (b"\xff\xfe\x00", "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b"[]", "should be an object"),
        (b"{}", r"run_id: is missing \(and \d+ more\)"),
        (b'{"run_di": 3}', "run_di: unknown key .*'run_id'"),
        (b" " * ((1 << 24) + 1), "larger than 16 MiB"),
    ],
)
def test_a_file_of_something_else_is_named_in_one_line(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"run.json: .*{words}") as caught:
        RunSpec.read(path)
    assert len(str(caught.value)) < 300 + len(str(path))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.json: cannot be read: No such file"):
        RunSpec.read(tmp_path / "no.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        RunSpec.read(tmp_path)
