"""Data brought to nodes: two nodes as two folders, and workloads that read what was copied."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import scratch, staging
from harness.engines.api import World
from harness.errors import LaunchError
from harness.measure import seats
from harness.record import DataSource
from harness.staging import DataPlace, RankData, stage
from tests.unit.fake_engine import FakeEngine
from workloads import registry

ASKED = "$LOCAL/hvdscale-4711"


class Nodes:
    """Ranks in order, each with its node; a rank's turn makes this process be that rank."""

    def __init__(self, patch: pytest.MonkeyPatch, tmp_path: Path, *ranks_of: int) -> None:
        self._patch = patch
        self.worlds = [
            World(sum(ranks_of[:node]) + local, sum(ranks_of), local, ranks)
            for node, ranks in enumerate(ranks_of)
            for local in range(ranks)
        ]
        self.hosts = [f"n{node}" for node, ranks in enumerate(ranks_of) for _ in range(ranks)]
        self.folders = [tmp_path / f"local-{host}" for host in self.hosts]
        self.files: tuple[Path, ...] = ()
        self.place = DataPlace(tmp_path / "shared", ASKED)
        for folder in self.folders:
            folder.mkdir(exist_ok=True)

    def become(self, rank: int) -> World:
        host = self.hosts[rank]
        for module in (scratch, seats):
            self._patch.setattr(module.socket, "gethostname", lambda: host)
        self._patch.setattr(seats, "_kernel", lambda: f"kernel of {host}")
        self._patch.setenv("LOCAL", str(self.folders[rank]))
        return self.worlds[rank]

    def gathered(self) -> list[RankData]:
        """Return what every rank says, local rank 0 of each node first, as it is awaited."""
        said: dict[int, RankData] = {}
        for rank in sorted(range(len(self.worlds)), key=lambda r: self.worlds[r].local_rank):
            world = self.become(rank)
            said[rank] = staging._bring(self.files, self.place.shared, ASKED, world)
        return [said[rank] for rank in sorted(said)]

    def stage(self, rank: int, said: list[RankData]) -> tuple[Path, DataSource | None]:
        """Return what a rank gets, once all ranks have said theirs."""

        class Engine(FakeEngine):
            def gather(self, value: Any) -> list[Any]:
                return said

        return stage(self.files, self.place, Engine(), self.become(rank))


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Return two nodes of two ranks and one, and a file to copy."""
    made = Nodes(monkeypatch, tmp_path, 2, 1)
    made.place.shared.mkdir()
    made.files = (made.place.shared / "curves.f32",)
    made.files[0].write_bytes(b"c" * 5000)
    return made


def test_each_node_has_one_copy_and_its_ranks_read_there(nodes: Nodes) -> None:
    said = nodes.gathered()
    assert [one.copied_bytes for one in said] == [5000, 0, 5000]
    for rank, folder in enumerate(nodes.folders):
        data = folder / "hvdscale-4711" / "data"
        found, source = nodes.stage(rank, said)
        assert found == data
        assert (data / "curves.f32").read_bytes() == b"c" * 5000
        assert source is not None
        assert source.folder == str(nodes.folders[0] / "hvdscale-4711" / "data")
        assert (source.scratch, source.copied_bytes) == (ASKED, 10_000)
        assert source.copy_s == max(one.wall_s for one in said) > 0
    _, source = nodes.stage(1, nodes.gathered())
    assert source is not None
    assert source.copied_bytes == 0


def test_one_node_that_cannot_is_told_by_all_ranks(nodes: Nodes) -> None:
    shutil.rmtree(nodes.folders[2])
    nodes.folders[2].write_text("a file in the way")
    said = nodes.gathered()
    for rank in range(3):
        with pytest.raises(LaunchError, match=r"^scratch \S*local-n1\S* on node n1: .*; set HVDSC"):
            nodes.stage(rank, said)


def test_a_variable_that_one_rank_lacks(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    real = scratch.folder_here

    def here(asked: str, environ: Mapping[str, str]) -> Path:
        return real(asked, {} if scratch.socket.gethostname() == "n1" else environ)

    monkeypatch.setattr(scratch, "folder_here", here)
    with pytest.raises(LaunchError, match="on node n1: LOCAL is not set there"):
        nodes.stage(0, nodes.gathered())


def test_ranks_of_a_node_that_mean_other_folders(nodes: Nodes, tmp_path: Path) -> None:
    nodes.folders[1] = tmp_path / "of-rank-1"  # as a TMPDIR of each task's own
    with pytest.raises(LaunchError, match=r"on node n0: \S+ for rank 0 and \S+ for rank 1; set"):
        nodes.stage(0, nodes.gathered())


def test_without_scratch_or_files_nothing_is_copied(nodes: Nodes) -> None:
    world, engine = nodes.become(0), FakeEngine()
    shared = nodes.place.shared
    plain = stage(nodes.files, DataPlace(shared), engine, world)
    assert plain == (shared, DataSource(folder=str(shared)))
    assert stage((), nodes.place, engine, world) == (shared, None)
    assert list(nodes.folders[0].iterdir()) == []


WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "stress_strain": ("stress_strain", {"samples": 40}),
    "resnet": ("resnet", {"samples": 16, "image_size": 8, "classes": 4}),
    "lstm": ("lstm", {"length": 4000, "sequence": 16}),
    "lstm text": ("lstm", {"data": "text", "sequence": 4}),
    "lstm words": ("lstm", {"data": "text", "tokens": "word", "vocabulary": 20, "sequence": 4}),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_reads_the_copies_of_its_data_files(name: str, tmp_path: Path) -> None:
    workload, options = WORKLOADS[name]
    if options.get("data") == "text":
        text = tmp_path / "text.txt"
        text.write_text("the cat sat on the mat and so did the dog\n" * 20)
        options = options | {"path": str(text)}
    shared, local = tmp_path / "shared", tmp_path / "hvdscale-1"
    first = registry.create(workload, options, shared)
    first.prepare()
    files = first.data_files()
    made = {path for path in shared.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert set(files) == made  # none is forgotten
    copied = scratch.copy_data(files, shared, local)
    samples = [first.train(), first.test()]
    wanted = [one.gather(np.arange(len(one))) for one in samples]
    shutil.rmtree(shared)
    second = registry.create(workload, options, copied.folder)
    assert second.train_size() == first.train_size()
    for split, (inputs, targets) in zip((second.train(), second.test()), wanted, strict=True):
        assert all(copied.folder in path.parents for path in split.files())
        found = split.gather(np.arange(len(split)))
        assert np.array_equal(found[0], inputs)
        assert np.array_equal(found[1], targets)
    # Nothing had to be made there: what is known of a text came along.
    assert {path.name for path in copied.folder.rglob("*")} == {path.name for path in files}


def test_data_that_is_elsewhere_has_no_files(tmp_path: Path) -> None:
    digits = registry.create("resnet", {"data": "digits", "classes": 10}, tmp_path)
    folder = registry.create("resnet", {"data": "folder", "path": "/pictures"}, tmp_path)
    assert digits.data_files() == folder.data_files() == ()
