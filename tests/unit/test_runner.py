from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import clock
from harness.config import Base, RunConfig, Sweep, run_id
from harness.config.instruments import is_timeline
from harness.detect import Host, Machine
from harness.errors import MissingDependencyError, StoreError, ValidationError
from harness.processes import MARKER, launch_processes
from harness.record import RunRecord
from harness.runner import Summary, commands, data, point, run_sweep, schedule
from harness.runner.alone import BusyError, alone, lock_path
from harness.runner.interrupts import interrupts
from harness.runner.labels import labels
from harness.runner.listing import list_sweep
from harness.runner.stale import stale_check
from harness.store import Store
from tests import factories, proc
from tests.unit import stub_sweep
from tests.unit.stub_sweep import MACHINE, ROOT, make_sweep
from workloads.api import WorkloadError

Behave = Callable[[stub_sweep.Behaviour | str], None]
OF_STUBS = ("stub_launch", "time.sleep(300)")  # the last is of the daemons that they leave


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
    """Return the processes that carry a marker, as one finds them without ``harness``.

    Of this test process alone: what another one's tests start beside it is in order.
    """
    names = ("PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER")
    ours = {f"{name}={os.environ[name]}" for name in names if name in os.environ}
    return [pid for pid in proc.pids() if pid != os.getpid() and _is_of_a_launch(pid, ours)]


def _is_of_a_launch(pid: int, ours: set[str]) -> bool:
    environ, command = proc.environ(pid), proc.command_line(pid)
    marked = any(one.startswith(f"{MARKER}=") for one in environ)
    return marked and ours <= set(environ) and any(words in command for words in OF_STUBS)


def failures(results: Path) -> list[RunRecord]:
    store = Store.open(results / "stub")
    return [store.read_failure(*key) for key in sorted(store.attempts())]


def one_failure(results: Path) -> RunRecord:
    (record,) = failures(results)
    assert record.error is not None
    assert record.sealed() == record
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

    @pytest.mark.parametrize(
        ("how", "status", "timeout_s"), [("3", "failed", 240), ("hang", "timeout", 20)]
    )
    def test_a_record_whose_launch_fails_afterwards(
        self, tmp_path: Path, behave: Behave, how: str, status: str, timeout_s: float
    ) -> None:
        behave(f"ok-then-{how}")
        assert stub_sweep.run(make_sweep(timeout_s=timeout_s), tmp_path).exit_code == 1
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


class TestFullDisk:
    """What cannot be written once launches began is one line and exit 1, for something was done."""

    @pytest.mark.parametrize("fails", ["run.json", ".attempt-1.json"])
    def test_the_sweep_stops_there(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch, fails: str
    ) -> None:
        first, _ = (p.config.batch_size for p in planned_order())
        behave(lambda config: "ok" if config.batch_size == first else "raise")
        real, written = os.replace, []

        def full(source: str, target: str) -> None:
            written.append(str(target))
            done = sum(name.endswith(fails) for name in written)
            if str(target).endswith(fails) and done == (1 if "attempt" in fails else 2):
                raise OSError(errno.ENOSPC, "No space left on device", str(source))
            real(source, target)

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(StoreError) as found:
            stub_sweep.run(make_sweep((75, 100)), tmp_path)
        assert found.value.exit_code == 1
        assert f"{fails}: cannot be written: No space left on device" in str(found.value)
        assert "; the sweep stopped here, after 1 measured and 0 failed" in str(found.value)
        assert not list(tmp_path.rglob("*.tmp"))
        assert len(Store.open(tmp_path / "stub").done_ids()) == 1

    def test_before_the_first_launch_it_is_exit_2(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        behave("ok")

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left") as found:
            stub_sweep.run(make_sweep(), tmp_path)
        assert found.value.exit_code == 2

    def test_a_launchers_log_that_cannot_be_opened_is_not_the_launchers_fault(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        behave("ok")
        real = Path.open

        def full(path: Path, *rest: object, **more: object) -> object:
            if path.name == "launcher.log" and "wb" in rest:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return real(path, *rest, **more)  # type: ignore[call-overload]

        monkeypatch.setattr(Path, "open", full)
        assert stub_sweep.run(make_sweep(), tmp_path).exit_code == 1
        record = one_failure(tmp_path)
        assert record.error is not None
        assert "launcher.log: No space left on device" in record.error.cause


def planned_order() -> list[schedule.Planned]:
    work = schedule.planned(make_sweep((75, 100)), MACHINE, Path("x"))
    return list(schedule.block_launches(work, 0))


class TestHanging:
    @pytest.mark.parametrize("timeout_s", [1e7, 1e18, 1e300])
    def test_a_huge_time_limit_is_none(self, timeout_s: float) -> None:
        child = subprocess.Popen([sys.executable, "-S", "-c", ""])
        with interrupts() as stop:
            stop.wait_for(child.pid, timeout_s)
        assert child.poll() == 0

    @pytest.mark.parametrize("how", ["hang", "hang-stopped"])
    def test_ends_with_its_time(self, tmp_path: Path, behave: Behave, how: str) -> None:
        behave(how)
        began = time.monotonic()
        summary = stub_sweep.run(make_sweep(timeout_s=10), tmp_path)
        assert time.monotonic() - began < 150  # the stub would sleep for 300 s
        assert summary.exit_code == 1
        record = one_failure(tmp_path)
        assert record.status == "timeout"
        assert record.error is not None
        assert "not done after 10 s" in record.error.cause
        assert record.error.rank_tails == {"0": ("waiting",)}

    def test_who_ignores_term_is_killed(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        short_grace(monkeypatch)
        behave("hang-deaf")
        stub_sweep.run(make_sweep(timeout_s=10), tmp_path)
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
        stub_sweep.run(make_sweep(timeout_s=10), tmp_path)
        record = one_failure(tmp_path)
        assert record.status == "timeout"
        assert record.error is not None
        assert record.error.rank_tails == {"0": ("it is there",)}
        left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        assert str(tmp_path) not in left.stdout


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


class TestStale:
    """What was measured as another machine decided is no answer, and is never taken for one."""

    FEWER_SLOTS = replace(MACHINE, hosts=(Host("stub", 8, 4),))

    def sweep(self, **keys: object) -> Sweep:
        sweep = make_sweep((75, 100))
        return sweep.model_copy(update={"point": sweep.point | {"cores_per_rank": "fixed"} | keys})

    def run(self, machine: Machine, results: Path, sweep: Sweep | None = None) -> Summary:
        return run_sweep(
            sweep or self.sweep(),
            machine,
            results,
            report=stub_sweep.PlainReport(sys.stderr),
            data_dir=results,
        )

    def test_other_slots(self, tmp_path: Path, behave: Behave) -> None:
        behave("ok")
        assert self.run(MACHINE, tmp_path).ok == 2
        before = sorted(tmp_path.rglob("*"))
        behave("raise")  # nothing may start
        with pytest.raises(StoreError) as found:
            self.run(self.FEWER_SLOTS, tmp_path)
        message = str(found.value)
        assert "stress_strain none 1x1 batch " in message
        assert "measured with cores_per_rank 1, and would now be with 2" in message
        assert "use another --results, or name the value in the sweep (cores_per_rank)" in message
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_dry_run_and_validate_say_so_too(self, tmp_path: Path, behave: Behave) -> None:
        behave("ok")
        self.run(MACHINE, tmp_path)
        with pytest.raises(StoreError, match="cores_per_rank 1"):
            list(commands(self.sweep(), self.FEWER_SLOTS, tmp_path))
        assert list(commands(self.sweep(), MACHINE, tmp_path)) == []

    def test_the_value_named_is_another_point(self, tmp_path: Path, behave: Behave) -> None:
        behave("ok")
        self.run(MACHINE, tmp_path)
        named = self.sweep(cores_per_rank=2)
        assert self.run(self.FEWER_SLOTS, tmp_path, named).ok == 2
        assert self.run(MACHINE, tmp_path).skipped == 2

    def test_another_node_of_the_same_kind_is_no_difference(
        self, tmp_path: Path, behave: Behave
    ) -> None:
        behave("ok")
        self.run(MACHINE, tmp_path)
        other = replace(MACHINE, hosts=(Host("other", 8, 8),))
        assert self.run(other, tmp_path).skipped == 2

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("launcher", "mpirun"),
            ("backend", "nccl"),
            ("controller", "mpi"),
            ("placement", (1, 1)),
            ("device", "cuda"),
            ("cores_per_rank", 7),
        ],
    )
    def test_each_key_is_compared(self, field: str, value: object) -> None:
        plan = schedule.planned(make_sweep(), MACHINE, Path("x")).plan
        (config,) = plan.launches
        record = factories.record(config)
        check = stale_check(plan, Path("x"))
        check(record)
        resolved = record.resolved.model_copy(update={"hosts": ("elsewhere",), "bind": False})
        check(record.model_copy(update={"resolved": resolved}))
        other = record.resolved.model_copy(update={field: value})
        with pytest.raises(StoreError, match=f"measured with {field} "):
            check(record.model_copy(update={"resolved": other}))

    def test_what_another_runner_measured_otherwise_meanwhile(self, tmp_path: Path) -> None:
        def launch(planned: schedule.Planned, place: point.Place, *_: object) -> point.Done:
            for config in points((75, 100)):
                made = factories.record(config, planned.block.repeat)
                other = made.resolved.model_copy(update={"cores_per_rank": 7})
                place.store.commit(made.model_copy(update={"resolved": other}), None)
            return point.Done(place.store.read(planned.run_id), 0.0)

        with pytest.raises(StoreError, match="cores_per_rank 7"):
            run_sweep(
                make_sweep((75, 100)),
                MACHINE,
                tmp_path,
                report=stub_sweep.PlainReport(sys.stderr),
                data_dir=tmp_path,
                launch=launch,
            )


class TestData:
    """Data is made before the first launch, and only for one."""

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, object], Path]]:
        calls: list[tuple[str, dict[str, object], Path]] = []

        class Fake:
            def __init__(self, name: str, options: dict[str, object], folder: Path) -> None:
                self.call = (name, dict(options), folder)

            def prepare(self) -> None:
                calls.append(self.call)

        monkeypatch.setattr(data.registry, "create", Fake)
        return calls

    def test_once_a_workload_and_only_where_something_is_missing(
        self, tmp_path: Path, behave: Behave, made: list[object]
    ) -> None:
        behave("ok")
        stub_sweep.run(make_sweep((75, 100), blocks=2), tmp_path)
        assert made == [("stress_strain", {"samples": 400}, tmp_path)]
        stub_sweep.run(make_sweep((75, 100), blocks=2), tmp_path)
        list(commands(make_sweep((75, 100), blocks=3), MACHINE, tmp_path))
        assert len(made) == 1

    def test_every_distinct_option(self, made: list[object]) -> None:
        sizes = [
            {"name": "stress_strain", "samples": 400},
            {"name": "stress_strain", "samples": 800},
            {"name": "stress_strain", "samples": 400, "framework": "tensorflow"},
        ]
        configs = [RunConfig.model_validate({"workload": w, "batch_size": 1}) for w in sizes]
        data.prepare_data(configs, Path("d"), stub_sweep.PlainReport(sys.stderr))
        assert made == [("stress_strain", {"samples": n}, Path("d")) for n in (400, 800)]

    def test_it_is_there_before_the_first_launch(self, tmp_path: Path) -> None:
        seen: list[list[Path]] = []

        def launch(planned: schedule.Planned, place: point.Place, *_: object) -> point.Done:
            seen.append(list(place.data_dir.glob("stress_strain-400-*.f32")))
            made = factories.record(planned.config, planned.block.repeat)
            return point.Done(place.store.commit(made, None), 0.0)

        run_sweep(
            make_sweep(),
            MACHINE,
            tmp_path / "results",
            report=stub_sweep.PlainReport(sys.stderr),
            data_dir=tmp_path / "data",
            launch=launch,
        )
        assert [len(files) for files in seen] == [1]

    def test_what_cannot_be_made_ends_the_sweep_before_a_launch(
        self, tmp_path: Path, behave: Behave
    ) -> None:
        behave("ok")
        (tmp_path / "file").write_text("")
        with pytest.raises(WorkloadError, match="file"):
            run_sweep(
                make_sweep(),
                MACHINE,
                tmp_path,
                report=stub_sweep.PlainReport(sys.stderr),
                data_dir=tmp_path / "file",
            )
        assert Store.open(tmp_path / "stub").done_ids() == set()
        assert list((tmp_path / "stub" / "logs").iterdir()) == []

    @pytest.mark.parametrize("slow", [False, True])
    def test_a_line_where_it_takes_time(self, monkeypatch: pytest.MonkeyPatch, slow: bool) -> None:
        said: list[str] = []
        told = threading.Event()

        class Report(stub_sweep.PlainReport):
            def note(self, text: str) -> None:
                said.append(text)
                told.set()

        class Slow:
            def __init__(self, *_: object) -> None:
                pass

            def prepare(self) -> None:
                assert not slow or told.wait(120)  # takes as long as it takes to be told

        monkeypatch.setattr(data.registry, "create", Slow)
        monkeypatch.setattr(clock, "NOTE_AFTER_S", 0.1 if slow else 600.0)
        data.prepare_data(points((75,)), Path("d"), Report(sys.stderr))
        assert said == ['making the data of stress_strain {"samples": 400} in d'] * slow


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


class TestTimeline:
    """``measure.instruments: [timeline]`` is one launch more of each point, in the first block."""

    @pytest.fixture
    def sweep(self) -> Sweep:
        keys = {"engine": "horovod", "backend": "gloo", "placement": ["1x1", "1x2"]}
        sweep = make_sweep((75, 100), blocks=2, instruments=["phases", "timeline"])
        return sweep.model_copy(update={"point": sweep.point | keys, "base": Base()})

    @pytest.fixture
    def work(self, sweep: Sweep, tmp_path: Path) -> schedule.Work:
        return schedule.planned(sweep, MACHINE, tmp_path)

    def test_comes_last_in_the_first_block_and_never_again(self, work: schedule.Work) -> None:
        first, second = (list(schedule.block_launches(work, repeat)) for repeat in range(2))
        kinds = [is_timeline(launch.config) for launch in first]
        assert kinds == [False] * 6 + [True] * 2
        assert {launch.config.batch_size for launch in first[6:]} == {75, 100}
        assert {launch.config.world_size for launch in first[6:]} == {2}
        assert not any(launch.block.is_base for launch in first[6:])
        assert [launch.block.order for launch in first] == list(range(8))
        assert not any(is_timeline(launch.config) for launch in second)
        assert all("timeline" not in launch.config.measure.instruments for launch in second)

    def test_counts_once(self, work: schedule.Work) -> None:
        ids = schedule.run_ids(work, 2)
        assert len(ids) == len(set(ids)) == 2 * 6 + 2
        assert sorted(launch.run_id for launch in schedule.missing(work)) == sorted(ids)

    def test_is_a_point_of_its_own_with_a_name(self, sweep: Sweep, tmp_path: Path) -> None:
        def launch(planned: schedule.Planned, place: point.Place, *_: object) -> point.Done:
            made = factories.record(planned.config, planned.block.repeat)
            made = made.model_copy(update={"resolved": planned.resolved})
            return point.Done(place.store.commit(made, None), 0.0)

        report = stub_sweep.PlainReport(sys.stderr)
        assert any(
            line.endswith("batch 75 timeline") for line in commands(sweep, MACHINE, tmp_path)
        )
        done = run_sweep(sweep, MACHINE, tmp_path, report=report, data_dir=tmp_path, launch=launch)
        assert (done.ok, done.failed) == (14, 0)
        states = {p.label: p.summary() for p in list_sweep(tmp_path / "stub").points}
        name = "stress_strain horovod/gloo 1x2 batch 100"
        assert states[f"{name} timeline"] == "1/1 done"
        assert states[name] == "2/2 done"
        assert not list(commands(sweep, MACHINE, tmp_path))

    def test_that_was_decided_otherwise_is_named(self, work: schedule.Work) -> None:
        (made, *_) = work.plan.timelines
        record = factories.record(made)
        other = record.resolved.model_copy(update={"launcher": "srun"})
        with pytest.raises(StoreError, match=r"batch 75 timeline .*launcher srun"):
            stale_check(work.plan, Path("x"))(record.model_copy(update={"resolved": other}))


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

    def test_marks_all_blocks_of_a_sweep_that_looks(self, tmp_path: Path) -> None:
        def flags(**measure: float) -> list[bool]:
            work = schedule.planned(make_sweep(blocks=2, **measure), MACHINE, tmp_path)
            blocks = (schedule.block_launches(work, repeat) for repeat in range(work.max_blocks))
            return [launch.block.sequential for block in blocks for launch in block]

        assert flags(ci_target=0.05, max_blocks=7) == [True] * 7
        assert flags() == [False] * 2

    def test_in_between(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # A spread of 8 % on every other block: 7.4 % half width of 5 blocks is too wide, and
        # t · s / √n falls below 5 % before 10 blocks are measured.
        ok = self.run(tmp_path, 0.08, monkeypatch).ok
        assert 2 * 5 < ok < 2 * 10


class TestWide:
    """``ci_target`` asks what the table and the figures will show."""

    @pytest.fixture
    def work(self, tmp_path: Path) -> schedule.Work:
        keys = {"engine": "horovod", "backend": "gloo", "placement": "1x2", "batch_size": 75}
        sweep = make_sweep(blocks=3)
        sweep = sweep.model_copy(update={"point": sweep.point | keys, "base": Base()})
        return schedule.planned(sweep, MACHINE, tmp_path)

    def wide(self, work: schedule.Work, values: list[tuple[str, int, float, float]]) -> bool:
        """Say whether it is wide after (allocation, repeat, rate, base's rate; 0 for none)."""
        store = Store.open(work.folder, create=True)
        (point_config,), (base,) = work.plan.points, work.plan.bases
        assert base is not None
        for where, repeat, rate, base_rate in values:
            for config, value in ((point_config, rate), (base, base_rate)):
                if value:
                    made = factories.record(config, repeat, allocation=where, throughput=value)
                    store.commit(made, None)
        return schedule.is_wide(work, store, store.done_ids(), 4, 0.05)

    def test_a_drift_of_whole_blocks_cancels(self, work: schedule.Work) -> None:
        rows = [("a", i, 180.0 * f, 100.0 * f) for i, f in enumerate((1.0, 2.0, 3.0))]
        assert not self.wide(work, rows)

    def test_one_block_has_no_interval(self, work: schedule.Work) -> None:
        assert self.wide(work, [("a", 0, 180.0, 100.0)])

    def test_allocations_count_once_each(self, work: schedule.Work) -> None:
        # Two blocks of ratio 1.8 in one and two of 1.9 in the other: narrow if they were pooled
        # (half width 4.97 %), and 35 % by t of two allocations.
        ratios = [("a", 0, 1.8), ("a", 1, 1.8), ("b", 2, 1.9), ("b", 3, 1.9)]
        assert self.wide(work, [(a, i, 100 * r, 100.0) for a, i, r in ratios])

    def test_base_and_point_of_two_allocations_are_no_pair(self, work: schedule.Work) -> None:
        rows = [("a", i, 180.0, 0.0) for i in range(3)]
        assert not self.wide(work, rows)  # no base ever succeeded: more blocks will not help
        assert self.wide(work, [("b", i, 0.0, 100.0) for i in range(3)])

    def test_what_never_succeeded_does_not_count(self, work: schedule.Work) -> None:
        assert not self.wide(work, [("a", i, 0.0, 100.0) for i in range(3)])


def test_a_target_needs_scipy_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(
        MissingDependencyError, match=r"ci_target needs scipy.*hvdscale\[analysis\]"
    ):
        stub_sweep.run(make_sweep(ci_target=0.05), tmp_path / "results")
    assert list(tmp_path.iterdir()) == []
    assert list(commands(make_sweep(), MACHINE, tmp_path))  # without a target none is needed


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
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not marked_processes():
            time.sleep(0.02)
        while time.monotonic() < deadline and not list(self.results.rglob("rank-0.log")):
            time.sleep(0.02)

    def end(self, timeout_s: float = 120) -> int:
        _, self.stderr = self.process.communicate(timeout=timeout_s)
        return self.process.returncode


def gone(timeout_s: float = 120.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while marked_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not marked_processes()


class TestAlone:
    def test_a_second_runner_on_the_host_is_refused(
        self, tmp_path: Path, behave: Behave, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        behave("ok")
        first = Runner("hang", tmp_path)
        first.wait_for_launch()
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(BusyError) as found:
            stub_sweep.run(make_sweep((75, 100, 125)), tmp_path)
        assert f"stub: process {first.process.pid} (since 20" in str(found.value)
        assert found.value.exit_code == 2
        assert sorted(tmp_path.rglob("*")) == before
        monkeypatch.setattr(socket, "gethostname", lambda: "another/host")
        assert stub_sweep.run(make_sweep((75,)), tmp_path).exit_code == 0
        monkeypatch.undo()
        first.process.kill()
        first.end()
        assert gone()
        behave("ok")
        assert stub_sweep.run(make_sweep((75, 100, 125)), tmp_path).exit_code == 0

    def test_who_holds_it_may_not_have_said_so_yet(self, tmp_path: Path) -> None:
        with alone(tmp_path):
            lock_path(tmp_path).write_text("")
            with pytest.raises(BusyError, match="another process runs this sweep"), alone(tmp_path):
                pass
        with alone(tmp_path):
            pass

    def test_without_locks_it_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_locks(*_: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", no_locks)
        with alone(tmp_path), alone(tmp_path):
            pass

    def test_what_another_host_committed_meanwhile_is_done(
        self, tmp_path: Path, behave: Behave
    ) -> None:
        behave("beaten")
        summary = stub_sweep.run(make_sweep(), tmp_path)
        assert (summary.ok, summary.skipped, summary.failed) == (0, 1, 0)
        assert summary.exit_code == 0
        (record,) = Store.open(tmp_path / "stub").records()
        assert (record.attempt, record.status) == (99, "ok")


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

    def test_a_jobs_time_near_is_a_timeout(self, tmp_path: Path) -> None:
        """``sbatch --signal=B:USR1@60`` sends it: the job was too short, and no point failed."""
        runner = Runner("ok-then-hang", tmp_path)
        runner.wait_for_launch()
        while not list(tmp_path.rglob("*.json")) and runner.process.poll() is None:
            time.sleep(0.02)
        runner.process.send_signal(signal.SIGUSR1)
        assert runner.end() == 1
        assert len(Store.open(tmp_path / "stub").done_ids()) == 1

    def test_the_present_point_is_the_timeout(self, tmp_path: Path) -> None:
        runner = Runner("hang", tmp_path)
        runner.wait_for_launch()
        runner.process.send_signal(signal.SIGUSR1)
        assert runner.end() == 1
        record = one_failure(tmp_path)
        assert record.status == "timeout"
        assert record.error is not None
        assert "time limit was near" in record.error.cause

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
        runner.process.send_signal(signal.SIGINT)
        assert runner.end(120) == 130  # its grace is 300 s
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
