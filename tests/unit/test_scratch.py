"""Scratch of a node's own: whole copies, once a node, in a folder that is ours and no other."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from harness import scratch
from harness.errors import LaunchError
from harness.scratch import Copied, asked_for, copy_data, folder_here, remove_scratch

NODE = "node7"


@pytest.fixture(autouse=True)
def _on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch.socket, "gethostname", lambda: NODE)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a data folder with two files, one of them in a folder of its own."""
    folder = tmp_path / "shared"
    (folder / "deep").mkdir(parents=True)
    (folder / "curves.f32").write_bytes(b"c" * 5000)
    (folder / "deep" / "note.json").write_bytes(b"{}")
    for number, path in enumerate(files_of(folder)):
        os.utime(path, ns=(10**18, 10**18 + 123_456_789 * (number + 1)))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where a job's folder goes; it is not there yet."""
    (tmp_path / "local").mkdir()
    return tmp_path / "local" / "hvdscale-4711"


def files_of(folder: Path) -> tuple[Path, Path]:
    return folder / "curves.f32", folder / "deep" / "note.json"


def copy(shared: Path, folder: Path) -> Copied:
    return copy_data(files_of(shared), shared, folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class TestWhere:
    def test_a_job_and_a_user_have_folders_of_their_own(self) -> None:
        job = {"HVDSCALE_SCRATCH": "$TMPDIR/", "SLURM_JOB_ID": "4711"}
        assert asked_for(job) == "$TMPDIR/hvdscale-4711"
        user = asked_for({"HVDSCALE_SCRATCH": "/local/$USER"})
        assert user is not None
        assert user.startswith("/local/$USER/hvdscale-")
        assert user.rpartition("-")[2] not in ("", "4711")
        assert asked_for({"SLURM_JOB_ID": "4711"}) is None
        assert asked_for({"HVDSCALE_SCRATCH": ""}) is None

    def test_a_job_id_that_is_none_leads_nowhere_else(self) -> None:
        odd = {"HVDSCALE_SCRATCH": "/s", "SLURM_JOB_ID": "../$HOME"}
        assert asked_for(odd) == "/s/hvdscale-..__HOME"

    def test_variables_are_those_of_the_node(self) -> None:
        there = {"TMPDIR": "/tmp/7", "USER": "anna"}
        assert folder_here("$TMPDIR/x", there) == Path("/tmp/7/x")
        assert folder_here("/local/${USER}_1/x", there) == Path("/local/anna_1/x")
        assert folder_here("/a$$b/x", there) == Path("/a$b/x")

    @pytest.mark.parametrize(
        ("text", "environ", "said"),
        [
            ("$TMPDIR/x", {}, "scratch $TMPDIR/x on node node7: TMPDIR is not set there"),
            # Empty it would be a folder of the root's.
            ("$TMPDIR/x", {"TMPDIR": ""}, "TMPDIR is not set there"),
            ("/a$/x", {}, "a $ with no name after it"),
            ("tmp/x", {}, "tmp/x is no absolute path"),
            ("$TMPDIR/x", {"TMPDIR": "."}, "x is no absolute path"),
        ],
    )
    def test_what_is_no_folder_here_is_one_line_with_the_node(
        self, text: str, environ: dict[str, str], said: str
    ) -> None:
        with pytest.raises(LaunchError) as found:
            folder_here(text, environ)
        assert said in str(found.value)
        assert f"on node {NODE}" in str(found.value)


class TestCopy:
    def test_files_are_there_with_their_names_and_times(self, shared: Path, folder: Path) -> None:
        copied = copy(shared, folder)
        assert (copied.folder, copied.bytes) == (folder / "data", 5002)
        assert contents(folder / "data") == contents(shared)
        for mine, theirs in zip(files_of(folder / "data"), files_of(shared), strict=True):
            assert mine.stat().st_mtime_ns == theirs.stat().st_mtime_ns
        assert folder.stat().st_mode & 0o077 == 0

    def test_good_copies_are_not_made_again(self, shared: Path, folder: Path) -> None:
        copy(shared, folder)
        before = [path.stat().st_ino for path in files_of(folder / "data")]
        assert copy(shared, folder).bytes == 0
        assert [path.stat().st_ino for path in files_of(folder / "data")] == before

    def test_a_file_that_is_not_the_original_is_replaced(self, shared: Path, folder: Path) -> None:
        copy(shared, folder)
        cut, _ = files_of(folder / "data")
        facts = cut.stat()
        cut.write_bytes(b"c" * 100)
        os.utime(cut, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert copy(shared, folder).bytes == 5000
        (shared / "curves.f32").write_bytes(b"d" * 5000)  # made anew, as long as before
        assert copy(shared, folder).bytes == 5000
        assert contents(folder / "data") == contents(shared)

    def test_of_many_at_once_one_copies(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two jobs of a user outside of Slurm, say, on one node."""
        real, copies = scratch.shutil.copyfileobj, []

        def counted(source: Any, target: Any, length: int) -> None:
            copies.append(source.name)
            real(source, target, length)

        monkeypatch.setattr(scratch.shutil, "copyfileobj", counted)
        start, done = threading.Barrier(8), []

        def launch() -> None:
            start.wait()
            done.append(copy(shared, folder).bytes)

        threads = [threading.Thread(target=launch) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == [0] * 7 + [5002]
        assert len(copies) == 2
        assert contents(folder / "data") == contents(shared)

    def test_an_original_that_changes_meanwhile_is_no_copy(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half of it old and half new, with the time of the new one, it would pass for good."""
        real = scratch.shutil.copyfileobj

        def written_to(source: Any, target: Any, length: int) -> None:
            target.write(source.read(2500))
            Path(source.name).write_bytes(b"new!!" * 1000)
            real(source, target, length)

        with monkeypatch.context() as patched:
            patched.setattr(scratch.shutil, "copyfileobj", written_to)
            with pytest.raises(LaunchError, match=f"curves.f32: changed while.*{NODE}"):
                copy(shared, folder)
        assert contents(folder / "data") == {}
        assert copy(shared, folder).bytes == 5002
        assert contents(folder / "data") == contents(shared)

    def test_a_folder_that_another_launch_has_just_marked_is_ours(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, looks = scratch._is_marked, []

        def marked_after_the_look(there: Path) -> bool:
            found = real(there)
            if not looks:
                looks.append(there)
                (there / scratch.MARK).touch()
                (there / ".lock").touch()
            return found

        monkeypatch.setattr(scratch, "_is_marked", marked_after_the_look)
        assert copy(shared, folder).bytes == 5002

    def test_what_a_killed_launch_left_is_removed(self, shared: Path, folder: Path) -> None:
        copy(shared, folder)
        first, second = files_of(folder / "data")
        first.unlink()
        left = second.with_name(".note.json.0123.tmp")
        left.write_bytes(b"half")
        copy(shared, folder)
        assert contents(folder / "data") == contents(shared)

    def test_too_little_room_says_how_much(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.truncate(shared / "curves.f32", 2_400_000_000)  # a hole, which takes no room
        usage = (10**12, 10**12, 1_000_000_000)
        real = scratch.shutil.disk_usage
        small = type(real("/"))(*usage)
        monkeypatch.setattr(scratch.shutil, "disk_usage", lambda path: small)
        with pytest.raises(LaunchError) as found:
            copy(shared, folder)
        assert str(found.value).startswith(
            f"scratch {folder} on node {NODE}: too little room: needs 2.40 GB, has 1.00 GB; "
        )
        assert contents(folder) == {".hvdscale-scratch": b"", ".lock": b""}

    def test_a_disk_that_fills_meanwhile_leaves_no_half_file(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(source: Any, target: Any, length: int) -> None:
            target.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(scratch.shutil, "copyfileobj", full)
        with pytest.raises(LaunchError, match=f"on node {NODE}: .*No space left on device; make"):
            copy(shared, folder)
        assert contents(folder) == {".hvdscale-scratch": b"", ".lock": b""}

    def test_a_folder_that_cannot_be_written(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Any, *more: Any, **named: Any) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

        monkeypatch.setattr(os, "mkdir", refuse)  # root writes everywhere, so modes would not do
        with pytest.raises(LaunchError) as found:
            copy(shared, folder)
        said = f"scratch {folder} on node {NODE}: {folder}: Permission denied; set HVDSC"
        assert str(found.value).startswith(said)

    def test_a_path_that_is_not_there_is_not_made(self, shared: Path, tmp_path: Path) -> None:
        with pytest.raises(LaunchError, match="No such file or directory; set HVDSCALE_SCRATCH"):
            copy(shared, tmp_path / "no" / "such" / "hvdscale-1")
        assert not (tmp_path / "no").exists()

    def test_an_original_that_this_node_does_not_see(self, shared: Path, folder: Path) -> None:
        (shared / "curves.f32").unlink()
        with pytest.raises(LaunchError, match=r"curves.f32: No such file .* every node sees"):
            copy(shared, folder)


class TestOurs:
    def foreign(self, folder: Path, shared: Path, said: str) -> None:
        before = contents(folder)
        for action in (lambda: copy(shared, folder), lambda: remove_scratch(folder)):
            with pytest.raises(LaunchError, match=said) as found:
                action()
            assert f"scratch {folder} on node {NODE}: " in str(found.value)
        assert contents(folder) == before

    def test_what_we_did_not_make_is_neither_filled_nor_removed(
        self, shared: Path, folder: Path
    ) -> None:
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "thesis.tex").write_text("years of work")
        self.foreign(folder, shared, "did not put there|not made by hvdscale")

    def test_a_link_to_elsewhere_is_not_followed(
        self, shared: Path, folder: Path, tmp_path: Path
    ) -> None:
        ours = tmp_path / "local" / "hvdscale-1"
        copy(shared, ours)
        folder.symlink_to(ours)
        self.foreign(folder, shared, "not a folder of this user's")

    def test_another_users_folder(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In /tmp anybody may make a folder of the name that a job will have."""
        copy(shared, folder)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        self.foreign(folder, shared, "not a folder of this user's")

    def test_a_mark_that_is_a_link_is_none(self, shared: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "data").mkdir()
        (folder / ".hvdscale-scratch").symlink_to("/etc/hostname")
        with pytest.raises(LaunchError, match="not made by hvdscale"):
            remove_scratch(folder)
        assert (folder / "data").is_dir()


class TestRemove:
    def test_all_of_it_goes_and_nothing_else(self, shared: Path, folder: Path) -> None:
        copy(shared, folder)
        other = folder.with_name("hvdscale-4712")
        copy(shared, other)
        assert remove_scratch(folder) is True
        assert not folder.exists()
        assert contents(other / "data") == contents(shared)
        assert remove_scratch(folder) is False

    def test_what_was_put_there_since_stays(self, shared: Path, folder: Path) -> None:
        copy(shared, folder)
        (folder / "mine.txt").write_text("kept")
        with pytest.raises(LaunchError, match="Directory not empty"):
            remove_scratch(folder)
        assert contents(folder) == {"mine.txt": b"kept"}

    def test_data_that_is_a_link_is_not_followed(self, shared: Path, folder: Path) -> None:
        copy(shared, folder)
        (folder / "data").rename(folder.with_name("elsewhere"))
        (folder / "data").symlink_to(folder.with_name("elsewhere"))
        with pytest.raises(LaunchError, match="symbolic link"):
            remove_scratch(folder)
        assert contents(folder.with_name("elsewhere")) == contents(shared)

    def test_a_name_that_leads_elsewhere_meanwhile_is_not_followed(
        self, shared: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who may write to /local as well can exchange the folder between a look and a removal."""
        copy(shared, folder)
        other = folder.with_name("mine")
        (other / "data").mkdir(parents=True)
        (other / "data" / "thesis.tex").write_text("years of work")
        (other / scratch.MARK).touch()
        real = scratch._is_marked

        def exchanged(there: Path, inside: int | None = None) -> bool:
            found = real(there, inside)
            there.rename(there.with_name("away"))
            there.symlink_to(other)
            return found

        monkeypatch.setattr(scratch, "_is_marked", exchanged)
        with pytest.raises(LaunchError, match=r"Not a directory"):
            remove_scratch(folder)
        assert contents(other)["data/thesis.tex"] == b"years of work"
        assert contents(folder.with_name("away")) == {}

    def test_the_program_removes_this_jobs_folder(
        self,
        shared: Path,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        monkeypatch.setenv("LOCAL", str(folder.parent))
        monkeypatch.delenv("HVDSCALE_SCRATCH", raising=False)
        copy(shared, folder)
        assert scratch.main(["clean"]) == 0  # no scratch was asked for
        assert folder.exists()
        monkeypatch.setenv("HVDSCALE_SCRATCH", "$LOCAL")
        assert scratch.main([]) == scratch.main(["clean", "all"]) == 2
        assert capsys.readouterr().err.count("usage: ") == 2
        assert folder.exists()
        assert scratch.main(["clean"]) == 0
        assert not folder.exists()
        assert capsys.readouterr() == ("", f"hvdscale: removed {folder} on node {NODE}\n")
        assert scratch.main(["clean"]) == 0
        assert capsys.readouterr() == ("", "")
        monkeypatch.delenv("LOCAL")
        assert scratch.main(["clean"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("hvdscale: error: scratch $LOCAL/hvdscale-4711 on node node7: LOCAL")
