"""The data of the language model: bytes and words of texts, their file, samples, splits, faults."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.api import OptionValue, WorkloadError
from workloads.lstm import Lstm, corpus, text
from workloads.lstm.corpus import encode
from workloads.lstm.evaluation import Scoring, streams
from workloads.lstm.source import MarkovSource

SAID = "the cat sat on the mat\nthe dog sat on the cat\n"


def from_text(path: Path, folder: Path, **options: OptionValue) -> Lstm:
    return Lstm({"data": "text", "path": str(path), **options}, folder)


def made(workload: Lstm) -> Lstm:
    workload.prepare()
    return workload


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(SAID * 10, encoding="utf-8")
    return path


def test_bytes_become_samples_and_targets_one_on(story: Path, tmp_path: Path) -> None:
    workload = made(from_text(story, tmp_path / "data", sequence=7))
    data = np.frombuffer(story.read_bytes(), np.uint8)
    cut = len(data) * 9 // 10
    train, test = workload.train(), workload.test()
    for samples, part in ((train, data[:cut]), (test, data[cut:])):
        count = (len(part) - 1) // 7
        assert len(samples) == count
        assert samples.inputs.dtype == np.uint8
        assert np.array_equal(samples.inputs.ravel(), part[: count * 7])
        assert np.array_equal(samples.targets.ravel(), part[1 : count * 7 + 1])
        assert len(part) - 1 - count * 7 < 7, "no whole sample is left"
    assert workload.train_size() == len(train)
    assert len(train.files()) == 1
    inputs, _ = train.gather(np.array([3, 0]))
    assert np.array_equal(inputs[0], data[21:28])


def test_words_are_numbered_by_their_frequency_in_the_training_split(tmp_path: Path) -> None:
    # 20 words, 18 of them for training: the last two, "n", are unknown to it.
    words = ["<unk>" if word == "?" else word for word in "abac?abdabacabacddnn"]
    (numbers,) = encode([words[:7], words[7:]], 4, tmp_path)
    assert numbers.tolist() == [1, 2, 1, 3, 0, 1, 2, 0, 1, 2, 1, 3, 1, 2, 1, 3, 0, 0, 0, 0]
    # As frequent, the earlier first: c and d both come three times.
    (more,) = encode([words], 100, tmp_path)
    assert more.max() == 4
    assert more[[3, 7]].tolist() == [3, 4]


def test_the_vocabulary_is_as_asked_for_whatever_the_text_has(story: Path, tmp_path: Path) -> None:
    workload = made(from_text(story, tmp_path / "data", tokens="word", vocabulary=300, sequence=3))
    tokens = workload.train().inputs
    assert tokens.dtype == np.int32
    # Of two lines: the, 4 times; cat, sat, on, <eos>, twice; mat and dog, once.
    assert tokens[:3].ravel().tolist() == [1, 2, 3, 4, 1, 6, 5, 1, 7]
    assert workload.shape.vocabulary == 300
    unprepared = from_text(story, tmp_path / "elsewhere", tokens="word", sequence=3)
    assert unprepared.train_size() == workload.train_size() == len(tokens) == (126 - 1) // 3
    assert not (tmp_path / "elsewhere").exists()


@settings(max_examples=50, deadline=None)
@given(content=st.text("ab é\n\u3000\t€", max_size=60), block=st.integers(1, 9))
def test_words_do_not_depend_on_where_blocks_end(
    content: str, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "words.txt"
    path.write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", block)
        found = [word for some in text.words(path) for word in some]
    assert found == content.replace("\n", " <eos> ").split()


def test_the_text_is_read_once_and_again_when_it_changes(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, OptionValue] = {"tokens": "word", "vocabulary": 50, "sequence": 3}
    first = made(from_text(story, tmp_path / "data", **options))
    size = first.train_size()
    text.count_words.cache_clear()
    text.checksum.cache_clear()
    with monkeypatch.context() as patch:  # a rank that comes later
        patch.setattr(text, "blocks", lambda path: pytest.fail("the text was read again"))
        patch.setattr(text, "checksum", lambda found: pytest.fail("the text was read again"))
        later = made(from_text(story, tmp_path / "data", **options))
        assert later.train_size() == size == len(later.train())
    story.write_text(SAID * 20, encoding="utf-8")
    with pytest.raises(WorkloadError, match="prepare them first"):
        first.train()
    changed = made(from_text(story, tmp_path / "data", **options))
    assert changed.train_size() > size
    assert len(list((tmp_path / "data").glob("*.tokens"))) == 2


def test_a_text_that_changes_while_it_is_read_is_said(
    story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def and_change(path: Path) -> Any:
        yield path.read_bytes()
        path.write_text(SAID * 11)

    monkeypatch.setattr(text, "blocks", and_change)
    with pytest.raises(WorkloadError, match="was changed while it was read; try again"):
        from_text(story, tmp_path / "data", sequence=7).prepare()
    assert not list((tmp_path / "data").glob("*.tokens"))


def bad_texts(folder: Path) -> dict[str, Path]:
    paths = {name: folder / name for name in ("missing", "folder", "empty", "short", "latin")}
    paths["folder"].mkdir()
    paths["empty"].touch()
    paths["short"].write_text("word " * 12)
    paths["latin"].write_bytes(b"plain words here\nand caf\xe9 in latin-1")
    return paths


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("missing", {}, "missing cannot be read: No such file or directory; set path"),
        ("folder", {}, "folder is no regular file; set path"),
        ("empty", {}, "empty is empty; set path to a longer text"),
        ("short", {}, r"short has 60 bytes, too few for .* sequences of 128; .* at least 1281, or"),
        ("short", {"tokens": "word", "sequence": 2}, "short has 12 words, too few"),
        ("latin", {"tokens": "word"}, r"latin is not UTF-8 \(byte 0xe9 at 24\); convert it, or"),
    ],
)
def test_a_bad_text_is_one_line(
    name: str,
    options: dict[str, OptionValue],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 8)
    path = bad_texts(tmp_path)[name]
    for act in (Lstm.train_size, Lstm.prepare):
        with pytest.raises(WorkloadError, match=message) as caught:
            act(from_text(path, tmp_path / "data", **options))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "text"}, "option path: data: text needs the path"),
        ({"path": "/some/text"}, "option path: it has no effect with data: synthetic; leave it"),
        ({"vocabulary": 9}, "vocabulary: it has no effect with tokens: byte; .* tokens to word"),
        ({"data": "text", "path": "x", "order": 2}, "order: it has no effect with data: text"),
        ({"symbols": 300}, "symbols: 300 is more than the vocabulary of 256"),
        ({"layers": 4}, "option layers: 4 is above the maximum of 3"),
        ({"length": 100}, "synthetic text has 100 bytes, too few .* length to a number"),
    ],
)
def test_settings_that_do_not_go_together_are_one_line(
    options: dict[str, OptionValue], message: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=message):
        Lstm(options, tmp_path).train_size()


SYNTHETIC: dict[str, OptionValue] = {"length": 20_000, "sequence": 16, "symbols": 30}


def test_synthetic_tokens_are_those_of_the_source(tmp_path: Path) -> None:
    workload = made(Lstm(SYNTHETIC, tmp_path))
    assert workload.train_size() == 1124 == len(workload.train())
    (tokens,) = workload._source.text(20_000)  # type: ignore[union-attr]
    assert np.array_equal(workload.train().inputs.ravel(), tokens[: 1124 * 16])
    assert np.array_equal(workload.test().inputs[0], tokens[18_000:18_016])
    assert workload.floor_nats == workload._source.floor_nats  # type: ignore[union-attr]


@pytest.mark.parametrize("fault", ["short", "last byte", "header", "foreign"])
def test_a_damaged_file_is_refused_and_made_anew(fault: str, tmp_path: Path) -> None:
    workload = made(Lstm(SYNTHETIC, tmp_path))
    before = workload.train().inputs.copy()
    path = workload._corpus.file().path
    good = path.read_bytes()
    damaged = {
        "short": good[:-1],
        "last byte": good[:-1] + bytes([good[-1] ^ 1]),
        "header": good.replace(b'"length": 20000', b'"length": 20001'),
        "foreign": b"something else".ljust(len(good)),
    }[fault]
    assert damaged != good
    path.write_bytes(damaged)
    with pytest.raises(WorkloadError, match=r"cannot be used: .*; prepare them first"):
        workload.train()
    workload.prepare()
    assert path.read_bytes() == good
    assert np.array_equal(workload.train().inputs, before)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkloadError, match=r"tokens cannot be written to .*choose another data"):
        Lstm(SYNTHETIC, tmp_path / "file").prepare()


def test_what_cannot_be_read_in_the_files_place_is_left_there(tmp_path: Path) -> None:
    workload = Lstm(SYNTHETIC, tmp_path)
    path = workload._corpus.file().path
    path.mkdir()
    with pytest.raises(WorkloadError, match=r"lstm: tokens .* cannot be read: .*; move it away"):
        workload.prepare()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkloadError, match="No space left on device; make room"):
        Lstm(SYNTHETIC, tmp_path).prepare()
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def prepare_in_a_process(path: str, folder: str) -> int:
    workload = made(from_text(Path(path), Path(folder), tokens="word", sequence=3))
    return int(workload.train().inputs.sum())


def test_many_processes_make_one_file(story: Path, tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        arguments = [(str(story), str(tmp_path / "data"))] * 6
        sums = pool.starmap(prepare_in_a_process, arguments, chunksize=1)
    assert len(set(sums)) == 1
    assert sorted(path.suffix for path in (tmp_path / "data").iterdir()) == [
        ".json",
        ".lock",
        ".tokens",
    ]


def test_who_waits_for_the_lock_finds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = made(Lstm(SYNTHETIC, tmp_path))
    path = workload._corpus.file().path
    good = path.read_bytes()
    path.unlink()
    asked = threading.Event()

    def take(fd: int, how: int) -> None:
        asked.set()
        fcntl_flock(fd, how)

    fcntl_flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", take)
    monkeypatch.setattr(MarkovSource, "text", lambda *_: pytest.fail("made twice"))
    with path.with_name(path.name + ".lock").open() as held, ThreadPoolExecutor(1) as pool:
        fcntl_flock(held, fcntl.LOCK_EX)
        waiting = pool.submit(Lstm(SYNTHETIC, tmp_path).prepare)
        assert asked.wait(120)
        path.write_bytes(good)
        fcntl_flock(held, fcntl.LOCK_UN)
        waiting.result(120)


@given(samples=st.integers(0, 200), rows=st.integers(1, 40))
def test_evaluation_reads_every_sample_once_in_streams(samples: int, rows: int) -> None:
    steps = list(streams(samples, rows))
    assert sorted(np.concatenate([*steps, []]).tolist()) == list(range(samples))
    for before, after in pairwise(steps):
        assert len(after) == len(before) or after is steps[-1]
        assert np.array_equal(after, before[: len(after)] + 1)


def test_metrics_of_a_loss() -> None:
    assert Scoring(False, None).metrics(2.0) == {
        "loss": 2.0,
        "perplexity": pytest.approx(7.389056),
    }
    found = Scoring(True, 1.5).metrics(2.0)
    assert found["bits_per_byte"] == pytest.approx(2.885390)
    assert (found["floor_nats"], found["excess_nats"]) == (1.5, 0.5)
    assert Scoring(False, None).metrics(1e4)["perplexity"] == float("inf")
    assert np.isnan(Scoring(False, None).metrics(float("nan"))["perplexity"])


def test_the_split_is_at_nine_tenths() -> None:
    assert [corpus.train_tokens(tokens) for tokens in (9, 10, 101)] == [8, 9, 90]
