"""The data file: whole or absent, checked on every opening, made once by processes that race."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from workloads import made_once
from workloads.api import WorkloadError
from workloads.stress_strain import StressStrain, making, store
from workloads.stress_strain.curves import CurveSpec, make_curves
from workloads.stress_strain.making import ensure
from workloads.stress_strain.store import CHUNK, DataSpec, open_data

CURVES = CurveSpec(seed=3, stress_noise=0.02, strain_noise=0.005)
SPEC = DataSpec(2 * CHUNK + 100, CURVES)  # three chunks, the last one short

#: Run by a Python of its own: prepare the data of SPEC in the folder that is its argument.
PREPARE = f"""
import sys
from pathlib import Path
from workloads.stress_strain import making, store
from workloads.stress_strain.curves import CurveSpec
spec = store.DataSpec({SPEC.count}, CurveSpec(3, 0.02, 0.005))
made = []
write = making._write_all
making._write_all = lambda *args: (made.append(1), write(*args))
{{before}}
making.ensure(spec, Path(sys.argv[1]))
store.open_data(spec, Path(sys.argv[1]), every_chunk=True)
print(len(made))
"""


def start(folder: Path, before: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE.format(before=before), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def files(folder: Path) -> list[str]:
    """Return the names in a folder, without the lock files, which stay."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_file_holds_the_curves_and_is_mapped_read_only(tmp_path: Path) -> None:
    path = ensure(SPEC, tmp_path)
    data = open_data(SPEC, tmp_path, every_chunk=True)
    inputs, labels = make_curves(CURVES, 0, SPEC.count)
    assert np.array_equal(data.inputs, inputs)
    assert np.array_equal(data.labels, labels)
    assert data.inputs.flags.c_contiguous
    assert not data.inputs.flags.writeable
    assert not data.labels.flags.writeable
    assert path.stat().st_size == SPEC.file_bytes == 4096 * 2 + SPEC.count * 2408
    assert files(tmp_path) == [path.name]


def test_a_good_file_is_left_alone_even_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ensure(SPEC, tmp_path)
    before = path.stat()

    def refuse(*_: object) -> None:
        raise AssertionError("the data was there")

    monkeypatch.setattr(making, "_write_all", refuse)
    monkeypatch.setattr(made_once, "_lock", refuse)
    ensure(SPEC, tmp_path)
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    "other",
    [
        DataSpec(SPEC.count + 1, CURVES),
        DataSpec(SPEC.count, CurveSpec(4, 0.02, 0.005)),
        DataSpec(SPEC.count, CurveSpec(3, 0.03, 0.005)),
        DataSpec(SPEC.count, CurveSpec(3, 0.02, 0.006)),
    ],
)
def test_options_that_change_the_data_change_its_name_and_header(
    other: DataSpec, tmp_path: Path
) -> None:
    assert other.path(tmp_path) != SPEC.path(tmp_path)
    foreign = ensure(other, tmp_path)
    foreign.rename(SPEC.path(tmp_path))
    with pytest.raises(WorkloadError, match=r"cannot be used: .*(other data|bytes instead of)"):
        open_data(SPEC, tmp_path)


def test_a_new_generator_uses_no_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ensure(SPEC, tmp_path)
    monkeypatch.setattr(store, "GENERATOR_VERSION", store.GENERATOR_VERSION + 1)
    assert SPEC.path(tmp_path) != old
    old.rename(SPEC.path(tmp_path))
    with pytest.raises(WorkloadError, match="describes other data"):
        open_data(SPEC, tmp_path)


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


LAST_LABEL = SPEC.file_bytes - 1
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.write_bytes(b""), "0 bytes instead of"),
    "short": (lambda p: os.truncate(p, SPEC.file_bytes - 1), "bytes instead of"),
    "long": (lambda p: os.truncate(p, SPEC.file_bytes + 1), "bytes instead of"),
    "text": (lambda p: p.write_bytes(b"x" * SPEC.file_bytes), "does not begin"),
    "no header yet": (lambda p: p.write_bytes(bytes(4096) + p.read_bytes()[4096:]), "not begin"),
    "magic": (lambda p: flip(p, 7), "does not begin"),
    "length": (lambda p: flip(p, 8), "header is damaged"),
    "header": (lambda p: flip(p, 40), "header is damaged"),
    "table": (lambda p: flip(p, 4096), "table of checksums is damaged"),
    "curve": (lambda p: flip(p, SPEC.inputs_offset + 5), "checksum of its chunk 0"),
    "label": (lambda p: flip(p, LAST_LABEL), "checksum of its chunk 2"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_and_made_anew(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, reason = DAMAGES[damage]
    path = ensure(SPEC, tmp_path)
    good = path.read_bytes()
    spoil(path)
    with pytest.raises(WorkloadError, match=reason):
        open_data(SPEC, tmp_path)
    ensure(SPEC, tmp_path)
    assert path.read_bytes() == good
    assert re.search(rf"is not usable \(.*{reason}.*\) and is made anew", caplog.text)
    assert files(tmp_path) == [path.name]


def test_opening_before_making_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"No such file or directory; prepare it first$"):
        StressStrain({"samples": 10}, tmp_path).train()


def test_processes_that_start_together_make_the_data_once(tmp_path: Path) -> None:
    racers = [start(tmp_path / "new" / "folder") for _ in range(4)]
    results = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4, results
    assert sorted(out.strip() for out, _ in results) == ["0", "0", "0", "1"]
    assert files(tmp_path / "new" / "folder") == [SPEC.path(tmp_path).name]


def test_without_file_locks_racing_processes_still_end_with_one_good_file(tmp_path: Path) -> None:
    no_locks = """
import errno, fcntl, os
def refuse(*args): raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = refuse
"""
    racers = [start(tmp_path, no_locks) for _ in range(3)]
    results = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 3, results
    assert any("no file locks here" in err for _, err in results)
    assert files(tmp_path) == [SPEC.path(tmp_path).name]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_writer_leaves_nothing_that_is_used(
    number: signal.Signals, tmp_path: Path
) -> None:
    # The third chunk never comes: the process is interrupted in the middle of the file.
    slow = """
import time
real = making.make_curves
making.make_curves = lambda s, a, b: (time.sleep(8 if a else 0), real(s, a, b))[1]
"""
    writer = start(tmp_path, slow)
    deadline = time.monotonic() + 60
    while not (tmp_path.is_dir() and list(tmp_path.glob("*.tmp"))):
        assert writer.poll() is None, writer.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.send_signal(number)
    writer.communicate(timeout=60)
    assert writer.returncode != 0
    assert not SPEC.path(tmp_path).exists()
    left = list(tmp_path.glob("*.tmp"))
    assert len(left) == (1 if number == signal.SIGKILL else 0)
    ensure(SPEC, tmp_path)  # nobody can clean up after SIGKILL but the next to come
    assert files(tmp_path) == [SPEC.path(tmp_path).name]


def test_another_nodes_temporary_file_is_stale_only_when_old(tmp_path: Path) -> None:
    name = SPEC.path(tmp_path).name
    fresh, old = (tmp_path / f"{name}.{node}.tmp" for node in ("node1-aa", "node2-bb"))
    for temporary in (fresh, old):
        temporary.write_bytes(b"being written on another node")
    os.utime(old, (time.time() - 7200,) * 2)
    ensure(SPEC, tmp_path)
    assert files(tmp_path) == sorted([name, fresh.name])


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    # The kernel itself refuses bytes beyond the limit, in the middle of the file.
    limit = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({SPEC.file_bytes // 2},) * 2)
"""
    writer = start(tmp_path, limit)
    _, err = writer.communicate(timeout=60)
    assert writer.returncode == 1
    last = err.strip().splitlines()[-1]
    assert "WorkloadError: stress_strain data cannot be made in" in last
    assert "File too large; it needs 0.01 GB there; make room or set fewer samples" in last
    assert files(tmp_path) == []


def test_too_little_room_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("started to write")

    monkeypatch.setattr(making, "_write_all", refuse)
    with pytest.raises(WorkloadError, match=r"No space left on device; it needs .* fewer samples"):
        ensure(DataSpec(10**9, CURVES), tmp_path)
    assert files(tmp_path) == []


def test_a_failed_sync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:  # as network file systems report a full disk, at the end
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WorkloadError, match=r"quota exceeded; it needs"):
        ensure(SPEC, tmp_path)
    assert files(tmp_path) == []


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(WorkloadError) as caught:
        ensure(SPEC, tmp_path / "data" / "here")
    assert "choose another data folder" in str(caught.value)
    assert "\n" not in str(caught.value)
