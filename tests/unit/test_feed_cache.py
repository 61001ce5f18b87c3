"""The kernel's file cache, asked for real: what it holds, and what makes it drop a file."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

from harness.feed import cache

PAGES = 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder on a disk: files of a file system in memory cannot be dropped."""
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.write(os.urandom(4096))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cache.cached_share([probe]):
        pytest.skip(f"{tmp_path} is on a file system that keeps its files in memory")
    return tmp_path


def written(path: Path, pages: int = PAGES) -> Path:
    path.write_bytes(os.urandom(pages * mmap.PAGESIZE))
    return path


def drop(*files: Path) -> None:
    """Drop all pages of ``files``; the kernel skips those that it is busy with at that moment."""
    for _ in range(50):
        cache.drop(files, 600)
        if not cache.cached_share(files):
            return
        time.sleep(0.02)


def test_a_file_just_written_is_cached_and_can_be_dropped(folder: Path) -> None:
    """Its pages were never synchronised: a dirty page is not dropped, so drop does that first."""
    file = written(folder / "a")
    assert cache.cached_share([file]) == 1.0
    drop(file)
    assert cache.cached_share([file]) == 0.0
    file.read_bytes()
    assert cache.cached_share([file]) == 1.0


def test_the_share_is_over_the_pages_of_all_files(folder: Path) -> None:
    files = [written(folder / "a"), written(folder / "b", 3 * PAGES), folder / "empty"]
    files[2].touch()
    drop(files[1])
    assert cache.cached_share(files) == 0.25
    assert cache.cached_share([files[2]]) == 0.0
    assert cache.total_bytes(files) == 4 * PAGES * mmap.PAGESIZE


def test_a_mapped_file_is_dropped_only_after_its_maps_let_go(folder: Path) -> None:
    file = folder / "a.npy"
    np.save(file, np.arange(100_000))
    link = folder / "link.npy"
    link.symlink_to(file)
    mapped = np.load(file, mmap_mode="r")
    total = int(mapped.sum())
    cache.drop([file], 600)
    assert cache.cached_share([file]) == 1.0
    assert cache.release_maps([folder / "probe"]) == 0  # of other files
    assert cache.release_maps([link]) >= file.stat().st_size  # by whatever name
    drop(file)
    assert cache.cached_share([file]) == 0.0
    assert int(mapped.sum()) == total  # the map is as good as before


def test_what_was_written_into_a_private_map_stays(folder: Path) -> None:
    file = folder / "a.npy"
    np.save(file, np.zeros(1000))
    mapped = np.load(file, mmap_mode="c")
    mapped[:] = 1.0
    assert cache.release_maps([file]) == 0
    assert mapped.sum() == 1000.0


def test_dropping_ends_with_its_time(folder: Path) -> None:
    files = [written(folder / "a"), written(folder / "b")]
    cache.drop(files, -1)
    assert cache.cached_share(files) == 1.0


def test_the_kernel_tells_nothing_of_files_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(folder / "a")
    drop(file)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    assert cache.cached_share([file]) is None
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    assert cache.cached_share([file]) == 0.0


def test_of_very_many_files_some_are_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_LOOKED_AT", 3)
    files = [written(folder / f"{number:02}", 1 + number) for number in range(12)]
    assert cache.total_bytes(files) == 12 * (1 + 5 + 9) // 3 * mmap.PAGESIZE
    drop(files[4], files[8])
    assert cache.cached_share(files) == 1 / 15
