from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.config import RunConfig, run_id
from harness.errors import StoreError, ValidationError
from harness.processes import MARKER, launch_processes
from harness.record import RunRecord
from harness.runner import Summary, commands, point, run_sweep, schedule
from harness.runner.labels import labels
from harness.store import Store
from tests import factories
from tests.unit import stub_sweep
from tests.unit.stub_sweep import MACHINE, ROOT, make_sweep

Behave = Callable[[stub_sweep.Behaviour | str], None]


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch) -> Behave:
    def choose(how: stub_sweep.Behaviour | str) -> None:
        chosen = how if callable(how) else lambda config: how
        monkeypatch.setattr(point, "build", stub_sweep.fake_build(chosen))

    return choose


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert marked_processes() == []


def marked_processes() -> list[int]:
    """Return the processes that carry a marker, as one finds them without ``harness``."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if f"{MARKER}=".encode() in (folder / "environ").read_bytes() and (
                b"stub_launch" in (folder / "cmdline").read_bytes()
                or b"time.sleep(300)" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def failures(results: Path) -> list[RunRecord]:
    store = Store.open(results / "stub")
    return [store.read_failure(*key) for key in sorted(store.attempts())]


def one_failure(results: Path) -> RunRecord:
    (record,) = failures(results)
    assert record.error is not None
    assert record.is_intact()
    return record


class TestGood:
    def test_every_launch_becomes_a_record(self, tmp_path: Path, behave: Behave) -> None:
        behave("ok")
        summary = stub_sweep.run(make_sweep((75, 100), blocks=2), tmp_path)
        assert (summary.ok, summary.skipped, summary.failed, summary.exit_code) == (4, 0, 0, 0)
        records = list(Store.open(tmp_path / "stub").records())
        assert len(records) == 4
        assert {(r.config.batch_size, r.block.repeat) for r in records} == {
            (75, 0),
            (75, 1),
            (100, 0),
            (100, 1),
        }
        assert {r.block.allocation for r in records} == {"local:stub"}

    def test_more_blocks_run_only_what_is_new(self, tmp_path: Path, behave: Behave) -> None:
        behave("ok")
        stub_sweep.run(make_sweep((75, 100), blocks=1), tmp_path)
        summary = stub_sweep.run(make_sweep((75, 100), blocks=2), tmp_path)
        assert (summary.ok, summary.skipped) == (2, 2)
        assert {p.name for p in (tmp_path / "stub").glob("sweep*.yaml")} == {
            "sweep.yaml",
            "sweep.1.yaml",
        }

    def test_a_changed_config_is_a_new_point(self, tmp_path: Path, behave: Behave) -> None:
        behave("ok")
        stub_sweep.run(make_sweep((75,)), tmp_path)
        assert stub_sweep.run(make_sweep((75,), warmup_steps=3), tmp_path).ok == 1
        assert stub_sweep.run(make_sweep((75,), timeout_s=99), tmp_path).skipped == 1

    def test_what_another_runner_measured_meanwhile_is_left_alone(self, tmp_path: Path) -> None:
        started: list[str] = []

        def launch(planned: schedule.Planned, place: point.Place, *_: object) -> point.Done:
            started.append(planned.run_id)
            for config in points((75, 100)):
                place.store.commit(factories.record(config, planned.block.repeat), None)
            return point.Done(place.store.read(planned.run_id), 0.0)

        summary = run_sweep(
            make_sweep((75, 100), blocks=2),
            MACHINE,
            tmp_path,
            report=stub_sweep.PlainReport(sys.stderr),
            data_dir=tmp_path,
            launch=launch,
        )
        assert len(started) == 2
        assert (summary.ok, summary.skipped) == (2, 2)

    def test_a_broken_record_is_measured_again(self, tmp_path: Path, behave: Behave) -> None:
        behave("ok")
        stub_sweep.run(make_sweep((75, 100)), tmp_path)
        store = Store.open(tmp_path / "stub")
        victim = sorted(store.done_ids())[0]
        (store.runs / f"{victim}.json").write_text("{")
        summary = stub_sweep.run(make_sweep((75, 100)), tmp_path)
        assert (summary.ok, summary.skipped) == (1, 1)
        assert store.read(victim).attempt == 2


class TestBad:
    def test_an_exception(self, tmp_path: Path, behave: Behave) -> None:
        behave(lambda config: "raise" if config.batch_size == 75 else "ok")
        summary = stub_sweep.run(make_sweep((75, 100)), tmp_path)
        assert (summary.ok, summary.failed, summary.exit_code) == (1, 1, 1)
        assert summary.causes == (("rank 0: ValueError: too much", 1),)
        record = one_failure(tmp_path)
        assert record.status == "failed"
        assert record.error is not None
        assert record.error.exit_code == 1
        assert record.error.rank_tails["0"][-1] == "ValueError: too much"
        assert record.error.launcher_tail == ("launcher speaking",)
        assert record.argv[2] == "raise"

    def test_the_next_run_tries_again_and_keeps_the_failure(
        self, tmp_path: Path, behave: Behave
    ) -> None:
        behave("raise")
        stub_sweep.run(make_sweep(), tmp_path)
        behave("ok")
        summary = stub_sweep.run(make_sweep(), tmp_path)
        assert (summary.ok, summary.exit_code) == (1, 0)
        record = one_failure(tmp_path)
        assert Store.open(tmp_path / "stub").read(record.run_id).attempt == 2

    def test_a_crash_of_the_launcher(self, tmp_path: Path, behave: Behave) -> None:
        behave("segfault")
        stub_sweep.run(make_sweep(), tmp_path)
        record = one_failure(tmp_path)
        assert record.error is not None
        assert "signal SIGSEGV" in record.error.cause
        assert record.error.exit_code == -signal.SIGSEGV

    def test_success_without_a_record(self, tmp_path: Path, behave: Behave) -> None:
        behave("nothing")
        assert stub_sweep.run(make_sweep(), tmp_path).exit_code == 1
        record = one_failure(tmp_path)
        assert record.error is not None
        assert "exit code 0, but wrote no record" in record.error.cause

    @pytest.mark.parametrize(("how", "status"), [("3", "failed"), ("hang", "timeout")])
    def test_a_record_whose_launch_fails_afterwards(
        self, tmp_path: Path, behave: Behave, how: str, status: str
    ) -> None:
        behave(f"ok-then-{how}")
        assert stub_sweep.run(make_sweep(timeout_s=8), tmp_path).exit_code == 1
        store = Store.open(tmp_path / "stub")
        assert store.done_ids() == set()
        assert one_failure(tmp_path).status == status
        assert len(list(store.quarantine.glob("*.json"))) == 1

    def test_garbage_cannot_reach_a_terminal(self, tmp_path: Path, behave: Behave) -> None:
        behave("garbage")
        stub_sweep.run(make_sweep(), tmp_path)
        record = one_failure(tmp_path)
        assert record.error is not None
        text = record.error.cause + "".join(record.error.launcher_tail)
        assert all(c.isprintable() or c == "\t" for c in text)
        assert record.error.launcher_tail[-1] == "end\ufffd"
        assert len(record.error.launcher_tail) <= 20
        assert max(map(len, record.error.launcher_tail)) <= 500

    def test_a_launcher_that_is_not_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = stub_sweep.fake_build(lambda config: "ok")

        def build(*args: object, **more: object) -> point.Command:
            command = made(*args, **more)
            return point.Command(("/nonexistent/mpirun", *command.argv), command.env)

        monkeypatch.setattr(point, "build", build)
        assert stub_sweep.run(make_sweep(), tmp_path).exit_code == 1
        record = one_failure(tmp_path)
        assert record.error is not None
        assert "/nonexistent/mpirun: No such file" in record.error.cause


class TestHanging:
    @pytest.mark.parametrize("how", ["hang", "hang-stopped"])
    def test_ends_with_its_time(self, tmp_path: Path, behave: Behave, how: str) -> None:
        behave(how)
        began = time.monotonic()
        summary = stub_sweep.run(make_sweep(timeout_s=2), tmp_path)
        assert time.monotonic() - began < 30
        assert summary.exit_code == 1
        record = one_failure(tmp_path)
        assert record.status == "timeout"
        assert record.error is not None
        assert "not done after 2 s" in record.error.cause
        assert record.error.rank_tails == {"0": ("waiting",)}

    def test_who_ignores_term_is_killed(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        short_grace(monkeypatch)
        behave("hang-deaf")
        stub_sweep.run(make_sweep(timeout_s=2), tmp_path)
        assert one_failure(tmp_path).status == "timeout"

    def test_a_daemon_does_not_outlive_a_good_launch(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        short_grace(monkeypatch)
        behave("daemon")
        summary = stub_sweep.run(make_sweep(), tmp_path)
        assert summary.ok == 1
        assert marked_processes() == []

    def test_a_child_without_the_marker_is_found_by_descent(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        short_grace(monkeypatch)
        behave("daemon-without-marker")
        stub_sweep.run(make_sweep(timeout_s=3), tmp_path)
        assert one_failure(tmp_path).status == "timeout"
        left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        assert "time.sleep(300)" not in left.stdout


class TestBefore:
    """What is wrong before a launch: an error, and nothing written."""

    def test_more_ranks_than_slots(self, tmp_path: Path) -> None:
        sweep = make_sweep()
        sweep = sweep.model_copy(
            update={"point": sweep.point | {"engine": "horovod", "placement": "1x99"}}
        )
        with pytest.raises(ValidationError, match="99 ranks"):
            stub_sweep.run(sweep, tmp_path / "results")
        assert list(tmp_path.iterdir()) == []

    def test_a_results_folder_of_a_newer_schema(self, tmp_path: Path) -> None:
        (tmp_path / "stub").mkdir()
        (tmp_path / "stub" / "sweep.json").write_text('{"schema_version": 9, "name": "stub"}')
        with pytest.raises(StoreError, match="schema version 9"):
            stub_sweep.run(make_sweep(), tmp_path)
        assert [p.name for p in (tmp_path / "stub").iterdir()] == ["sweep.json"]

    def test_results_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="file"):
            stub_sweep.run(make_sweep(), tmp_path / "file")

    def test_a_dry_run_prints_every_launch_and_writes_nothing(self, tmp_path: Path) -> None:
        lines = list(commands(make_sweep((75, 100), blocks=2), MACHINE, tmp_path / "results"))
        starts = [line for line in lines if not line.startswith("#")]
        assert len(starts) == 4
        assert len(set(starts)) == 4
        for config, repeat in [(c, r) for c in points((75, 100)) for r in (0, 1)]:
            run_file = tmp_path / "results/stub/logs" / run_id(config, repeat) / "1/run.json"
            assert any(line.endswith(f"bench --run {run_file}") for line in starts)
        assert list(tmp_path.iterdir()) == []


def points(batches: tuple[int, ...]) -> tuple[RunConfig, ...]:
    return schedule.planned(make_sweep(batches), MACHINE, Path("x")).plan.launches


def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import processes

    monkeypatch.setattr(processes.end_launch, "__defaults__", (None, 0.3, lambda: False))


class TestOrder:
    def work(self, batches: tuple[int, ...] = tuple(range(50, 66))) -> schedule.Work:
        return schedule.planned(make_sweep(batches, blocks=4), MACHINE, Path("x"))

    def order(self, work: schedule.Work, repeat: int) -> list[int]:
        return [p.config.rank_batch for p in schedule.block_launches(work, repeat)]

    def test_each_block_has_every_launch_once(self) -> None:
        for repeat in range(4):
            launches = list(schedule.block_launches(self.work(), repeat))
            assert sorted(str(p.config.batch_size) for p in launches) == list(
                map(str, range(50, 66))
            )
            assert [p.block.order for p in launches] == list(range(16))
            assert {p.block.repeat for p in launches} == {repeat}

    def test_is_shuffled_otherwise_in_each_block_and_always_alike(self) -> None:
        orders = [self.order(self.work(), repeat) for repeat in range(4)]
        assert len({tuple(order) for order in orders}) == 4
        assert orders == [self.order(self.work(), repeat) for repeat in range(4)]
        assert all(order != sorted(order, key=str) for order in orders)

    def test_a_new_point_leaves_the_others_in_their_order(self) -> None:
        fewer = self.order(self.work(tuple(range(50, 60))), 0)
        more = self.order(self.work(), 0)
        assert [batch for batch in more if batch in fewer] == fewer


class TestTarget:
    """``ci_target`` adds blocks, as long as an interval is too wide and up to ``max_blocks``."""

    def run(
        self, tmp_path: Path, spread: float, monkeypatch: pytest.MonkeyPatch, **measure: float
    ) -> Summary:
        def launch(planned: schedule.Planned, place: point.Place, *_: object) -> point.Done:
            repeat = planned.block.repeat
            made = factories.record(planned.config, repeat, factor=1 + spread * (repeat % 2))
            return point.Done(place.store.commit(made, None), 0.0)

        sweep = make_sweep((75, 100), blocks=2, ci_target=0.05, **measure)
        return run_sweep(
            sweep,
            MACHINE,
            tmp_path,
            report=stub_sweep.PlainReport(sys.stderr),
            data_dir=tmp_path,
            launch=launch,
        )

    def test_narrow_ends_at_five(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.run(tmp_path, 0.0, monkeypatch).ok == 2 * 5

    def test_wide_ends_at_most(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.run(tmp_path, 0.5, monkeypatch, max_blocks=7).ok == 2 * 7

    def test_in_between(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # A spread of 8 % on every other block: 7.4 % half width of 5 blocks is too wide, and
        # t · s / √n falls below 5 % before 10 blocks are measured.
        ok = self.run(tmp_path, 0.08, monkeypatch).ok
        assert 2 * 5 < ok < 2 * 10


class Runner:
    """A runner as a process of its own."""

    def __init__(self, how: str, results: Path, blocks: int = 1) -> None:
        self.results = results
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.stub_sweep", how, str(results), str(blocks)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_launch(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not marked_processes():
            time.sleep(0.02)
        while time.monotonic() < deadline and not list(self.results.rglob("rank-0.log")):
            time.sleep(0.02)

    def end(self, timeout_s: float = 60) -> int:
        _, self.stderr = self.process.communicate(timeout=timeout_s)
        return self.process.returncode


def gone(timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while marked_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not marked_processes()


class TestInterrupted:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_ends_the_launch_and_keeps_what_is_done(
        self, tmp_path: Path, number: signal.Signals
    ) -> None:
        runner = Runner("hang", tmp_path)
        runner.wait_for_launch()
        runner.process.send_signal(number)
        assert runner.end() == 130
        assert marked_processes() == []
        assert one_failure(tmp_path).status == "cancelled"

    def test_what_was_measured_before_it_stays(self, tmp_path: Path) -> None:
        runner = Runner("ok-then-hang", tmp_path)
        runner.wait_for_launch()
        runner.process.send_signal(signal.SIGINT)
        assert runner.end() == 130
        store = Store.open(tmp_path / "stub")
        assert len(store.done_ids()) == 1
        assert store.verify(store.done_ids()) == store.done_ids()
        assert store.attempts() == set()

    def test_twice_does_not_wait(self, tmp_path: Path) -> None:
        runner = Runner("hang-deaf", tmp_path)
        runner.wait_for_launch()
        runner.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        began = time.monotonic()
        runner.process.send_signal(signal.SIGINT)
        assert runner.end() == 130
        assert time.monotonic() - began < 4  # the grace is 5 s
        assert marked_processes() == []

    def test_a_killed_runner_leaves_no_process(self, tmp_path: Path) -> None:
        runner = Runner("hang", tmp_path)
        runner.wait_for_launch()
        runner.process.kill()
        runner.end()
        assert gone()

    def test_killed_at_any_moment_nothing_done_is_lost(self, tmp_path: Path) -> None:
        chance = random.Random(7)
        done: set[str] = set()
        for _ in range(6):
            runner = Runner("ok", tmp_path, blocks=2)
            time.sleep(chance.uniform(0.6, 2.5))
            runner.process.kill()
            runner.end()
            assert gone()
            if (tmp_path / "stub" / "sweep.json").exists():
                store = Store.open(tmp_path / "stub")
                now = store.done_ids()
                assert done <= now
                assert store.verify(now) == now
                done = now
        assert Runner("ok", tmp_path, blocks=2).end(120) == 0
        store = Store.open(tmp_path / "stub", create=True)
        assert len(store.done_ids()) == 6
        assert store.verify(store.done_ids()) == store.done_ids()
        assert {run_id for run_id, _ in store.attempts()} <= store.done_ids()


def test_labels_show_what_differs_and_no_more() -> None:
    def config(**more: object) -> RunConfig:
        keys = {"workload": "stress_strain", "placement": "1x2", "batch_size": 75}
        return RunConfig.model_validate(keys | more)

    fast = config(backend="mpi", horovod={"cycle_time_ms": 0.1})
    slow = config(backend="mpi")
    assert list(labels([fast, slow]).values()) == [
        "stress_strain horovod/mpi 1x2 batch 75 horovod.cycle_time_ms=0.1",
        "stress_strain horovod/mpi 1x2 batch 75",
    ]
    assert list(labels([fast]).values()) == ["stress_strain horovod/mpi 1x2 batch 75"]


def test_a_process_is_found_by_marker_session_and_descent() -> None:
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
    marked = subprocess.Popen(sleeper, env={MARKER: "abc"})
    session = subprocess.Popen(sleeper, start_new_session=True)
    other = subprocess.Popen(sleeper)
    try:
        found = {p.pid for p in launch_processes("abc", session.pid)}
        assert found == {marked.pid, session.pid}
        assert launch_processes("ab") == []
    finally:
        for process in (marked, session, other):
            process.kill()
            process.wait()
