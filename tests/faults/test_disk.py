"""Disks that are full or read-only, records that are damaged, folders of odd names, and NFS.

What holds of every folder at every moment is asserted in ``disturbed.check``; a failure tells what
was tried.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import StoreError
from harness.record import RunRecord
from harness.store import BrokenError, files, reading
from harness.store.reading import read_record
from tests import factories
from tests.faults.forks import FACTOR, SEED, Server, served
from tests.faults.mounts import may_mount
from tests.requirements import require


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as process:
        yield process


@pytest.fixture(scope="module")
def mounts() -> None:
    """Require that a process may have mounts of its own."""
    require("namespaces", may_mount(), "only root may mount a disk of its own")


class TestRefusals:
    def test_each_file_operation_refused_once_and_a_disk_full_from_any_on(
        self, server: Server, tmp_path: Path
    ) -> None:
        found = server.call("tests.faults.disks:each_operation_refused", folder=tmp_path, every=7)
        assert found["operations"] > 60
        assert found["told"] > 0.8 * found["tried"]

    def test_a_disk_that_fills_up(self, server: Server, tmp_path: Path, mounts: None) -> None:
        found = server.call("tests.faults.disks:really_full", folder=tmp_path)
        *full, last = found["codes"]
        assert {*full, last} == {1}
        assert found["measured"] == sorted(found["measured"])
        assert found["measured"][0] == 0
        assert found["measured"][-1] == 4  # there was room for all
        for said in found["said"][:-1]:
            assert "no space left on device" in said.lower()
        for said in found["said"][1:-1]:
            assert "; the sweep stopped here, after " in said
        assert found["left"] == [[]] * len(found["codes"])

    def test_a_limit_of_the_kernels(self, server: Server, tmp_path: Path) -> None:
        found = server.call("tests.faults.disks:limited_file_size", folder=tmp_path)
        codes = [code for code, _ in found["codes"]]
        assert codes[0] == 2  # nothing was begun
        assert codes[-1] == 1

    def test_a_read_only_disk(self, server: Server, tmp_path: Path, mounts: None) -> None:
        found = server.call("tests.faults.commands:read_only", folder=tmp_path)
        for name in ("run", "collect"):
            code, out, err = found[name]
            assert (code, out) == (2, "")
            assert err.count("\n") == 1
            assert "cannot be written: Read-only file system" in err
        code, out, err = found["ls"]
        assert code == 0
        assert "3/6 launches done" in out
        assert "cut off, or no record at all; the point counts as missing" in err


class TestDamage:
    @pytest.fixture
    def record(self) -> RunRecord:
        return factories.record(factories.config("horovod", 2, backend="mpi"))

    def _read(self, text: bytes, record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "read_file", lambda _: text)
        with pytest.raises(BrokenError):
            read_record(Path("x") / f"{record.run_id}.json", record.run_id)

    def test_every_bit_flipped_is_found(
        self, record: RunRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = record.text()
        for at in range(len(text)):
            for bit in range(8):
                flipped = bytes([text[at] ^ 1 << bit])
                self._read(text[:at] + flipped + text[at + 1 :], record, monkeypatch)

    def test_every_length_cut_off_is_found(
        self, record: RunRecord, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = record.text()
        for length in range(len(text)):
            self._read(text[:length], record, monkeypatch)

    @pytest.mark.parametrize("number", range(3 * FACTOR))
    def test_is_told_moved_away_and_measured_again(
        self, server: Server, tmp_path: Path, number: int
    ) -> None:
        found = server.call(
            "tests.faults.commands:damaged_records", folder=tmp_path, seed=SEED + number
        )
        flipped, cut, _, link = found["ids"]
        code, out, err = found["ls"]
        assert code == 0
        assert "stub: 3 points, 1/6 launches done" in out
        for name in (flipped, cut, link):
            assert f"{name}.json: " in err
        assert err.count("the point counts as missing") == 3
        code, out, _ = found["collect"]
        assert code == 0
        assert "5 launches without a measurement" in out
        for name in (flipped, cut, link):
            assert f"  {name} unreadable: {name}.json: " in out
        assert f" attempt 1 unreadable: {found['failed']}: " in out
        assert found["run"][0] == 1
        assert ": 4 measured, 0 done before, 2 failed" in found["run"][1]
        code, out, err = found["ls again"]
        assert "stub: 3 points, 4/6 launches done" in out
        assert err == ""

    def test_of_a_table_is_no_other_table(self, server: Server, tmp_path: Path) -> None:
        found = server.call(
            "tests.faults.commands:damaged_tables", folder=tmp_path, seed=SEED, count=40 * FACTOR
        )
        assert found == {"same": 40 * FACTOR}


class TestPlaces:
    def test_names(self, server: Server, tmp_path: Path) -> None:
        found = server.call("tests.faults.commands:odd_names", folder=tmp_path)
        assert found.pop("latin") == [2] * 5
        assert len(found) == 4
        for codes in found.values():
            assert codes[0] == 1  # of a point that always fails
            assert set(codes[1:]) == {0}

    def test_links_in_a_circle(self, server: Server, tmp_path: Path) -> None:
        found = server.call("tests.faults.commands:odd_places", folder=tmp_path)
        assert len(found) == 14
        for name, (code, err) in found.items():
            assert code == 2, name
            assert "cannot be read: Too many levels of symbolic links" in err, name


class TestNetworkFileSystem:
    def test_a_reply_that_was_lost_and_a_stale_handle_are_not_seen(
        self, server: Server, tmp_path: Path
    ) -> None:
        found = server.call("tests.faults.disks:replies_lost", folder=tmp_path)
        assert found["plans"] > 30
        assert found["reads"] > 3

    def test_killed_in_each_commit_without_hard_links(self, server: Server, tmp_path: Path) -> None:
        found = server.call("tests.faults.kills:killed_in_commits_without_links", folder=tmp_path)
        assert found["kills"] > 30

    def test_files_that_are_none_of_ours(self, server: Server, tmp_path: Path) -> None:
        """Among them what NFS keeps of a file that is removed while it is open."""
        found = server.call("tests.faults.commands:foreign_files", folder=tmp_path, count=1500)
        assert found["gone"] == [
            f".{'0' * 16}.json.{'a' * 16}.tmp"
        ]  # a day old, of a killed runner
        code, out, err = found["ls"]
        assert (code, err) == (0, "")
        assert "stub: 3 points, 4/6 launches done" in out
        assert found["collect"][0] == 0

    @pytest.mark.parametrize("what", ["file", "folder"])
    def test_a_move_whose_reply_was_lost_has_lost_nothing(
        self, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = tmp_path / "x.json", tmp_path / "aside.json"
        if what == "folder":
            source.mkdir()
            (source / "within").write_text("kept")
        else:
            source.write_text("kept")
        real = os.replace

        def twice(one: Path, other: Path) -> None:
            real(one, other)
            real(one, other)

        monkeypatch.setattr(os, "replace", twice)
        assert files.move_aside(source, target) == target
        kept = target / "within" if what == "folder" else target
        assert kept.read_text() == "kept"
        with pytest.raises(FileNotFoundError):
            files.move_aside(source, tmp_path / "other.json")
        assert sorted(tmp_path.iterdir()) == [target]

    def test_a_handle_that_stays_stale_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stale(path: Path, *_: object) -> int:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))

        monkeypatch.setattr(os, "open", stale)
        with pytest.raises(StoreError, match="cannot be read: Stale file handle"):
            read_record(tmp_path / "x.json", "x")
