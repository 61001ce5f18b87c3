"""What ``hvdscale allreduce`` is asked, and where it runs."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness.collectives
from harness.cli import collectives as command
from harness.collectives import joining, memory, network
from harness.collectives.definitions import (
    COLLECTIVES,
    LIBRARIES,
    bus_factor,
    moved_bytes,
    parse_names,
)
from harness.collectives.sizes import MAX_BYTES, parse_sizes, size_text
from harness.errors import ConfigError, HarnessError, LaunchError, MissingDependencyError
from harness.memory import host_total_bytes
from harness.provenance import mpi

K, M, G = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4K:64K", (4 * K, 8 * K, 16 * K, 32 * K, 64 * K)),
        ("4K:1M:4", (4 * K, 16 * K, 64 * K, 256 * K, M)),
        ("4K:5K", (4 * K,)),  # no power of two ends there
        ("1M,4K,64k,4K", (4 * K, 64 * K, M)),
        ("613764", (613764,)),
        ("4:16, 1G", (4, 8, 16, G)),
    ],
)
def test_sizes_are_what_they_say(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text",
    ["", "4K:", ":1G", "4K:foo", "1M:4K", "4K:1M:1", "4K:1M:0", "4K:1M:x", "4K:1M:2:2", "-4", "6",
     "0", "4K,,1M", "4KB", "1.5K", "4 K", "٤K", "2048G", "9" * 5000, "4K:1M:99999999999"],
)  # fmt: skip
def test_other_lists_are_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_sizes(text)
    assert str(caught.value).startswith("--sizes: ")
    assert len(str(caught.value)) < 220


@given(st.integers(1, MAX_BYTES // 4))
def test_a_size_reads_back(count: int) -> None:
    assert parse_sizes(size_text(4 * count)) == (4 * count,)


@given(st.integers(1, 2**20), st.integers(1, 2**20), st.integers(2, 50))
def test_a_range_begins_at_its_start_and_ends_within_a_factor_of_its_end(
    first: int, second: int, factor: int
) -> None:
    low, high = 4 * min(first, second), 4 * max(first, second)
    sizes = parse_sizes(f"{low}:{high}:{factor}")
    assert sizes[0] == low
    assert high / factor < sizes[-1] <= high
    assert all(b == a * factor for a, b in pairwise(sizes))


@given(st.text(max_size=30))
def test_any_text_is_sizes_or_a_config_error(text: str) -> None:
    try:
        sizes = parse_sizes(text)
    except ConfigError:
        return
    assert sizes
    assert all(size % 4 == 0 and 4 <= size <= MAX_BYTES for size in sizes)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875),
        ("all_to_all", 0.875), ("broadcast", 1.0), ("send_recv", 1.0),
    ],
)  # fmt: skip
def test_bus_factors_of_eight_ranks_are_those_of_nccl_tests(collective: str, factor: float) -> None:
    assert bus_factor(collective, 8) == factor


def test_a_barrier_has_no_bandwidth() -> None:
    assert moved_bytes("barrier", 4096, 2) == 0
    with pytest.raises(ValueError, match="barrier has no bandwidth"):
        bus_factor("barrier", 2)


def test_what_is_divided_by_n_moves_whole_elements_of_every_rank() -> None:
    assert moved_bytes("all_reduce", 4096, 3) == 4096
    assert moved_bytes("all_gather", 4096, 3) == 4092
    assert moved_bytes("all_to_all", 8, 3) == 0


def test_names_are_known_or_near() -> None:
    assert parse_names("all", LIBRARIES, "--libraries") == LIBRARIES
    assert parse_names("mpi4py, torch,mpi4py", LIBRARIES, "-") == ("mpi4py", "torch")
    assert parse_names("reduce-scatter", COLLECTIVES, "-") == ("reduce_scatter",)
    with pytest.raises(ConfigError, match=r"--libraries: 'horovdo'.*did you mean 'horovod'"):
        parse_names("horovdo", LIBRARIES, "--libraries")


def test_what_fits_is_judged_by_ranks_buffers_and_spare() -> None:
    assert memory.judge("all_reduce", G, 2, 5 * G, "node1") is None
    error = memory.judge("all_reduce", 4 * G, 2, 5 * G, "node1")
    assert error is not None
    assert error.exit_code == 2
    assert "all_reduce of 4G holds 2 buffers a rank, 16.0 GiB for 2 on node1" in str(error)
    assert "which has 5.0 GiB free: end --sizes at 1G" in str(error)
    assert memory.judge("all_reduce", G, 2, 5 * G, "node1") is None  # as advised
    assert "use fewer ranks" in str(memory.judge("all_reduce", 4, 8, G, "node1"))
    assert memory.judge("barrier", MAX_BYTES, 8, 0, "node1") is None


def test_a_control_group_limits_what_is_free(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("1:name=x:/y\n0::/job/step\n")
    step = tmp_path / "cgroup" / "job" / "step"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    (step / "memory.current").write_text("5\n")
    (step.parent / "memory.max").write_text("1000\n")
    (step.parent / "memory.current").write_text("700\n")
    (step.parent / "memory.stat").write_text("anon 600\ninactive_file 50\n")
    found = memory.host_free_bytes(tmp_path / "cgroup", str(tmp_path / "self"))
    assert found == 350
    assert memory.host_free_bytes(tmp_path, str(tmp_path / "none")) > 1000
    assert host_total_bytes(tmp_path / "cgroup", str(tmp_path / "self")) == 1000
    assert host_total_bytes(tmp_path, str(tmp_path / "none")) > 1000


def test_the_interface_is_what_was_said_or_loopback_on_one_host() -> None:
    here = socket.gethostname()
    assert network._home({}, here, [here, here]) == network.Home("lo", "127.0.0.1")
    said = {"HOROVOD_GLOO_IFACE": "lo", "GLOO_SOCKET_IFNAME": ""}
    assert network._home(said, here, [here, "another"]) == network.Home("lo", "127.0.0.1")
    # The kernel's route to another host's name, here an address of this one.
    assert network._home({}, here, [here, "127.0.0.2"]).interface == "lo"
    with pytest.raises(LaunchError, match="interface nope0 has no IPv4 address"):
        network._home({"GLOO_SOCKET_IFNAME": "nope0"}, here, [here])


def test_a_library_that_a_launcher_does_not_start_is_left_out_with_the_reason() -> None:
    usable, absent = joining.choose(("torch", "horovod", "mpi4py"), "torchrun")
    assert usable == ["torch"]
    assert [(one.library, one.collective) for one in absent] == [
        ("horovod", None),
        ("mpi4py", None),
    ]
    assert "mpirun or srun" in absent[1].reason
    with pytest.raises(MissingDependencyError, match=r"measure with .mpi4py: this horo"):
        joining.choose(("mpi4py",), "horovodrun")


@pytest.fixture
def by_mpi4py(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the module over an MPI of two ranks that is made up: the real one would start."""
    world = SimpleNamespace(size=2)
    made_up = SimpleNamespace(COMM_WORLD=world, THREAD_MULTIPLE=3, Query_thread=lambda: 3)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=made_up))
    # Set first, so that what the import leaves behind is taken away after the test.
    name = "harness.collectives.by_mpi4py"
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(harness.collectives, "by_mpi4py", None, raising=False)
    del sys.modules[name]
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("device", "told", "reason"),
    [
        ("cuda", {"cuda_aware": True}, None),
        ("cuda", {"cuda_aware": False}, "its MPI is not CUDA-aware, and the buffers are on"),
        ("cuda", {"library": "X"}, "its MPI does not say that it is CUDA-aware, and the buf"),
        ("cpu", {"cuda_aware": False}, None),
    ],
)
def test_mpi_gets_buffers_of_a_gpu_only_where_it_says_that_it_takes_them(
    device: str,
    told: dict[str, Any],
    reason: str | None,
    by_mpi4py: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi, "collect", lambda: told)
    found = by_mpi4py.unfit(2, SimpleNamespace(type=device), beside_horovod=True)
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)


def ask(folder: Path, **changes: object) -> int:
    given = {"sizes": "4K", "backend": None, "collectives": "all_reduce", "libraries": "torch",
             "iterations": 3, "results": folder, "as_json": False}  # fmt: skip
    return command.command_allreduce(**{**given, **changes})  # type: ignore[arg-type]


def rank_of(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    for name in list(os.environ):
        if name.startswith(("OMPI", "PMI", "SLURM", "HOROVOD")):
            monkeypatch.delenv(name)
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))


def test_one_rank_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rank_of(monkeypatch, 0, 1)
    with pytest.raises(ConfigError, match="needs at least 2 ranks"):
        ask(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sizes": "4K:foo"}, "--sizes: '4K:foo'"),
        ({"iterations": 0}, "--iterations: 0 is not from 1"),
        ({"collectives": "allreduce"}, "did you mean 'all_reduce'"),
        ({"libraries": "mpi4py"}, "nothing to measure with"),
        ({"backend": "mpi"}, "engine ddp has no backend mpi"),
    ],
)
def test_a_mistake_is_told_by_rank_0_and_the_others_wait(
    changes: dict[str, object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(command.time, "sleep", waited.append)
    rank_of(monkeypatch, 0, 2)
    with pytest.raises(HarnessError, match=said) as caught:
        ask(tmp_path, **changes)
    assert caught.value.exit_code == 2
    assert waited == []
    rank_of(monkeypatch, 1, 2)
    with pytest.raises(SystemExit) as ended:
        ask(tmp_path, **changes)
    assert ended.value.code == 2
    assert len(waited) == 1
    assert capfd.readouterr() == ("", "")
