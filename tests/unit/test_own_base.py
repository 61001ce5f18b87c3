"""Bases that a job measures for itself: in another allocation, in a share, in an element."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import Sweep, run_id
from harness.config.identity import point_id
from harness.config.models import Base
from harness.detect import Machine, Slurm
from harness.errors import ConfigError, StoreError
from harness.runner import point, schedule
from harness.runner.own_base import Part, part_launches
from harness.runner.progress import PlainReport
from harness.runner.share import Share, blocks_asked, run_share
from harness.runner.sweep import Summary, run_sweep
from harness.store import Store
from harness.submit.element import FOLDER, run_element
from harness.submit.manifest import ArrayManifest, Element
from harness.submit.site import Site
from tests.unit.stub_sweep import MACHINE, fake_build, make_sweep


def in_job(job_id: str, restarts: int = 0) -> Machine:
    slurm = Slurm(job_id, array_job_id="7", mpi_plugins=("pmix",), restart_count=restarts)
    return replace(MACHINE, slurm=slurm)


@pytest.fixture(autouse=True)
def launches_are_stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point, "build", fake_build(lambda config: "ok"))
    monkeypatch.setattr(point, "_SIGNALLED_S", 0.0)


@pytest.fixture
def sweep() -> Sweep:
    """Two batches at two ranks, each divided by one device with the same batch."""
    found = make_sweep((75, 100), blocks=2)
    keys = {"engine": "horovod", "backend": "gloo", "placement": "1x2"}
    return found.model_copy(update={"point": found.point | keys, "base": Base()})


def run(sweep: Sweep, machine: Machine, results: Path) -> Summary:
    return run_sweep(sweep, machine, results, report=PlainReport(sys.stderr), data_dir=results)


def share(sweep: Sweep, machine: Machine, results: Path, text: str) -> Summary:
    report = PlainReport(sys.stderr)
    return run_share(sweep, machine, results, Share.parse(text), report=report, data_dir=results)


def found(results: Path) -> list[tuple[str, int, str, bool]]:
    """Return (allocation, repeat, engine and batch, is_base) of every record."""
    return sorted(
        (
            record.block.allocation,
            record.block.repeat,
            f"{record.config.engine} {record.config.batch_size}",
            record.block.is_base,
        )
        for record in Store.open(results / "stub").records()
    )


class TestAnotherAllocation:
    def test_goes_on_with_bases_of_its_own(self, sweep: Sweep, tmp_path: Path) -> None:
        run(sweep.model_copy(update={"measure": sweep.measure.model_copy(update={"blocks": 1})}),
            in_job("1"), tmp_path)  # fmt: skip
        store = Store.open(tmp_path / "stub")
        lost = next(r for r in store.records() if r.config.engine == "horovod")
        store.retract(lost.run_id, "a disk ate it")
        summary = run(sweep, in_job("2"), tmp_path)
        batch = lost.config.batch_size
        again = [entry for entry in found(tmp_path) if entry[:2] == ("slurm:2", 0)]
        assert again == [
            ("slurm:2", 0, f"horovod {batch}", False),
            ("slurm:2", 0, f"none {batch}", True),
        ]
        assert summary.ok == 2 + 4

    def test_with_nothing_missing_measures_nothing(self, sweep: Sweep, tmp_path: Path) -> None:
        run(sweep, in_job("1"), tmp_path)
        assert run(sweep, in_job("2"), tmp_path).ok == 0

    def test_the_same_one_has_its_base_already(self, sweep: Sweep, tmp_path: Path) -> None:
        run(sweep, in_job("1"), tmp_path)
        store = Store.open(tmp_path / "stub")
        lost = next(r for r in store.records() if r.config.engine == "horovod")
        store.retract(lost.run_id, "a disk ate it")
        assert run(sweep, in_job("1"), tmp_path).ok == 1

    def test_a_restarted_job_is_another(self) -> None:
        assert in_job("5").allocation == "slurm:5"
        assert in_job("5", restarts=2).allocation == "slurm:5.r2"


class TestShare:
    @pytest.mark.parametrize(
        "text", ["", "3", "3/3", "-1/3", "a/b", "1/0", "0/0", "1/2/3", "1.0/2"]
    )
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(ConfigError, match="INDEX/COUNT"):
            Share.parse(text)

    def test_all_shares_are_the_sweep(self, sweep: Sweep, tmp_path: Path) -> None:
        for index in range(3):
            share(sweep, in_job(str(index)), tmp_path, f"{index}/3")
        points = [entry[1:] for entry in found(tmp_path) if not entry[3]]
        assert sorted(points) == [
            (repeat, f"horovod {batch}", False) for repeat in (0, 1) for batch in (100, 75)
        ]

    def test_each_point_has_its_base_beside_it(self, sweep: Sweep, tmp_path: Path) -> None:
        for index in range(3):
            share(sweep, in_job(str(index)), tmp_path, f"{index}/3")
        records = found(tmp_path)
        bases = {(job, repeat, name.split()[1]) for job, repeat, name, base in records if base}
        points = {(job, repeat, name.split()[1]) for job, repeat, name, base in records if not base}
        assert bases == points

    def test_again_it_does_only_what_is_missing(self, sweep: Sweep, tmp_path: Path) -> None:
        assert share(sweep, in_job("1"), tmp_path, "0/2").ok == 4
        assert share(sweep, in_job("2"), tmp_path, "0/2").ok == 0

    def test_a_base_that_is_a_point_pairs_in_its_own_job_alone(self, tmp_path: Path) -> None:
        """What is left of a share in a later job is divided by a base of that job."""
        sweep = make_sweep((75,)).model_copy(update={"base": Base()})
        keys = {"engine": ["none", "horovod"], "backend": "gloo", "placement": "1x1"}
        sweep = sweep.model_copy(update={"point": sweep.point | keys})
        share(sweep, in_job("1"), tmp_path, "0/1")
        store = Store.open(tmp_path / "stub")
        lost = next(r for r in store.records() if r.config.engine == "horovod")
        store.retract(lost.run_id, "a disk ate it")
        assert share(sweep, in_job("2"), tmp_path, "0/1").ok == 2
        assert [entry for entry in found(tmp_path) if entry[0] == "slurm:2"] == [
            ("slurm:2", 0, "horovod 75", False),
            ("slurm:2", 0, "none 75", True),
        ]
        assert share(sweep, in_job("3"), tmp_path, "0/1").ok == 0

    @pytest.mark.parametrize(("wide", "blocks"), [(True, 6), (False, 5)])
    def test_a_target_adds_a_block_when_those_before_are_done(
        self,
        sweep: Sweep,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        wide: bool,
        blocks: int,
    ) -> None:
        measure = sweep.measure.model_copy(update={"ci_target": 0.01, "max_blocks": 7, "blocks": 5})
        work = schedule.planned(sweep.model_copy(update={"measure": measure}), MACHINE, tmp_path)
        store = Store.open(work.folder, create=True)
        monkeypatch.setattr(schedule, "is_wide", lambda *_: wide)
        points = [run_id(p, repeat) for p in work.plan.points for repeat in range(5)]
        assert blocks_asked(work, store, set(points[1:])) == 5
        assert blocks_asked(work, store, set(points)) == blocks


class TestPart:
    @settings(deadline=None)
    @given(st.sets(st.integers(0, 3)), st.integers(0, 3))
    def test_no_base_without_a_point(self, done: set[int], repeat: int) -> None:
        sweep = make_sweep((1, 2, 3, 4)).model_copy(update={"base": Base(engine="ddp")})
        keys = {"engine": "horovod", "backend": "gloo", "placement": "1x2"}
        sweep = sweep.model_copy(update={"point": sweep.point | keys})
        work = schedule.planned(sweep, MACHINE, Path("nowhere"))
        points, bases = work.plan.points, tuple(b for b in work.plan.bases if b is not None)
        ids = {run_id(points[place], repeat) for place in done}
        part = Part(repeat, points, bases)
        launches = list(part_launches(part, "slurm:9", work.plan.resolved, ids.__contains__))
        if len(done) == 4:
            assert launches == []
            return
        own = {one.run_id for one in launches if one.block.is_base}
        assert own == {run_id(base, repeat, "slurm:9") for base in bases}
        assert {one.run_id for one in launches} - own == {run_id(p, repeat) for p in points}
        assert [one.block.order for one in launches] == list(range(len(launches)))

    def test_a_base_that_is_a_point_here_is_measured_once(self) -> None:
        sweep = make_sweep((75,)).model_copy(update={"base": Base()})
        work = schedule.planned(sweep, MACHINE, Path("nowhere"))
        (config,) = work.plan.points
        part = Part(0, (config,), (config,), is_base=frozenset({point_id(config)}))
        (launch,) = part_launches(part, "slurm:9", work.plan.resolved, lambda name: False)
        assert launch.run_id == run_id(config, 0)
        assert launch.block.is_base


class TestElement:
    @pytest.fixture
    def manifest(self, sweep: Sweep, tmp_path: Path) -> ArrayManifest:
        work = schedule.planned(sweep, MACHINE, tmp_path)
        points = work.plan.points
        bases = tuple(base for base in work.plan.bases if base is not None)
        configs = (*points, *bases)
        return ArrayManifest(
            version="0",
            sweep="stub",
            submission="s1",
            number=0,
            site=Site(name="here", nodes=1, cpus_per_node=8),
            results=work.folder,
            data_dir=tmp_path,
            placement=(2,),
            time_limit_s=600,
            timeout_s=240.0,
            configs=configs,
            resolved=tuple(work.plan.resolved[point_id(config)] for config in configs),
            elements=(
                Element(repeat=0, points=(0,), bases=(2,)),
                Element(repeat=1, points=(0, 1), bases=(2, 3)),
            ),
        )

    def run(self, manifest: ArrayManifest, index: int, machine: Machine, folder: Path) -> Summary:
        path = folder / "array-0.json"
        manifest.write(path)
        return run_element(path, index, PlainReport(sys.stderr), machine=machine)

    def test_runs_its_points_and_their_bases(self, manifest: ArrayManifest, tmp_path: Path) -> None:
        assert self.run(manifest, 1, in_job("12"), tmp_path).ok == 4
        assert found(tmp_path) == sorted(
            ("slurm:12", 1, f"{engine} {batch}", engine == "none")
            for engine in ("none", "horovod")
            for batch in (75, 100)
        )
        said = json.loads((manifest.results / FOLDER / "12.json").read_text())
        assert (said["state"], said["done"], said["failed"]) == ("ended", 4, 0)
        assert (said["array"], said["index"], said["launch"]) == ("7", 1, None)

    def test_after_a_requeue_it_does_what_is_missing(
        self, manifest: ArrayManifest, tmp_path: Path
    ) -> None:
        self.run(manifest, 1, in_job("12"), tmp_path)
        store = Store.open(manifest.results)
        lost = run_id(manifest.configs[1], 1)
        store.retract(lost, "gone with the node")
        assert self.run(manifest, 1, in_job("12", restarts=1), tmp_path).ok == 3  # and two bases
        assert self.run(manifest, 1, in_job("12", restarts=2), tmp_path).ok == 0

    def test_a_base_that_is_a_point_is_measured_again_for_what_is_left(
        self, manifest: ArrayManifest, tmp_path: Path
    ) -> None:
        """The start before had other nodes: what is left would pair with none of its launches."""
        alone = manifest.model_copy(
            update={"elements": (Element(repeat=0, points=(0, 2)),), "bases": (2,)}
        )
        self.run(alone, 0, in_job("12"), tmp_path)
        store = Store.open(manifest.results)
        store.retract(run_id(manifest.configs[0], 0), "gone with the node")
        assert self.run(alone, 0, in_job("12", restarts=1), tmp_path).ok == 2
        again = [entry for entry in found(tmp_path) if entry[0] == "slurm:12.r1"]
        assert again == [
            ("slurm:12.r1", 0, "horovod 75", False),
            ("slurm:12.r1", 0, "none 75", True),
        ]
        store.retract(run_id(manifest.configs[2], 0), "gone as well")
        assert self.run(alone, 0, in_job("12", restarts=2), tmp_path).ok == 1

    def test_what_would_be_decided_otherwise_is_not_run(
        self, manifest: ArrayManifest, tmp_path: Path
    ) -> None:
        other = manifest.resolved[0].model_copy(update={"device": "cuda"})
        wrong = manifest.model_copy(update={"resolved": (other, *manifest.resolved[1:])})
        summary = self.run(wrong, 0, in_job("12"), tmp_path)
        assert (summary.ok, summary.failed, summary.exit_code) == (1, 1, 1)
        ((cause, _),) = summary.causes
        assert "submitted with device cuda, and this job would run it with cpu" in cause

    def test_an_index_that_is_not_there(self, manifest: ArrayManifest, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="elements 0 to 1, and no element 2"):
            self.run(manifest, 2, in_job("12"), tmp_path)

    def test_a_changed_manifest(self, manifest: ArrayManifest, tmp_path: Path) -> None:
        path = tmp_path / "array-0.json"
        manifest.write(path)
        path.write_text(path.read_text().replace('"repeat":1', '"repeat":3'))
        with pytest.raises(StoreError, match="changed since it was submitted"):
            run_element(path, 0, PlainReport(sys.stderr), machine=MACHINE)
