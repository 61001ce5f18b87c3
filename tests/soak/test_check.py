"""The soak's judge, on made-up folders: whatever was planted is found, and nothing else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from harness.store import Store
from tests import factories
from tests.soak import check, plan
from tests.soak.check import Fault, Snapshot
from tests.soak.damage import damage
from tests.unit.test_store import some_steps

CONFIG = factories.config("horovod", 2, backend="mpi")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Give three records with raw steps, and an attempt in vain at the first."""
    made = Store.open(tmp_path / "sweep", create=True)
    for repeat in range(3):
        record = factories.record(CONFIG, repeat)
        attempt, _ = made.claim_attempt(record.run_id)
        if repeat == 0:
            made.add_failure(factories.failure(CONFIG, attempt=attempt))
            attempt, _ = made.claim_attempt(record.run_id)
        made.commit(record.model_copy(update={"attempt": attempt}), some_steps())
    return made


def ids(store: Store) -> list[str]:
    return sorted(factories.record(CONFIG, repeat).run_id for repeat in range(3))


def kinds(faults: list[Fault]) -> list[str]:
    return [fault.kind for fault in faults]


def test_a_sound_folder_has_no_fault(store: Store) -> None:
    before = Snapshot.take(store.path)
    assert len(before.records) == 4
    assert check.after_run(before, Snapshot.take(store.path), {}, ids(store)) == []
    assert check.at_end(store.path, ids(store), []) == []
    assert check.leftovers(store.path, 0) == []


class TestLost:
    @pytest.mark.parametrize("attempt", ["", ".attempt-1"])
    def test_a_record_that_is_gone(self, store: Store, attempt: str) -> None:
        before = Snapshot.take(store.path)
        name = f"{factories.record(CONFIG, 0).run_id}{attempt}.json"
        (store.runs / name).unlink()
        (fault,) = check.after_run(before, Snapshot.take(store.path), {}, ids(store))
        assert fault.kind == "lost"
        assert name in fault.text

    def test_a_record_that_another_replaced(self, store: Store) -> None:
        before = Snapshot.take(store.path)
        again = factories.record(CONFIG, 1, factor=2.0)
        (store.runs / f"{again.run_id}.json").write_bytes(again.text())
        assert kinds(check.after_run(before, Snapshot.take(store.path), {}, [])) == ["lost"]

    def test_a_point_that_was_never_measured(self, store: Store) -> None:
        (fault,) = check.at_end(store.path, [*ids(store), "f" * 16], [])
        assert fault == Fault("lost", f"{'f' * 16} was never measured")

    def test_a_sound_record_in_quarantine(self, store: Store) -> None:
        name = ids(store)[0]
        store.retract(name, "a whim")
        found = check.at_end(store.path, ids(store), [])
        assert kinds(found) == ["lost", "lost"]
        assert found[1].text == f"quarantine/{name}.json was sound: a whim"

    def test_one_whose_launch_failed_after_all_is_none(self, store: Store) -> None:
        name = ids(store)[0]
        store.retract(name, "attempt 1: rank 0 ended with exit code 3")
        store.commit(next(r for k in range(3) if (r := factories.record(CONFIG, k)).run_id == name),
                     some_steps())  # fmt: skip
        assert check.at_end(store.path, ids(store), []) == []


class TestDamaged:
    @pytest.mark.parametrize("how", plan.DAMAGES)
    def test_what_is_found_and_measured_again_is_in_order(self, store: Store, how: str) -> None:
        hurt = damage(store.path, how, random.Random(5), set())
        assert hurt is not None
        before = Snapshot.take(store.path)
        name = Path(hurt[0]).stem
        assert name not in store.verify(ids(store))
        by_id = {one.run_id: one for one in (factories.record(CONFIG, k) for k in range(3))}
        store.claim_attempt(name)
        store.commit(by_id[name].model_copy(update={"attempt": 2}), some_steps())
        after = Snapshot.take(store.path)
        assert check.after_run(before, after, dict([hurt]), ids(store)) == []
        assert check.at_end(store.path, ids(store), [hurt]) == []
        shutil.rmtree(store.quarantine)
        found = check.after_run(before, Snapshot.take(store.path), dict([hurt]), [])
        assert kinds(found) == ["lost"]
        assert kinds(check.at_end(store.path, ids(store), [hurt])) == ["lost"]

    def test_what_nobody_found(self, store: Store) -> None:
        hurt = damage(store.path, "cut", random.Random(5), set())
        assert hurt is not None
        found = check.at_end(store.path, ids(store), [hurt])
        assert kinds(found) == ["broken"]  # verify moved it, so it is kept, and was done until then
        assert "cut off" in found[0].text

    def test_a_record_is_spared(self, store: Store) -> None:
        names = {f"{name}.json" for name in ids(store)}
        assert damage(store.path, "cut", random.Random(5), names) is None


class TestTwice:
    def test_what_was_done_is_launched_once_more(self, store: Store) -> None:
        before = Snapshot.take(store.path)
        name = ids(store)[1]
        store.claim_attempt(name)
        (fault,) = check.after_run(before, Snapshot.take(store.path), {}, ids(store))
        assert fault == Fault("duplicated", f"{name} was done, and was launched once more")

    def test_a_second_measurement_beside_the_first(self, store: Store) -> None:
        record = factories.record(CONFIG, 1)
        (store.runs / f"{record.run_id}.attempt-7.json").write_bytes(record.text())
        assert kinds(check.at_end(store.path, ids(store), [])) == ["duplicated", "broken"]

    def test_what_nobody_asked_for(self, store: Store) -> None:
        assert kinds(check.at_end(store.path, ids(store)[:2], [])) == ["broken"]


def test_temporary_files_are_found(store: Store) -> None:
    (store.runs / ".a.json.0123456789abcdef.tmp").touch()
    log = store.logs / ids(store)[0] / "1" / ".run.json.0123456789abcdef.tmp"
    log.touch()
    assert [fault.text.split(":")[0] for fault in check.leftovers(store.path, 1)] == [
        "runs/.a.json.0123456789abcdef.tmp"
    ]
    assert len(check.leftovers(store.path, 0)) == 2


def test_an_episode_follows_from_its_seed() -> None:
    kinds_ = ("stub", *plan.KINDS)
    made = [plan.make(seed, kinds_, may_mount=True) for seed in range(200)]
    assert made == [plan.make(seed, kinds_, may_mount=True) for seed in range(200)]
    assert {one.kind for one in made} == set(kinds_)
    assert {run.ending for one in made for run in one.runs} == set(plan.ENDINGS)
    assert any(one.small_disk for one in made)
    assert not any(plan.make(s, kinds_, may_mount=False).small_disk for s in range(200))
