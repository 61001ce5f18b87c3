"""What is submitted, and what is not again."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from harness import slurm
from harness.config import RunConfig, Sweep, run_id
from harness.config.identity import point_id
from harness.errors import ConfigError, HarnessError, MissingDependencyError, StoreError
from harness.runner.alone import BusyError, alone
from harness.runner.listing import list_sweep
from harness.store import Store
from harness.submit import arrays
from harness.submit.manifest import ArrayManifest, Jobs, parse_comment
from harness.submit.site import Site
from harness.submit.submission import Submission
from harness.submit.submit import SubmitError, Wishes, submit
from tests import factories
from tests.unit.submit_cases import FakeSlurm, install, make_site, make_sweep, make_work

SITE = make_site()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return install(monkeypatch)


def sent(
    results: Path,
    sweep: Sweep | None = None,
    site: Site = SITE,
    *,
    dry_run: bool = False,
    **how: Any,
) -> Submission:
    """Submit a sweep."""
    wanted = sweep or make_sweep()
    training = how.pop("training", False)
    wishes = Wishes(**how)
    return submit(wanted, site, results, wishes=wishes, training=training, dry_run=dry_run)


def launches(found: Iterable[ArrayManifest]) -> list[tuple[str, int]]:
    """Return placement and repeat of all points, sorted."""
    return sorted(
        (str(array.configs[place].placement), element.repeat)
        for array in found
        for element in array.elements
        for place in (*element.points, *element.timelines)
    )


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def commit(results: Path, sweep: Sweep, *, blocks: int | None = None, rates: Any = None) -> None:
    """Put a record of every point there, of all blocks or the first ``blocks``."""
    work = make_work(sweep, SITE, results=results)
    store = Store.open(work.folder, create=True)
    for repeat in range(work.blocks if blocks is None else blocks):
        for config in work.plan.points:
            if store.is_done(run_id(config, repeat)):
                continue
            resolved = work.plan.resolved[point_id(config)]
            rate = rates(config, repeat) if rates is not None else None
            store.commit(
                factories.record(
                    config, repeat, resolved=resolved, throughput=rate, steps_sha256=None
                ),
                None,
            )


ALL = [(placement, repeat) for placement in ("1x1", "1x2", "2x1") for repeat in (0, 1)]


class TestFirst:
    def test_everything_is_submitted(self, tmp_path: Path, fake: FakeSlurm) -> None:
        submission = sent(tmp_path)
        assert launches(fake.arrays) == ALL
        assert submission.job_ids == ("100", "101", "102")
        assert submission.collect_id == "103"
        assert submission.parsable() == "100\n101\n102\n103\n"
        assert fake.questions == 0  # there is nothing that could be in the queue

    def test_what_is_written(self, tmp_path: Path, fake: FakeSlurm) -> None:
        submission = sent(tmp_path)
        folder = tmp_path / "scale" / "slurm" / submission.name
        names = {"array-0", "array-1", "array-2"}
        assert {p.name for p in folder.iterdir()} == {
            *(f"{name}.{suffix}" for name in names for suffix in ("json", "sh")),
            "collect.sh",
            "jobs.json",
        }
        assert [call.script for call in fake.calls] == [
            *(folder / f"array-{number}.sh" for number in range(3)),
            folder / "collect.sh",
        ]
        assert Jobs.read(folder) == Jobs(arrays={0: "100", 1: "101", 2: "102"}, collect="103")
        assert (tmp_path / "scale" / "slurm" / "logs").is_dir()
        state = list_sweep(tmp_path / "scale")  # `hvdscale ls` knows of it
        assert sorted((p.label.split()[2], p.asked) for p in state.points if not p.base) == [
            ("1x1", 2),
            ("1x2", 2),
            ("2x1", 2),
        ]
        assert "batch_size: 20" in (tmp_path / "scale" / "sweep.yaml").read_text()

    def test_answers_are_on_disk_before_the_next_call(
        self, tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[dict[int, str]] = []

        def watching(options: Any, script: Path, arguments: Any = ()) -> str:
            seen.append(dict(Jobs.read(script.parent).arrays))
            return fake.submit(options, script)

        monkeypatch.setattr(slurm, "submit", watching)
        sent(tmp_path)
        assert seen == [{}, {0: "100"}, {0: "100", 1: "101"}, {0: "100", 1: "101", 2: "102"}]

    def test_the_collection_waits_for_all_however_they_end(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        sent(tmp_path)
        assert fake.calls[-1].option("dependency") == "afterany:100:101:102"
        assert [call.option("dependency") for call in fake.calls[:-1]] == [None] * 3

    def test_wishes(self, tmp_path: Path, fake: FakeSlurm) -> None:
        submission = sent(tmp_path, throttle=3, after="afterok:7", collect=False, shared_base=True)
        assert [call.option("array") for call in fake.calls] == ["0-1%3"] * 3
        assert [call.option("dependency") for call in fake.calls] == ["afterok:7"] * 3
        assert submission.collect_id is None
        assert all(not element.bases for array in fake.arrays for element in array.elements)

    def test_trainings(self, tmp_path: Path, fake: FakeSlurm) -> None:
        sent(tmp_path, training=True)
        assert all(array.training for array in fake.arrays)
        assert {c.train is not None for array in fake.arrays for c in array.configs} == {True}

    @pytest.mark.parametrize(
        ("wish", "words"),
        [
            ({"throttle": 0}, "--throttle 0"),
            ({"points_per_job": -1}, "--points-per-job -1"),
            ({"after": "afterok:1; rm"}, "--after afterok:1; rm"),
        ],
    )
    def test_wishes_that_are_none(
        self, tmp_path: Path, fake: FakeSlurm, wish: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ConfigError, match=re.escape(words)):
            sent(tmp_path, **wish)
        assert files(tmp_path) == {}

    def test_what_is_told(self, tmp_path: Path, fake: FakeSlurm) -> None:
        submission = sent(tmp_path)
        assert submission.text() == "\n".join(
            (
                "scale: 6 launches missing (0 done, 0 queued or running)",
                "  array 0  1x1  2 elements  of 1 node   up to 2 launches each  "
                "time limit 0:07:00  job 100",
                "  array 1  1x2  2 elements  of 1 node   up to 2 launches each  "
                "time limit 0:07:00  job 101",
                "  array 2  2x1  2 elements  of 2 nodes  up to 2 launches each  "
                "time limit 0:07:00  job 102",
                "  collect and report when all are over  job 103",
                f"{submission.folder}: at most 0.9 node-hours",
            )
        )

    def test_the_folder_of_data(
        self, tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HVDSCALE_DATA_DIR", str(tmp_path / "mine"))
        assert sent(tmp_path / "a").arrays[0].data_dir == tmp_path / "mine"
        site = make_site(data_dir=str(tmp_path / "sites"))
        assert sent(tmp_path / "b", site=site).arrays[0].data_dir == tmp_path / "sites"

    def test_names_are_unlike(self, tmp_path: Path, fake: FakeSlurm) -> None:
        one, other = sent(tmp_path / "a"), sent(tmp_path / "b")
        assert one.name != other.name
        assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", one.name)
        assert parse_comment(one.arrays[2].comment) == (one.name, 2)


class TestNothingIsWritten:
    @pytest.mark.parametrize(
        ("keys", "site"),
        [
            ({"placement": "8x1"}, SITE),  # the site has four nodes
            ({"placement": "1x8"}, SITE),
            ({"backend": "nccl"}, SITE),  # and no GPU
            ({"measure": {"window_s": 3000, "timeout_s": 4000}}, make_site(max_time="30:00")),
        ],
    )
    def test_where_a_fault_is_found(
        self, tmp_path: Path, fake: FakeSlurm, keys: dict[str, Any], site: Site
    ) -> None:
        with pytest.raises(HarnessError) as error:
            sent(tmp_path, make_sweep(**keys), site)
        assert error.value.exit_code == 2
        assert files(tmp_path) == {}
        assert fake.calls == []

    def test_where_so_many_points_do_not_fit_into_a_job(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        site = make_site(time_per_point="2:00", max_time="10:00")
        sweep = make_sweep(batch_size=[10, 20, 30])
        with pytest.raises(ConfigError, match="take a smaller --points-per-job"):
            sent(tmp_path, sweep, site, points_per_job=3)
        assert files(tmp_path) == {}
        sent(tmp_path, sweep, site, points_per_job=1)
        assert len(launches(fake.arrays)) == 18

    def test_where_there_is_no_slurm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slurm, "is_here", lambda: False)
        with pytest.raises(MissingDependencyError, match="login node"):
            sent(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_while_another_submits(self, tmp_path: Path, fake: FakeSlurm) -> None:
        sent(tmp_path)
        fake.ends()
        before = files(tmp_path)
        with alone(tmp_path / "scale", "submitter"), pytest.raises(BusyError, match="submits"):
            sent(tmp_path)
        assert len(fake.calls) == 4
        lock = {name for name in before if "submitter" in name}
        assert {n for n, text in files(tmp_path).items() if text != before.get(n)} <= lock

    def test_a_runner_does_not_stop_a_submission(self, tmp_path: Path, fake: FakeSlurm) -> None:
        Store.open(tmp_path / "scale", create=True)
        with alone(tmp_path / "scale"):
            assert sent(tmp_path).arrays


class TestAgain:
    def test_what_is_queued_is_not_submitted_twice(self, tmp_path: Path, fake: FakeSlurm) -> None:
        sent(tmp_path)
        again = sent(tmp_path)
        assert (again.arrays, again.job_ids, again.collect_id) == ((), (), None)
        assert len(fake.calls) == 4
        assert again.text() == "scale: nothing to submit (0 done, 6 queued or running)"
        assert fake.questions == 1

    @pytest.mark.parametrize("state", ["RUNNING", "REQUEUED", "SUSPENDED", "CONFIGURING"])
    def test_nor_what_runs(self, tmp_path: Path, fake: FakeSlurm, state: str) -> None:
        sent(tmp_path)
        fake.changes(state=state)
        assert sent(tmp_path).arrays == ()

    def test_a_job_that_can_never_start_counts_as_missing(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        sent(tmp_path)
        fake.changes(reason="DependencyNeverSatisfied")
        assert launches(sent(tmp_path).arrays) == ALL

    def test_a_job_whose_id_was_never_stored_is_found(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        """The power failed between Slurm's answer and the disk."""
        submission = sent(tmp_path)
        Jobs().write(submission.folder)
        assert sent(tmp_path).arrays == ()

    def test_a_job_with_a_comment_of_the_sites_own_is_found(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        sent(tmp_path)
        fake.changes(comment="project 7")
        assert sent(tmp_path).arrays == ()

    def test_jobs_of_others_play_no_part(self, tmp_path: Path, fake: FakeSlurm) -> None:
        sent(tmp_path / "elsewhere")
        sent(tmp_path)
        fake.jobs = [job for job in fake.jobs if int(job.array) < 104]
        fake.jobs.append(slurm.Job("9", "9", None, "RUNNING", comment="hvdscale:../..:0"))
        assert launches(sent(tmp_path).arrays) == ALL

    def test_only_what_is_missing_of_what_was_cut_short(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        sent(tmp_path)
        fake.ends("101_1")
        again = sent(tmp_path)
        assert launches(again.arrays) == [("1x2", 1)]
        (element,) = again.arrays[0].elements
        assert len(element.bases) == 1  # of its own allocation again
        # The collection waits for those that still run, too.
        assert fake.calls[-1].option("dependency") == "afterany:100:101:102:104"

    def test_what_is_done_is_not_submitted(self, tmp_path: Path, fake: FakeSlurm) -> None:
        commit(tmp_path, make_sweep(), blocks=1)
        submission = sent(tmp_path)
        assert submission.done == 3
        assert launches(fake.arrays) == [(placement, 1) for placement in ("1x1", "1x2", "2x1")]

    def test_all_done(self, tmp_path: Path, fake: FakeSlurm) -> None:
        commit(tmp_path, make_sweep())
        assert sent(tmp_path).text() == "scale: nothing to submit (6 done, 0 queued or running)"
        assert fake.calls == []

    def test_a_broken_record_is_submitted_again(
        self, tmp_path: Path, fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
    ) -> None:
        commit(tmp_path, make_sweep())
        work = make_work(make_sweep(), SITE, results=tmp_path)
        name = run_id(work.plan.points[2], 1)
        (tmp_path / "scale" / "runs" / f"{name}.json").write_text("{")
        before = files(tmp_path)
        assert launches(sent(tmp_path, dry_run=True).arrays) == [("2x1", 1)]
        assert files(tmp_path) == before
        assert launches(sent(tmp_path).arrays) == [("2x1", 1)]
        assert f"{name}.json" in capsys.readouterr().err
        assert (tmp_path / "scale" / "quarantine" / f"{name}.json").exists()

    def test_what_was_decided_otherwise_is_a_fault(self, tmp_path: Path, fake: FakeSlurm) -> None:
        commit(tmp_path, make_sweep())
        for dry_run in (True, False):
            with pytest.raises(StoreError, match="launcher srun, and would now be with mpirun"):
                sent(tmp_path, site=make_site(launcher="mpirun"), dry_run=dry_run)
        assert fake.calls == []

    def test_an_altered_manifest_is_a_fault(self, tmp_path: Path, fake: FakeSlurm) -> None:
        """Nobody could tell what its jobs do."""
        submission = sent(tmp_path)
        path = submission.folder / "array-1.json"
        path.write_text(path.read_text().replace('"timeout_s":120.0', '"timeout_s":121.0'))
        with pytest.raises(StoreError, match=re.escape(str(path))):
            sent(tmp_path)

    def test_what_ends_while_it_is_submitted_is_done(
        self, tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent(tmp_path)

        def queue() -> tuple[slurm.Job, ...]:
            """Answer a moment after all jobs wrote their last records."""
            commit(tmp_path, make_sweep())
            return ()

        monkeypatch.setattr(slurm, "queue", queue)
        again = sent(tmp_path)
        assert (again.arrays, again.done) == ((), 6)

    def test_a_base_that_was_changed_when_its_points_were_done_is_told(
        self, tmp_path: Path, fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """No job has a point to measure it beside: to say nothing would leave no curve, ever."""
        commit(tmp_path, make_sweep())
        work = make_work(make_sweep(), SITE, results=tmp_path)
        base = next(base for base in work.plan.bases if base is not None)
        resolved = work.plan.resolved[point_id(base)]
        beside = factories.record(base, 0, resolved=resolved, steps_sha256=None)
        where = beside.block.allocation
        beside = beside.model_copy(update={"run_id": run_id(base, 0, where)})
        assert sent(tmp_path).arrays == ()
        said = "base stress_strain none 1x1 batch 20: all of its points are done, and none beside"
        assert said in capsys.readouterr().err
        assert sum(len(a.elements) for a in sent(tmp_path, shared_base=True).arrays) == 2
        fake.ends()
        Store.open(work.folder).commit(beside, None)
        assert sent(tmp_path).arrays == ()
        assert "none beside" not in capsys.readouterr().err

    def test_jobs_of_the_folder_that_this_is_a_copy_of_do_nothing_here(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        sent(tmp_path / "one")
        shutil.copytree(tmp_path / "one", tmp_path / "copy")
        (tmp_path / "link").symlink_to(tmp_path / "one")
        assert sent(tmp_path / "link").arrays == ()
        assert launches(sent(tmp_path / "copy").arrays) == ALL

    def test_a_job_whose_manifest_is_another_is_named(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        first = sent(tmp_path)
        path = first.folder / "array-0.json"
        path.write_text(path.read_text().replace('"repeat":1', '"repeat":3'))
        with pytest.raises(StoreError, match=r"changed since.*job 100 .* scancel 100"):
            sent(tmp_path)
        fake.ends("101_0", "101_1", "102_0", "102_1")
        fake.ends()
        assert launches(sent(tmp_path).arrays) == ALL

    def test_a_sweep_that_was_edited_submits_what_is_new(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        sent(tmp_path)
        wider = make_sweep(placement=["1x1", "1x2", "2x1", "2x2"])
        assert launches(sent(tmp_path, wider).arrays) == [("2x2", 0), ("2x2", 1)]


class TestTarget:
    """ci_target: more blocks at the next submission, where they are needed."""

    KEYS: ClassVar = {"engine": "none", "placement": "1x1", "base": None}

    def sweep(self, **measure: Any) -> Sweep:
        return make_sweep(**self.KEYS, measure={"ci_target": 0.02, "max_blocks": 7} | measure)

    @staticmethod
    def unsteady(config: RunConfig, repeat: int) -> float:
        return 1000.0 * (1 + repeat % 2)

    def test_the_first_submission_has_the_least_number_of_blocks(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        submission = sent(tmp_path, self.sweep())
        assert launches(submission.arrays) == [("1x1", repeat) for repeat in range(5)]
        assert all(array.sequential for array in submission.arrays)

    def test_the_next_block_where_an_interval_is_too_wide(
        self, tmp_path: Path, fake: FakeSlurm
    ) -> None:
        for blocks in (5, 6):
            commit(tmp_path, self.sweep(), blocks=blocks, rates=self.unsteady)
            assert launches(sent(tmp_path, self.sweep()).arrays) == [("1x1", blocks)]
            assert sent(tmp_path, self.sweep()).arrays == ()  # it is queued
            fake.ends()
        commit(tmp_path, self.sweep(), blocks=7, rates=self.unsteady)
        assert sent(tmp_path, self.sweep()).arrays == ()  # max_blocks

    def test_no_more_where_all_are_narrow(self, tmp_path: Path, fake: FakeSlurm) -> None:
        commit(tmp_path, self.sweep(), blocks=5, rates=lambda *_: 1000.0)
        assert sent(tmp_path, self.sweep()).arrays == ()

    @pytest.mark.parametrize(("tried", "blocks"), [(5, 6), (4, 5)])
    def test_what_never_succeeds_holds_up_no_other(
        self, tmp_path: Path, fake: FakeSlurm, tried: int, blocks: int
    ) -> None:
        """As in ``run``: it is tried again, and the others get their next block."""
        commit(tmp_path, self.sweep(), blocks=5, rates=self.unsteady)
        sweep = make_sweep(
            engine="none",
            base=None,
            placement="1x1",
            batch_size=[20, 30],
            measure={"ci_target": 0.02, "max_blocks": 7},
        )
        work = make_work(sweep, SITE, results=tmp_path)
        store = Store.open(work.folder)
        for repeat in range(tried):
            store.add_failure(factories.failure(work.plan.points[1], repeat))
        of_it, of_the_other = range(blocks), range(5, blocks)
        assert launches(sent(tmp_path, sweep).arrays) == [
            ("1x1", repeat) for repeat in sorted([*of_it, *of_the_other])
        ]

    def test_not_before_the_blocks_are_done(self, tmp_path: Path, fake: FakeSlurm) -> None:
        commit(tmp_path, self.sweep(), blocks=4, rates=self.unsteady)
        assert launches(sent(tmp_path, self.sweep()).arrays) == [("1x1", 4)]
        assert sent(tmp_path, self.sweep()).arrays == ()


class TestRefused:
    def test_what_is_in_stays_and_the_rest_follows(self, tmp_path: Path, fake: FakeSlurm) -> None:
        fake.fail_at = 1
        with pytest.raises(SubmitError) as error:
            sent(tmp_path)
        assert error.value.exit_code == 1
        assert str(error.value) == (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit; 1 of 3 arrays are submitted (jobs 100); "
            "put it right and submit again for the rest"
        )
        fake.fail_at = None
        again = sent(tmp_path)
        assert launches(again.arrays) == [p for p in ALL if p[0] != "1x1"]
        assert fake.calls[-1].option("dependency") == "afterany:100:101:102"

    def test_at_once(self, tmp_path: Path, fake: FakeSlurm) -> None:
        fake.fail_at = 0
        with pytest.raises(SubmitError, match="0 of 3 arrays are submitted; put it right"):
            sent(tmp_path)
        fake.fail_at = None
        assert launches(sent(tmp_path).arrays) == ALL

    def test_the_collection(self, tmp_path: Path, fake: FakeSlurm) -> None:
        fake.fail_at = 3
        with pytest.raises(SubmitError, match=r"all arrays are submitted \(jobs 100, 101, 102\)"):
            sent(tmp_path)
        assert sent(tmp_path).arrays == ()


STUB = """\
#!/bin/bash
n=$(cat "$COUNT"); echo $((n + 1)) > "$COUNT"
printf '%s\\0' "$@" > "$COUNT.$n"
echo $((500 + n))
"""


class TestDryRun:
    def test_nothing_is_written(self, tmp_path: Path, fake: FakeSlurm) -> None:
        assert len(sent(tmp_path, dry_run=True).arrays) == 3
        assert list(tmp_path.iterdir()) == []
        sent(tmp_path)
        before = files(tmp_path)
        fake.ends("100_0")
        assert launches(sent(tmp_path, dry_run=True).arrays) == [("1x1", 0)]
        assert files(tmp_path) == before
        assert len(fake.calls) == 4

    def test_without_slurm_it_says_what_it_does_not_know(
        self,
        tmp_path: Path,
        fake: FakeSlurm,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        sent(tmp_path)
        monkeypatch.setattr(slurm, "is_here", lambda: False)
        assert launches(sent(tmp_path, dry_run=True).arrays) == ALL
        assert "what is queued or running is not known" in capsys.readouterr().err

    def test_what_is_printed_is_what_is_done(self, tmp_path: Path, fake: FakeSlurm) -> None:
        """As a shell script it calls sbatch with the same words, and writes the same scripts."""
        results = tmp_path / 'it\'s "100% done" $here'
        site = make_site(setup=["END", "module load 'a b'"], partition="it's", options=["--nice"])
        printed = sent(results, site=site, dry_run=True, throttle=2)
        sbatch = tmp_path / "bin" / "sbatch"
        sbatch.parent.mkdir()
        sbatch.write_text(STUB)
        sbatch.chmod(0o755)
        count = tmp_path / "count"
        count.write_text("0")
        env = {"PATH": f"{sbatch.parent}:/usr/bin:/bin", "COUNT": str(count)}
        guarded = subprocess.run(["bash"], input=printed.shell(), text=True, env=env, check=False)
        assert guarded.returncode == 2  # the manifests are not there, so the jobs would all fail
        assert not results.exists()
        guard, text = printed.shell().split("exit 2\n")
        assert "to be read" in guard
        subprocess.run(["bash", "-eu"], input=text, text=True, env=env, check=True)
        real = sent(results, site=site, throttle=2)
        for number, call in enumerate(fake.calls):
            argv = Path(f"{count}.{number}").read_text().split("\0")[:-1]
            text = "\n".join(slurm.submit_argv(call.options, call.script)[1:])
            for there, here in (("100:101:102", "500:501:502"), (real.name, printed.name)):
                text = text.replace(there, here)
            assert "\n".join(argv) == text
            written = (printed.folder / call.script.name).read_text()
            assert written == call.script.read_text().replace(real.name, printed.name)
        assert count.read_text() == "4\n"

    def test_ten_thousand_points(
        self, tmp_path: Path, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Decisions are made by point, never by point and block, of which there are five times."""
        calls = 0

        def counted(config: RunConfig) -> str:
            nonlocal calls
            calls += 1
            return point_id(config)

        monkeypatch.setattr(arrays, "point_id", counted)
        sweep = make_sweep(
            placement=["1x1", "1x2", "2x1", "2x2"],
            batch_size=[*range(1, 251)],
            horovod={"cycle_time_ms": [*range(1, 11)]},
            measure={"blocks": 5},
        )
        submission = sent(tmp_path, sweep, dry_run=True)
        assert sum(len(e.points) for a in submission.arrays for e in a.elements) == 50_000
        assert list(tmp_path.iterdir()) == []
        assert len(submission.shell()) < 10_000
        assert calls < 12_000
