"""Synthetic images and their file, whole or absent, made once; scikit-learn's digits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.requirements import require_modules
from workloads import made_once
from workloads.api import WorkloadError
from workloads.resnet import ResNet, digits, store
from workloads.resnet.patterns import ImageSpec, class_patterns, make_images
from workloads.resnet.store import DataSpec, check, open_data

IMAGES = ImageSpec(seed=3, classes=7, size=96)
CHUNK = (4 << 20) // (3 * 96 * 96)  # 151
SPEC = DataSpec(2 * CHUNK + 10, IMAGES)  # three chunks, the last one short

PINNED_LABELS, PINNED_BYTES = [527, 141, 947], "3a09cc14a9d6f25f"

#: Run by a Python of its own: prepare the data of SPEC in the folder that is its argument.
PREPARE = f"""
import sys
from pathlib import Path
from workloads.resnet import store
from workloads.resnet.patterns import ImageSpec
spec = store.DataSpec({SPEC.count}, ImageSpec(3, 7, 96))
made = []
write = store._write
store._write = lambda *args: (made.append(1), write(*args))
{{before}}
spec.file(Path(sys.argv[1])).ensure()
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


def test_an_image_depends_on_its_index_alone() -> None:
    patterns = class_patterns(IMAGES)
    whole, labels = make_images(IMAGES, patterns, 0, 9)
    parts = [make_images(IMAGES, patterns, *span) for span in ((0, 4), (4, 5), (5, 9))]
    assert np.array_equal(whole, np.concatenate([part[0] for part in parts]))
    assert np.array_equal(labels, np.concatenate([part[1] for part in parts]))
    assert not np.array_equal(whole[0], whole[1])
    other = ImageSpec(4, 7, 96)
    assert not np.array_equal(make_images(other, class_patterns(other), 0, 9)[0], whole)


def test_the_bytes_are_pinned() -> None:
    spec = ImageSpec(seed=1, classes=1000, size=33)
    images, labels = make_images(spec, class_patterns(spec), 5, 8)
    assert images.shape == (3, 3, 33, 33)
    assert labels.tolist() == PINNED_LABELS
    assert hashlib.sha256(images.tobytes()).hexdigest()[:16] == PINNED_BYTES


def test_an_image_is_its_classs_pattern_moved_and_noise() -> None:
    spec = ImageSpec(seed=3, classes=7, size=64)
    patterns = class_patterns(spec)
    images, labels = make_images(spec, patterns, 0, 600)
    assert np.bincount(labels, minlength=7).min() > 50
    assert images.max() <= 254
    large = np.kron(patterns, np.ones((8, 8), np.uint8))
    for image, label in zip(images[:3].astype(int), labels[:3], strict=True):
        moved = [
            np.roll(large[label], (-down, -right), (1, 2)).astype(int)
            for down in range(64)
            for right in range(64)
        ]
        noise = [image - pattern for pattern in moved]
        fits = [n for n in noise if n.min() >= 0 and n.max() <= 127]
        assert len(fits) == 1
        assert fits[0].mean() == pytest.approx(63.5, abs=2)


def test_the_file_holds_the_images_and_is_mapped_read_only(tmp_path: Path) -> None:
    made = SPEC.file(tmp_path)
    made.ensure()
    data = open_data(SPEC, tmp_path, every_chunk=True)
    images, labels = make_images(IMAGES, class_patterns(IMAGES), 0, SPEC.count)
    assert SPEC.chunks == 3
    assert np.array_equal(data.inputs, images)
    assert np.array_equal(data.targets, labels)
    assert data.targets.dtype == np.int64
    assert data.inputs.flags.c_contiguous
    assert not data.inputs.flags.writeable
    assert not data.targets.flags.writeable
    assert made.path.stat().st_size == SPEC.file_bytes
    assert data.files() == (made.path,)
    assert files(tmp_path) == [made.path.name]


def test_a_good_file_is_left_alone_even_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SPEC.file(tmp_path).ensure()
    before = SPEC.path(tmp_path).stat()

    def refuse(*_: object) -> None:
        raise AssertionError("the data was there")

    monkeypatch.setattr(store, "_write", refuse)
    monkeypatch.setattr(made_once, "_lock", refuse)
    SPEC.file(tmp_path).ensure()
    after = SPEC.path(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda p: p.write_bytes(b""), "0 bytes instead of"),
    "short": (lambda p: os.truncate(p, SPEC.file_bytes - 1), "bytes instead of"),
    "magic": (lambda p: flip(p, 7), "does not begin"),
    "length": (lambda p: flip(p, 8), "header is damaged"),
    "header": (lambda p: flip(p, 40), "header is damaged"),
    "table": (lambda p: flip(p, 4096), "table of checksums is damaged"),
    "image": (lambda p: flip(p, SPEC.images_offset + 5), "checksum of its chunk 0"),
    "label": (lambda p: flip(p, SPEC.file_bytes - 1), "checksum of its chunk 2"),
}


def test_a_damaged_file_is_refused_and_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = SPEC.file(tmp_path)
    made.ensure()
    good = zlib.crc32(made.path.read_bytes())
    for spoil, reason in DAMAGES.values():
        spoil(made.path)
        with pytest.raises(WorkloadError, match=f"cannot be used: .*{reason}.*prepare it first"):
            open_data(SPEC, tmp_path)
        caplog.clear()
        made.ensure()
        assert reason in caplog.text
        assert "is made anew" in caplog.text
        assert zlib.crc32(made.path.read_bytes()) == good
    assert files(tmp_path) == [made.path.name]


@pytest.mark.parametrize(
    "other",
    [
        DataSpec(SPEC.count, ImageSpec(4, 7, 96)),
        DataSpec(SPEC.count, ImageSpec(3, 8, 96)),
        DataSpec(SPEC.count + 1, IMAGES),
    ],
)
def test_options_that_change_the_data_change_its_name_and_header(
    other: DataSpec, tmp_path: Path
) -> None:
    assert other.path(tmp_path) != SPEC.path(tmp_path)
    other.file(tmp_path).ensure()
    other.path(tmp_path).rename(SPEC.path(tmp_path))
    with (
        SPEC.path(tmp_path).open("rb") as file,
        pytest.raises(made_once.UnusableFile, match=r"other data|bytes instead of"),
    ):
        check(SPEC, file.fileno())


def test_processes_that_start_together_make_the_data_once(tmp_path: Path) -> None:
    racers = [start(tmp_path / "new" / "folder") for _ in range(3)]
    results = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 3, results
    assert sorted(out.strip() for out, _ in results) == ["0", "0", "1"]
    assert files(tmp_path / "new" / "folder") == [SPEC.path(tmp_path).name]


def test_without_file_locks_racing_processes_still_end_with_one_good_file(tmp_path: Path) -> None:
    no_locks = """
import errno, fcntl, os
def refuse(*args): raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = refuse
"""
    racers = [start(tmp_path, no_locks) for _ in range(2)]
    results = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 2, results
    assert any("no file locks here" in err for _, err in results)
    assert files(tmp_path) == [SPEC.path(tmp_path).name]


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
    assert "WorkloadError: resnet data cannot be made in" in last
    assert "File too large; it needs 0.01 GB there; make room or set fewer samples" in last
    assert files(tmp_path) == []


def test_too_little_room_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("started to write")

    monkeypatch.setattr(store, "_write", refuse)
    with pytest.raises(WorkloadError, match=r"No space left on device; it needs .* fewer samples"):
        DataSpec(10**9, ImageSpec(1, 10, 224)).file(tmp_path).ensure()
    assert files(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_and_what_another_writes_is_not(
    tmp_path: Path,
) -> None:
    name = SPEC.path(tmp_path).name
    killed = tmp_path / f"{name}.{made_once._kernel()}-dead.tmp"
    fresh, old = (tmp_path / f"{name}.{node}.tmp" for node in ("node1-aa", "node2-bb"))
    for temporary in (killed, fresh, old):
        temporary.write_bytes(b"")
    os.utime(old, (0, 0))
    SPEC.file(tmp_path).ensure()
    assert files(tmp_path) == sorted([name, fresh.name])


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(WorkloadError, match="choose another data folder"):
        SPEC.file(tmp_path / "data" / "here").ensure()


def test_synthetic_splits_are_seven_eighths_and_the_rest(tmp_path: Path) -> None:
    options = {"samples": 101, "classes": 4, "image_size": 16}
    workload = ResNet(options, tmp_path)
    with pytest.raises(WorkloadError, match="prepare it first"):
        workload.train()
    workload.prepare()
    train, test = workload.train(), workload.test()
    assert (workload.train_size(), len(train), len(test)) == (89, 89, 12)
    arrays = train.arrays()
    assert arrays is not None
    assert arrays[0].dtype == np.uint8
    spec = ImageSpec(1, 4, 16)
    images, labels = make_images(spec, class_patterns(spec), 0, 101)
    assert np.array_equal(test.gather(np.arange(12))[0], images[89:])
    assert np.array_equal(arrays[1], labels[:89])
    assert ResNet({}, tmp_path).train_size() == 8_960


def test_digits_are_split_once_and_blown_up(tmp_path: Path) -> None:
    require_modules("sklearn")
    from sklearn.datasets import load_digits

    workload = ResNet({"data": "digits", "classes": 10, "image_size": 20}, tmp_path)
    workload.prepare()
    train, test = workload.train(), workload.test()
    assert workload.train_size() == len(train) == 1437
    assert len(test) == 360
    (inputs, targets), (test_inputs, test_targets) = (
        split.gather(np.arange(len(split))) for split in (train, test)
    )
    assert inputs.shape == (1437, 3, 20, 20)
    assert (inputs.dtype, targets.dtype) == (np.uint8, np.int64)
    assert np.array_equal(inputs[:, 0], inputs[:, 2])
    # Every digit is in one of the splits: corners of the 8x8 cells, as levels of 0 to 16.
    corner = np.ceil(np.arange(8) * 20 / 8).astype(int)
    levels = np.concatenate([inputs, test_inputs])[:, 0][:, corner][:, :, corner] * (16 / 255)
    ours = np.column_stack([np.rint(levels).reshape(-1, 64), np.append(targets, test_targets)])
    pixels, labels = load_digits(return_X_y=True)
    theirs = np.column_stack([pixels, labels])
    assert np.array_equal(np.unique(ours, axis=0), np.unique(theirs, axis=0))
    assert set(np.bincount(test_targets, minlength=10) > 20) == {True}
    assert list(tmp_path.iterdir()) == []


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(WorkloadError, match=r"needs scikit-learn.*: pip install scikit-learn"):
        digits.read_split(16, training=True)
