from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import DdpTuning
from harness.errors import StoreError
from harness.record import SCHEMA_VERSION, Placed, RunRecord, is_whole
from harness.store import Broken, Store, files, quarantine, write_atomic
from harness.store.migrate import NewerSchemaError, migrate
from harness.store.raw import RAW, parquet_bytes, raw_ids, raw_path
from harness.store.reading import read_record
from tests import factories
from tests.pinning import assert_within

GOLDEN = Path(__file__).parents[1] / "golden" / "records"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "results" / "sweep", create=True)


def a_record(repeat: int = 0, n: int = 2) -> RunRecord:
    return factories.record(factories.config("horovod", n, backend="mpi"), repeat)


def some_steps() -> pa.Table:
    return pa.table({"instrument": ["none"] * 3, "rank": [0, 0, 1], "step_s": [0.1, 0.2, 0.3]})


def steps_of(store: Store, name: str) -> Path:
    """Return the only file of raw steps that a run has."""
    (found,) = store.runs.glob(f"{name}.*steps.parquet")
    return found


def spoil(path: Path, text: str, other: str) -> None:
    content = path.read_text()
    assert text in content
    path.write_text(content.replace(text, other, 1))


class TestCommit:
    def test_comes_back_as_it_was_written_with_both_checksums(self, store: Store) -> None:
        written = store.commit(a_record(), some_steps())
        assert store.read(written.run_id) == written
        text = (store.runs / f"{written.run_id}.json").read_bytes()
        assert text == written.text()
        assert is_whole(text, json.loads(text))
        assert written.steps_sha256 is not None
        assert store.read_steps(written.run_id).equals(some_steps())
        assert store.done_ids() == {written.run_id}

    def test_only_an_ok_record_is_done(self, store: Store) -> None:
        failed = store.add_failure(factories.failure(factories.config("horovod", 2)))
        assert store.done_ids() == set()
        assert store.attempts() == {(failed.run_id, 1)}
        assert store.read_failure(failed.run_id, 1) == failed
        with pytest.raises(ValueError, match="only an ok record"):
            store.commit(failed, None)
        with pytest.raises(ValueError, match="is committed"):
            store.add_failure(a_record())

    def test_never_overwrites_a_measurement(self, store: Store) -> None:
        first = store.commit(a_record(), some_steps())
        second = a_record().model_copy(update={"attempt": 2})
        with pytest.raises(StoreError, match="done already"):
            store.commit(second, None)
        assert store.read(first.run_id) == first
        assert store.verify([first.run_id]) == {first.run_id}

    def test_the_record_is_written_after_its_steps(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where the process dies between the two: what is left stands in nobody's way."""

        def refuse(source: Any, target: Any) -> None:
            raise OSError(28, "No space left on device", str(target))

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", refuse)
            with pytest.raises(StoreError, match="No space left on device") as found:
                store.commit(a_record(), some_steps())
        name = a_record().run_id
        assert str(store.runs / f"{name}.json") in str(found.value)
        assert store.done_ids() == set()
        digest = hashlib.sha256(parquet_bytes(some_steps())).hexdigest()
        left = f"{name}.{digest[:12]}.steps.parquet"
        assert [p.name for p in store.runs.iterdir()] == [left]
        other = pa.table({"step_s": [0.5]})
        store.commit(a_record(), other)
        assert store.verify([name]) == {name}
        assert store.read_steps(name).equals(other)
        assert (store.runs / left).read_bytes() == parquet_bytes(some_steps())

    def test_no_look_decides_who_writes_a_record(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A client of a network file system may not see yet what another has written."""
        first = store.commit(a_record(), some_steps())
        for module, name in ((Path, "exists"), (os.path, "exists"), (os.path, "lexists")):
            monkeypatch.setattr(module, name, lambda path: False)
        with pytest.raises(StoreError, match="done already"):
            store.commit(a_record().model_copy(update={"attempt": 2}), None)
        monkeypatch.undo()
        assert store.read(first.run_id) == first

    def test_raw_files_of_the_earlier_name_are_read(self, store: Store) -> None:
        name = store.commit(a_record(), some_steps(), some_steps()).run_id
        for kind in RAW:
            (path,) = store.runs.glob(f"{name}.*.{kind}.parquet")
            path.rename(store.runs / f"{name}.{kind}.parquet")
        assert store.verify([name]) == {name}
        assert store.read_steps(name).equals(some_steps())
        series = store.read_series(name)
        assert series is not None
        assert series.equals(some_steps())
        assert raw_ids(store.runs, "series") == {name}
        moved = store.retract(name, "it failed after all").path
        for kind in RAW:
            assert moved.with_name(f"{name}.{kind}.parquet").is_file()
        assert list(store.runs.iterdir()) == []

    def test_a_record_without_raw_steps_says_so(self, store: Store) -> None:
        name = store.commit(a_record(), None).run_id
        with pytest.raises(StoreError, match=rf"{name}\.json: this launch has no raw steps"):
            store.read_steps(name)
        assert store.read_series(name) is None

    def test_who_comes_late_leaves_no_raw_files(self, store: Store) -> None:
        store.commit(a_record(), some_steps())
        before = snapshot(store.path)
        with pytest.raises(StoreError, match="done already"):
            store.commit(a_record(), pa.table({"step_s": [0.5]}))
        assert snapshot(store.path) == before

    def test_a_link_that_was_made_though_its_answer_was_lost(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NFS sends the request again, and its server says that the name is taken."""
        real = os.link

        def twice(source: Any, target: Any) -> None:
            real(source, target)
            real(source, target)

        monkeypatch.setattr(os, "link", twice)
        written = store.commit(a_record(), some_steps())
        assert store.read(written.run_id) == written

    @pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
    def test_without_hard_links_a_record_is_written_and_never_over_another(
        self, store: Store, error: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []

        def refuse(source: Any, target: Any) -> None:
            asked.append(Path(target).name)
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(os, "link", refuse)
        first = store.commit(a_record(), some_steps())
        assert store.read(first.run_id) == first
        name = f"{first.run_id}.json"
        monkeypatch.setattr(Path, "exists", lambda path: False)  # as if it came in between
        with pytest.raises(StoreError, match="done already"):
            store.commit(a_record().model_copy(update={"attempt": 2}), None)
        assert asked == [name, name]
        assert store.read(first.run_id) == first

    def test_a_disk_that_refuses_a_link_for_another_reason_is_an_error(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(source: Any, target: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(StoreError, match="cannot be written: Input/output error"):
            store.commit(a_record(), None)
        assert list(store.runs.iterdir()) == []

    def test_racing_committers_leave_one_whole_run(self, store: Store) -> None:
        outcomes: list[str] = []

        def commit(attempt: int) -> None:
            record = a_record().model_copy(update={"attempt": attempt})
            table = pa.table({"step_s": [float(attempt)] * 1000})
            try:
                store.commit(record, table)
            except StoreError:
                outcomes.append("refused")
            else:
                outcomes.append("written")

        threads = [threading.Thread(target=commit, args=(n,)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        name = a_record().run_id
        assert sorted(outcomes) == ["refused"] * 7 + ["written"]
        assert store.verify([name]) == {name}
        assert store.read_steps(name)["step_s"][0].as_py() == store.read(name).attempt

    @pytest.mark.parametrize("name", ["../escape", "", "a/b", "a.attempt-1", "x" * 65])
    def test_a_run_id_names_a_file_of_the_folder_and_nothing_else(
        self, store: Store, name: str
    ) -> None:
        with pytest.raises(StoreError, match="no run id"):
            store.read(name)


class TestBroken:
    def broken_of(self, store: Store, name: str) -> Broken:
        found: list[Broken] = []
        assert store.verify([name], found.append) == set()
        assert len(found) == 1
        assert store.done_ids() == set()
        assert found[0].path.parent == store.quarantine
        assert found[0].path.is_file()
        reason = found[0].path.with_suffix(".reason.txt").read_text()
        assert found[0].reason in reason
        return found[0]

    def test_a_record_cut_off(self, store: Store) -> None:
        name = store.commit(a_record(), some_steps()).run_id
        path = store.runs / f"{name}.json"
        path.write_bytes(path.read_bytes()[:-20])
        assert "cut off" in str(self.broken_of(store, name))
        assert list(store.runs.iterdir()) == []
        assert (store.quarantine / f"{name}.steps.parquet").is_file()

    def test_a_number_altered(self, store: Store) -> None:
        name = store.commit(a_record(), None).run_id
        spoil(store.runs / f"{name}.json", '"first_loss": 0.1', '"first_loss": 0.2')
        assert "wrong checksum" in str(self.broken_of(store, name))

    def test_steps_missing(self, store: Store) -> None:
        name = store.commit(a_record(), some_steps()).run_id
        steps_of(store, name).unlink()
        assert "raw steps are missing" in str(self.broken_of(store, name))

    def test_steps_altered(self, store: Store) -> None:
        name = store.commit(a_record(), some_steps()).run_id
        path = steps_of(store, name)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(StoreError, match="wrong checksum"):
            store.read_steps(name)
        assert "wrong checksum" in str(self.broken_of(store, name))

    def test_a_record_under_another_name(self, store: Store) -> None:
        name = store.commit(a_record(), None).run_id
        (store.runs / f"{name}.json").rename(store.runs / "0123456789abcdef.json")
        assert "wrong name" in str(self.broken_of(store, "0123456789abcdef"))

    def test_steps_that_are_a_folder(self, store: Store) -> None:
        name = store.commit(a_record(), some_steps()).run_id
        steps = steps_of(store, name)
        steps.unlink()
        steps.mkdir()
        (steps / "within").write_text("x")
        with pytest.raises(StoreError, match="raw steps are a folder"):
            store.read_steps(name)
        assert "raw steps are a folder" in str(self.broken_of(store, name))
        assert (store.quarantine / f"{name}.steps.parquet" / "within").read_text() == "x"
        assert store.commit(a_record(), some_steps()).run_id == name

    def test_a_record_that_is_a_folder(self, store: Store) -> None:
        (store.runs / "0123456789abcdef.json").mkdir()
        found: list[Broken] = []
        assert store.verify(["0123456789abcdef"], found.append) == set()
        assert "a folder, no record" in found[0].reason
        assert (store.quarantine / "0123456789abcdef.json").is_dir()

    @pytest.mark.parametrize("suffix", [".json", ".steps.parquet"])
    def test_what_the_disk_refuses_is_no_fault_of_the_record(
        self, store: Store, suffix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = store.commit(a_record(), some_steps()).run_id
        real = os.open

        def refuse(path: Path, *more: Any, **named: Any) -> int:
            if Path(path).name.startswith(name) and Path(path).name.endswith(suffix):
                raise OSError(5, "Input/output error", str(path))
            return real(path, *more, **named)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(StoreError, match=rf"{name}\S*{suffix}: cannot be read: Input/out"):
            store.verify([name])
        assert store.done_ids() == {name}

    @pytest.mark.parametrize(
        "content",
        [
            "[]",
            "7",
            "{}",
            "",
            "\x00\xff",
            '{"schema_version": "1"}',
            "[" * 100_000,
            '{"schema_version": 1, "a": ' + '{"a":' * 100_000,
            '{"schema_version": 1, "a": ' + "[" * 900 + "]" * 900 + "}",
        ],
        ids=range(9),
    )
    def test_no_record_at_all(self, store: Store, content: str) -> None:
        (store.runs / "0123456789abcdef.json").write_text(content)
        self.broken_of(store, "0123456789abcdef")

    def test_the_point_can_be_measured_and_break_again(self, store: Store) -> None:
        name = a_record().run_id
        for _ in range(3):
            store.commit(a_record(), some_steps())
            (store.runs / f"{name}.json").write_text("{")
            self.broken_of(store, name)
        kept = sorted(p.name for p in store.quarantine.glob("*.json"))
        assert kept == [f"{name}.2.json", f"{name}.3.json", f"{name}.json"]

    def test_what_another_process_put_in_its_place_stays(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was broken when it was looked at, and a good one when it was moved."""
        name = store.commit(a_record(), some_steps()).run_id
        path = store.runs / f"{name}.json"
        good = path.read_bytes()
        path.write_text("{")
        real = quarantine.move_aside

        def late(source: Path, target: Path) -> Path:
            source.write_bytes(good)
            return real(source, target)

        monkeypatch.setattr(quarantine, "move_aside", late)
        found: list[Broken] = []
        assert store.verify([name], found.append) == {name}
        assert found == []
        assert path.read_bytes() == good
        assert store.read_steps(name).equals(some_steps())
        assert list(store.quarantine.iterdir()) == []
        # A retraction means one record, though another may be as good.
        other = a_record().model_copy(update={"attempt": 2}).sealed().text()
        path.write_bytes(other)
        assert "by another process" in store.retract(name, "attempt 2 failed").reason
        assert path.read_bytes() == good

    def test_what_another_process_has_moved_is_not_reported_twice(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = store.commit(a_record(), some_steps()).run_id
        (store.runs / f"{name}.json").write_text("{")
        real = quarantine.move_aside

        def late(source: Path, target: Path) -> Path:
            source.unlink()
            return real(source, target)

        monkeypatch.setattr(quarantine, "move_aside", late)
        found: list[Broken] = []
        assert store.verify([name], found.append) == set()
        assert found == []
        assert list(store.quarantine.iterdir()) == []

    def test_raw_files_of_others_stay_when_a_record_goes(self, store: Store) -> None:
        """They may be of a committer that is about to write its record."""
        name = a_record().run_id
        theirs = raw_path(store.runs, name, "steps", "f" * 64)
        theirs.write_bytes(b"of a launch that is not done yet")
        store.commit(a_record(), some_steps())
        moved = store.retract(name, "failed after all").path
        assert moved.with_name(f"{name}.steps.parquet").is_file()
        assert list(store.runs.iterdir()) == [theirs]

    def test_records_leaves_it_out_with_a_warning(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        good = store.commit(a_record(0), None)
        bad = store.commit(a_record(1), None)
        failed = store.add_failure(factories.failure(factories.config("horovod", 2), repeat=2))
        (store.runs / f"{bad.run_id}.json").write_text('{"half":')
        found = {record.run_id for record in store.records()}
        assert found == {good.run_id, failed.run_id}
        assert bad.run_id in caplog.text
        assert "counts as missing" in caplog.text
        assert store.sound_ids() == {good.run_id}
        assert (store.runs / f"{bad.run_id}.json").read_text() == '{"half":'
        assert list(store.quarantine.iterdir()) == []

    @given(st.data())
    @settings(max_examples=60, deadline=None)
    def test_any_byte_changed_is_found(self, data: st.DataObject) -> None:
        text = a_record().sealed().text()
        at = data.draw(st.integers(0, len(text) - 1))
        new = data.draw(st.integers(0, 255).filter(lambda b: b != text[at]))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "record.json"
            path.write_bytes(text[:at] + bytes([new]) + text[at + 1 :])
            with pytest.raises(StoreError):
                read_record(path, a_record().run_id)


class TestSchema:
    def test_the_golden_record_of_version_1_is_read(self, store: Store) -> None:
        golden = json.loads((GOLDEN / "v1.json").read_text())
        assert golden["schema_version"] == 1
        path = store.runs / f"{golden['run_id']}.json"
        path.write_bytes((GOLDEN / "v1.json").read_bytes())
        record = store.read(golden["run_id"])
        assert store.verify([record.run_id]) == {record.run_id}
        assert record.schema_version == SCHEMA_VERSION
        assert record.config.horovod.cycle_time_ms == 0.1
        assert record.window is not None
        assert record.window.throughput_samples_per_s == 12345.5
        assert record.block.repeat == 2
        assert record.resolved.placement == (2,)
        # What version 2 has elsewhere.
        assert record.overheads == {"phases": 0.01}
        assert record.phases is not None
        phases = golden["phases"]
        parts = ("data_s", "forward_s", "backward_s", "exposed_sync_s", "update_s")
        assert record.phases.sum_s == pytest.approx(sum(phases[name] for name in parts))

    def test_the_golden_record_of_version_2_is_read(self, store: Store) -> None:
        golden = json.loads((GOLDEN / "v2.json").read_text())
        path = store.runs / f"{golden['run_id']}.json"
        path.write_bytes((GOLDEN / "v2.json").read_bytes())
        record = store.read(golden["run_id"])
        assert golden.pop("schema_version") == 2
        assert golden.pop("evaluations") is None
        assert_within(golden, json.loads(record.model_dump_json()))
        assert record.ablation is not None
        assert record.ablation.interference_s == 0.0004
        assert record.telemetry is not None
        assert record.telemetry.nodes[0].devices[0].power_mean_w == 412.5
        assert record.window is not None
        assert record.window.steadiness is not None

    def test_the_golden_record_of_version_3_is_read(self, store: Store) -> None:
        golden = json.loads((GOLDEN / "v3.json").read_text())
        path = store.runs / f"{golden['run_id']}.json"
        path.write_bytes((GOLDEN / "v3.json").read_bytes())
        record = store.read(golden["run_id"])
        assert golden.pop("schema_version") == 3
        assert_within(golden, json.loads(record.model_dump_json()))
        assert record.kind == "train"
        assert record.training is not None
        assert [one.step for one in record.training.evaluations] == [0, 54, 107, 161, 214]
        assert record.feed is not None
        assert record.feed.cold_s == 0.0094
        assert (record.placed, record.data_source) == (None, None)

    def test_the_golden_record_of_version_4_is_read(self, store: Store) -> None:
        text = (GOLDEN / "v4.json").read_bytes()
        golden = json.loads(text)
        (store.runs / f"{golden['run_id']}.json").write_bytes(text)
        record = store.read(golden["run_id"])
        assert golden.pop("schema_version") == 4
        assert_within(golden, json.loads(record.model_dump_json()))
        assert record.slurm is not None
        assert record.slurm["nodelist"] == ["n1", "n2"]
        assert record.placed == Placed(
            hosts=("n1", "n2"), ranks_per_host=(2, 1), local_ranks=(0, 1, 0)
        )
        assert record.data_source is not None
        assert record.data_source.scratch == "$TMPDIR"
        assert record.config.ddp == DdpTuning()

    def test_the_golden_record_of_version_5_is_read(self, store: Store) -> None:
        text = (GOLDEN / "v5.json").read_bytes()
        golden = json.loads(text)
        (store.runs / f"{golden['run_id']}.json").write_bytes(text)
        record = store.read(golden["run_id"])
        assert record.text() == text  # the newest version is written as it was read
        assert record.config.ddp == DdpTuning(bucket_mb=50, gradient_as_bucket_view=True)
        assert record.config.execution.cudnn_benchmark

    def test_records_without_phases_have_no_overheads(self) -> None:
        plain = migrate({"schema_version": 1, "phases": None}, "x")
        assert plain == {"schema_version": SCHEMA_VERSION, "phases": None}

    def test_a_newer_record_is_an_error_by_name_and_nothing_moves(self, store: Store) -> None:
        cut = store.commit(a_record(0), None).run_id
        (store.runs / f"{cut}.json").write_text("{")
        newer = store.commit(a_record(1).model_copy(update={"schema_version": 99}), None).run_id
        path = store.runs / f"{newer}.json"
        with pytest.raises(NewerSchemaError, match=rf"{newer}\.json: schema version 99.*update"):
            store.verify([cut, newer])
        with pytest.raises(NewerSchemaError):
            list(store.records())
        with pytest.raises(NewerSchemaError):
            store.sound_ids()
        assert path.exists()

    def test_a_version_that_was_altered_is_no_newer_record(self, store: Store) -> None:
        """One bit makes a 7 of a 5: that must not stop a sweep until hvdscale is updated."""
        name = store.commit(a_record(), None).run_id
        path = store.runs / f"{name}.json"
        spoil(
            path, f'"schema_version": {SCHEMA_VERSION}', f'"schema_version": {SCHEMA_VERSION + 2}'
        )
        found: list[Broken] = []
        assert store.verify([name], found.append) == set()
        assert found[0].reason == "altered since it was written (wrong checksum)"  # and no path

    def test_a_newer_folder_is_an_error_and_nothing_is_written(self, store: Store) -> None:
        spoil(
            store.path / "sweep.json",
            f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99',
        )  # fmt: skip
        before = snapshot(store.path)
        for create in (False, True):
            with pytest.raises(
                StoreError, match=r"sweep\.json: schema version 99.*update hvdscale"
            ):
                Store.open(store.path, create=create)
        assert snapshot(store.path) == before

    def test_migrations_go_step_by_step(self) -> None:
        steps = {
            1: lambda data: {**data, "b": data["a"] + 1},
            2: lambda data: {**data, "c": data["b"] * 10},
        }
        assert migrate({"schema_version": 1, "a": 4}, "x", steps, 3) == {
            "schema_version": 3,
            "a": 4,
            "b": 5,
            "c": 50,
        }
        assert migrate({"schema_version": 2, "b": 7}, "x", steps, 3)["c"] == 70
        with pytest.raises(NewerSchemaError, match="reads up to 3"):
            migrate({"schema_version": 4}, "x", steps, 3)


class TestOpen:
    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="no results here"):
            Store.open(tmp_path / "nothing")
        assert list(tmp_path.iterdir()) == []

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(StoreError, match="file"):
                Store.open(path, create=True)

    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = Store.open(tmp_path / "sweep", create=True)
        real = os.open

        def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if flags & os.O_CREAT and str(path).startswith(str(store.runs)):
                raise OSError(30, "Read-only file system", str(path))
            return real(path, flags, *rest, **more)

        monkeypatch.setattr(os, "open", refuse)  # root writes everywhere, so modes would not do
        message = f"{store.runs}: cannot be written: Read-only file system"
        with pytest.raises(StoreError, match=re.escape(message)) as found:
            Store.open(store.path, create=True)
        assert ".tmp" not in str(found.value)

    @pytest.mark.parametrize(
        "content", ["", "[]", "{", '{"name": "x"}', '{"schema_version": null}', "[" * 100_000]
    )
    def test_a_foreign_sweep_json(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "sweep.json").write_text(content)
        with pytest.raises(StoreError, match="not what hvdscale wrote"):
            Store.open(tmp_path, create=True)

    def test_a_sweep_json_that_is_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "sweep.json").mkdir()
        with pytest.raises(StoreError, match="not what hvdscale wrote"):
            Store.open(tmp_path, create=True)

    def test_opening_again_changes_nothing(self, store: Store) -> None:
        before = snapshot(store.path)
        Store.open(store.path, create=True)
        assert snapshot(store.path) == before


class TestConfig:
    def test_a_changed_config_keeps_the_earlier_ones(self, store: Store) -> None:
        for text in ("a: 1\n", "a: 1\n", "a: 2\n", "a: 3\n"):
            store.save_config(text)
        kept = {p.name: p.read_text() for p in store.path.glob("*.yaml")}
        assert kept == {"sweep.1.yaml": "a: 1\n", "sweep.2.yaml": "a: 2\n", "sweep.yaml": "a: 3\n"}


class TestAttempts:
    def test_count_from_one(self, store: Store) -> None:
        assert store.next_attempt("0123456789abcdef") == 1
        for number in (1, 2, 3):
            assert store.next_attempt("0123456789abcdef") == number
            attempt, folder = store.claim_attempt("0123456789abcdef")
            assert attempt == number
            assert folder == store.logs / "0123456789abcdef" / str(number)
            assert folder.is_dir()

    def test_a_name_that_is_no_number_does_not_count(self, store: Store) -> None:
        store.claim_attempt("0123456789abcdef")
        for name in ("²", "7a", "٣"):
            (store.logs / "0123456789abcdef" / name).mkdir()
        assert store.claim_attempt("0123456789abcdef")[0] == 2

    def test_are_never_shared(self, store: Store) -> None:
        claimed: list[int] = []

        def claim() -> None:
            for _ in range(20):
                claimed.append(store.claim_attempt("0123456789abcdef")[0])

        threads = [threading.Thread(target=claim) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(claimed) == list(range(1, 121))


class TestAtomic:
    def test_the_permissions_are_those_of_the_umask(self, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            write_atomic(tmp_path / "file", b"x")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640

    def test_a_failed_write_leaves_the_old_file_and_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        write_atomic(path, b"old")

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space") as found:
            write_atomic(path, b"new")
        assert found.value.filename == str(path)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_file_moved_aside_covers_no_other(self, tmp_path: Path) -> None:
        (tmp_path / "aside").mkdir()
        for content in "ab":
            (tmp_path / "x.json").write_text(content)
            files.move_aside(tmp_path / "x.json", tmp_path / "aside" / "x.json")
        assert (tmp_path / "aside" / "x.json").read_text() == "a"
        assert (tmp_path / "aside" / "x.2.json").read_text() == "b"
        assert not (tmp_path / "x.json").exists()


def test_done_ids_reads_names_alone(store: Store) -> None:
    for number in range(200):
        (store.runs / f"{number:016x}.json").write_text("not looked at")
    (store.runs / f"{1:016x}.attempt-3.json").write_text("")
    (store.runs / f"{1:016x}.steps.parquet").write_text("")
    (store.runs / f".{2:016x}.json.abcd.tmp").write_text("")
    assert store.done_ids() == {f"{number:016x}" for number in range(200)}
    assert store.attempts() == {(f"{1:016x}", 3)}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    } | {str(p.relative_to(folder)): b"/" for p in folder.rglob("*") if p.is_dir()}
