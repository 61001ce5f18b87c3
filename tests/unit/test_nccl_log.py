"""NCCL's own account of a communicator, in the words of its versions."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.engines.nccl_log import debug_file, own_output, parse_nccl_log

GOLDEN = Path(__file__).parents[1] / "golden" / "nccl"


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.log").read_text(encoding="utf-8")


def test_a_real_log() -> None:
    assert parse_nccl_log(golden("h100-x2")) == {
        "nccl_version": "2.28.9+cuda13.0",
        "nccl_network": "Socket",
        "nccl_channels": "24",
        "nccl_nvls_channels": "0",
        "nccl_nodes": "1",
        "nccl_ranks": "2",
        "nccl_mnnvl": "0",
        "nccl_transports": "P2P/CUMEM",
    }


@pytest.mark.parametrize(
    ("name", "channels", "nodes", "transport"),
    [
        ("2.28-shm-two-ranks", "4", "1", "SHM/direct/direct"),
        # NCCL itself counts two nodes where neither P2P nor shared memory joins the ranks.
        ("2.28-socket-two-ranks", "2", "2", "NET/Socket"),
    ],
)
def test_real_logs_of_two_ranks_in_one_file(
    name: str, channels: str, nodes: str, transport: str
) -> None:
    found = parse_nccl_log(golden(name))
    assert found["nccl_version"] == "2.28.9+cuda13.0"
    assert (found["nccl_channels"], found["nccl_nodes"]) == (channels, nodes)
    assert found["nccl_transports"] == transport


def test_two_nodes_with_infiniband() -> None:
    found = parse_nccl_log(golden("2.27-two-nodes-ib"))
    assert found == {
        "nccl_version": "2.27.7+cuda12.9",
        "nccl_network": "IB",
        "nccl_channels": "16",  # of the first communicator, not of the later one of 8 ranks
        "nccl_nvls_channels": "16",
        "nccl_nodes": "2",
        "nccl_ranks": "16",
        "nccl_mnnvl": "0",
        "nccl_nvls_multicast": "yes",
        # Both adapters are one transport, and a send outside of collectives is none of theirs.
        "nccl_transports": "NET/IB/GDRDMA, P2P/CUMEM, P2P/CUMEM/read",
    }


def test_a_process_is_told_from_another_in_the_same_file() -> None:
    text = golden("2.29-plugin-two-ranks")
    first, second = parse_nccl_log(text, pid=51), parse_nccl_log(text, pid=52)
    assert first["nccl_transports"] == "P2P/IPC"
    assert second["nccl_transports"] == "NET/AWS Libfabric/GDRDMA, SHM/direct/direct"
    assert first["nccl_nvls_multicast"] == "no"
    assert "nccl_nvls_multicast" not in second
    for found in (first, second):
        assert found["nccl_version"] == "2.29.3+cuda13.1"
        assert found["nccl_git"] == "stable 0abc123"
        assert found["nccl_network"] == "AWS Libfabric"
        assert (found["nccl_channels"], found["nccl_nodes"]) == ("8", "2")


def test_a_process_under_another_number_reads_the_whole_file() -> None:
    text = golden("2.27-two-nodes-ib")
    assert parse_nccl_log(text, pid=1) == parse_nccl_log(text)


def test_nodes_that_nvlink_joins() -> None:
    found = parse_nccl_log(golden("2.30-mnnvl"))
    assert found["nccl_version"] == "2.30.4+cuda13.3"
    assert found["nccl_git"] == "HEAD 0abc123-dirty"
    assert (found["nccl_nodes"], found["nccl_mnnvl"]) == ("1", "1")
    assert (found["nccl_nvls_channels"], found["nccl_nvls_multicast"]) == ("24", "yes")
    assert found["nccl_transports"] == "P2P/MNNVL"


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_lines_does_not_matter(seed: int) -> None:
    lines = golden("2.28-shm-two-ranks").splitlines()
    shuffled = lines.copy()
    random.Random(seed).shuffle(shuffled)
    assert shuffled != lines
    assert parse_nccl_log("\n".join(shuffled)) == parse_nccl_log("\n".join(lines))


@pytest.mark.parametrize(
    ("via", "transport"),
    [
        ("P2P/direct pointer", "P2P/direct pointer"),
        ("P2P/indirect/3[1]", "P2P/indirect"),
        ("P2P/IPC comm 0x55 nRanks 02", "P2P/IPC"),
        ("NET/IBext_v8/2/GDRDMA/Shared", "NET/IBext_v8/GDRDMA/Shared"),
    ],
)
def test_transports_in_other_words(via: str, transport: str) -> None:
    line = f"n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}\n"
    assert parse_nccl_log(line) == {"nccl_transports": transport}


def test_rings_are_no_connections() -> None:
    assert parse_nccl_log("n:1:1 [0] NCCL INFO Channel 00/02 : 0 1") == {}


def test_what_is_not_there_has_no_key() -> None:
    assert parse_nccl_log("nothing of interest") == {}
    assert parse_nccl_log("", pid=3) == {}
    # As NCCL_DEBUG=WARN has it, and cut off in the middle of the next line.
    assert parse_nccl_log("NCCL version 2.30.4+cuda13.3\nn:1:1 [0] NCCL INFO Using netw") == {
        "nccl_version": "2.30.4+cuda13.3"
    }


def test_the_file_is_named_as_nccl_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node7.cluster.example")
    assert debug_file("/logs/%h.%p.log") == f"/logs/node7.{os.getpid()}.log"
    assert debug_file("/logs/100%%/%x") == "/logs/100%/%x"


def test_the_own_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"nccl.{os.getpid()}").write_text("said\n")
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"{tmp_path}/nccl.%p")
    assert own_output() == "said\n"
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"{tmp_path}/other")
    assert own_output() == ""


def test_a_process_reads_its_own_output_only_from_a_file(tmp_path: Path) -> None:
    code = (
        "import sys; from harness.engines.nccl_log import own_output; print('x', flush=True);"
        "print(repr(own_output()), file=sys.stderr)"
    )
    argv = [sys.executable, "-c", code]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with open(tmp_path / "out", "w") as out:
        done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, text=True, env=env)
    assert done.stderr.strip() == repr("x\n")
    piped = subprocess.run(argv, capture_output=True, text=True, env=env)
    assert piped.stderr.strip() == repr("")
