"""NCCL, MPI and Horovod as they are in a process."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.provenance import horovod_facts, mpi, nccl
from harness.provenance.libraries import loaded_libraries, mapped_files, opened
from harness.provenance.notes import UnknownError
from harness.tuning import NOT_IN_CONFIG


def test_a_library_is_never_loaded_by_looking() -> None:
    (path,) = mapped_files(["libc.so"])
    assert opened(path).getpid() > 0
    assert loaded_libraries("libc.so", "libnever") == {"libc.so": path}
    # A part of glibc that nobody uses: it could be loaded, and is not.
    idle = Path(path).with_name("libBrokenLocale.so.1")
    assert idle.is_file()
    with pytest.raises(OSError, match=r"libBrokenLocale.* is not loaded"):
        opened(str(idle))
    assert mapped_files([idle.name]) == []


@pytest.mark.parametrize(
    ("code", "text"), [(22809, "2.28.9"), (23004, "2.30.4"), (2708, "2.7.8"), (21701, "2.17.1")]
)
def test_nccl_version_codes(code: int, text: str) -> None:
    assert nccl.version_text(code) == text


def _loaded_nccl(monkeypatch: pytest.MonkeyPatch, codes: dict[str, int]) -> None:
    def get_version(path: str) -> Any:
        def call(pointer: Any) -> int:
            pointer._obj.value = codes[path]
            return 0 if codes[path] else 3

        return SimpleNamespace(ncclGetVersion=call)

    monkeypatch.setattr(nccl, "mapped_files", lambda stems: list(codes))
    monkeypatch.setattr(nccl, "opened", get_version)


def test_the_loaded_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    _loaded_nccl(monkeypatch, {})
    assert nccl.collect() == {}
    _loaded_nccl(monkeypatch, {"/a/libnccl.so.2": 22809})
    assert nccl.collect() == {"version": "2.28.9", "path": "/a/libnccl.so.2"}


def test_two_nccls_in_one_process_are_both_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _loaded_nccl(monkeypatch, {"/a/libnccl.so.2": 22809, "/b/libnccl.so.2": 22707})
    found = nccl.collect()
    assert found["version"] == "2.28.9"
    assert found["others"] == [{"version": "2.27.7", "path": "/b/libnccl.so.2"}]


def test_an_nccl_that_does_not_answer_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    _loaded_nccl(monkeypatch, {"/a/libnccl.so.2": 0})
    with pytest.raises(UnknownError, match=r"ncclGetVersion of .* returned 3"):
        nccl.collect()


def _mpi(*, running: bool = True, query: int | None = None) -> Any:
    def flag(value: int) -> Any:
        def call(pointer: Any) -> int:
            pointer._obj.value = value
            return 0

        return call

    extension = {} if query is None else {"MPIX_Query_cuda_support": lambda: query}
    return SimpleNamespace(MPI_Initialized=flag(int(running)), MPI_Finalized=flag(0), **extension)


@pytest.mark.parametrize(
    ("library", "text", "environ", "aware"),
    [
        (_mpi(query=1), "Open MPI v5.0.11", {}, True),
        (_mpi(query=0), "MPICH Version: 5.0.2", {}, False),
        (_mpi(query=0, running=False), "Open MPI v5.0.11", {}, None),
        (_mpi(), "Intel(R) MPI Library 2021.12", {}, None),
        (_mpi(), "MPI VERSION : CRAY MPICH version 8.1", {}, False),
        (_mpi(), "CRAY MPICH", {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
    ],
)
def test_cuda_awareness_is_unknown_rather_than_guessed(
    library: Any, text: str, environ: dict[str, str], aware: bool | None
) -> None:
    assert mpi.cuda_aware(library, text, environ) is aware


def test_a_horovod_that_only_lies_around_is_no_part_of_a_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    assert horovod_facts.collect({"HOROVOD_CONTROLLER": "mpi"}) == {}


def test_horovod_and_what_it_was_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(__version__="0.28.1"))
    marker = {"digest": "02adb1", "gpu": "nccl", "proven": True, "cxxflags": "-O2"}
    monkeypatch.setattr(horovod_facts, "read_build_marker", lambda: marker)
    found = horovod_facts.collect({"HOROVOD_CONTROLLER": "MPI", "HOROVOD_CYCLE_TIME": "0.1"})
    assert found.pop("tuning")["HOROVOD_CYCLE_TIME"] == "0.1"
    assert found == {
        "version": "0.28.1",
        "build": {"digest": "02adb1", "gpu": "nccl", "proven": True},
        "controller": "mpi",
    }
    # A wheel of somebody else's carries no word on how it was built.
    monkeypatch.setattr(horovod_facts, "read_build_marker", dict)
    assert "build" not in horovod_facts.collect({})


def test_tuning_in_force_has_the_defaults_too() -> None:
    found = horovod_facts.in_force(
        {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_TIMELINE": "DYNAMIC", "HOROVOD_RANK": "3"}
    )
    assert found["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert found["HOROVOD_CYCLE_TIME"] == "1.0"
    assert found["HOROVOD_CACHE_CAPACITY"] == "1024"
    assert found["HOROVOD_TIMELINE"] == "DYNAMIC"
    assert set(NOT_IN_CONFIG) < set(found)
    assert "HOROVOD_RANK" not in found
