"""Costs that were planted on purpose are found where they are, and nowhere else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import RunConfig
from harness.engines.api import PHASES
from harness.launch import build
from harness.measure.phases import split_sync
from tests.integration import netns
from tests.integration.ranks import PROGRAMS, ROOT, machine, point, spec_of

pytestmark = pytest.mark.alone

DELAY_S = 0.060  # as programs/planted.py has it
ELSEWHERE_S = 0.1 * DELAY_S
#: So slow that Horovod's negotiation, some 5 ms of queueing behind gradients, is little beside it.
RATE_BITS_PER_S = 25_000_000
GRADIENT_BYTES = 613_764
ALONE = tuple(phase for phase in PHASES if phase != "exposed_sync_s")


def medians(answers: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return each phase's median over steps, by rank; sync split into transfer and wait."""
    found = {
        phase: np.median([answer[kind][phase] for answer in answers], axis=1) for phase in ALONE
    }
    transfer_s, wait_s = split_sync(
        np.array([answer[kind]["exposed_sync_s"] for answer in answers])
    )
    return found | {"transfer_s": np.median(transfer_s), "wait_s": np.median(wait_s, axis=1)}


def common_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Give a process that began a session; neither it nor its group outlives the test."""
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def answers_of(processes: list[subprocess.Popen[str]], folder: Path) -> list[dict[str, Any]]:
    """Wait for ``processes``; return what the two ranks wrote."""
    said = [process.communicate(timeout=150)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(said)[-6000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


def program(engine: str, backend: str, folder: Path, data_dir: Path) -> tuple[str, ...]:
    """Return the program of a rank, with a spec for it."""
    spec = spec_of(small(engine, backend), folder, machine(), data_dir)
    (folder / "run.json").write_bytes(spec.text())
    return str(PROGRAMS / "planted.py"), str(folder / "run.json")


def small(engine: str, backend: str) -> RunConfig:
    return point(engine, backend, 2, batch_size=4)


def with_a_late_rank(
    engine: str, backend: str, folder: Path, data_dir: Path
) -> list[dict[str, Any]]:
    """Run ``programs/planted.py`` with the product's launcher; return its answers."""
    argv = (*program(engine, backend, folder, data_dir), "late")
    command = build(small(engine, backend), machine(), argv[1], timeout_s=600, program=argv)
    launcher = subprocess.Popen(
        command.argv,
        env={**common_environment(), **command.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    with running(launcher):
        return answers_of([launcher], folder)


@pytest.fixture(
    scope="module",
    params=[("horovod", "gloo"), ("horovod", "mpi"), ("ddp", "gloo")],
    ids=lambda e: "-".join(e),
)
def late(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data_dir: Path
) -> list[dict[str, Any]]:
    engine, backend = request.param
    folder = tmp_path_factory.mktemp("late")
    answers = with_a_late_rank(engine, backend, folder, data_dir)
    assert [answer["backend"] for answer in answers] == [backend] * 2
    return answers


def test_a_late_rank_is_wait_of_the_other_and_nothing_else(late: list[dict[str, Any]]) -> None:
    """Rank 1 sleeps before its first gradient: rank 0 waits so long, and loses no other."""
    plain, planted = medians(late, "plain"), medians(late, "planted")
    assert planted["wait_s"][0] == pytest.approx(DELAY_S, rel=0.10)
    assert planted["wait_s"][1] < ELSEWHERE_S
    assert abs(planted["transfer_s"] - plain["transfer_s"]) < ELSEWHERE_S
    for phase in ALONE:
        change_s = planted[phase] - plain[phase]
        assert abs(change_s[0]) < ELSEWHERE_S, phase
        # On rank 1 it is where it was planted.
        there_s = DELAY_S if phase == "backward_s" else 0.0
        assert abs(change_s[1] - there_s) < ELSEWHERE_S, phase


def test_the_clocks_say_the_same(late: list[dict[str, Any]]) -> None:
    check = late[0]["clocks"]
    assert (check["offsets_s"], check["error_s"]) == ([0.0, 0.0], 0.0)
    assert check["resolved"]
    assert check["skew_s"] > 0.9 * DELAY_S
    # Of the same steps, disturbed as they may have been. A rank that loses its core after it came
    # is late in its phases and not by the clocks: of the median step that is not so.
    by_clock_s = np.array(late[0]["waits_s"])
    assert check["wait_s"] == pytest.approx(by_clock_s.mean())
    _, wait_s = split_sync(np.array([answer["planted"]["exposed_sync_s"] for answer in late]))
    found_s, told_s = (np.median(waits.mean(axis=0)) for waits in (by_clock_s, wait_s))
    assert found_s == pytest.approx(told_s, abs=0.1 * DELAY_S)


def ddp_environments() -> Iterator[dict[str, str]]:
    for rank in (0, 1):
        yield {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": netns.ADDRESSES[0],
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": netns.INTERFACE,
        }


def horovod_environments(port: str) -> Iterator[dict[str, str]]:
    for rank in (0, 1):
        yield {
            "HOROVOD_HOSTNAME": netns.ADDRESSES[rank],
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": "2",
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_CROSS_RANK": str(rank),
            "HOROVOD_CROSS_SIZE": "2",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": netns.INTERFACE,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": netns.ADDRESSES[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        }


def over_a_slow_link(engine: str, folder: Path, data_dir: Path) -> list[dict[str, Any]]:
    """Run ``programs/planted.py`` with a rank in each of two namespaces; return its answers."""
    argv = [sys.executable, *program(engine, "gloo", folder, data_dir)]
    argv += ["link", netns.INTERFACE, str(RATE_BITS_PER_S)]
    with netns.pair(folder) as hosts, ExitStack() as stack:
        environments = ddp_environments()
        if engine == "horovod":
            serve = [sys.executable, str(PROGRAMS / "rendezvous.py")]
            serve.append(",".join(f"{address}:1" for address in netns.ADDRESSES))
            server = stack.enter_context(running(hosts.start(0, serve, common_environment())))
            assert server.stdout is not None
            environments = horovod_environments(server.stdout.readline().strip())
        ranks = [
            stack.enter_context(running(hosts.start(rank, argv, common_environment() | environ)))
            for rank, environ in enumerate(environments)
        ]
        return answers_of(ranks, folder)


@pytest.fixture(scope="module", params=["ddp", "horovod"])
def slow(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, data_dir: Path
) -> list[dict[str, Any]]:
    return over_a_slow_link(request.param, tmp_path_factory.mktemp("slow"), data_dir)


def test_a_slow_link_is_transfer_as_bytes_and_rate_say(slow: list[dict[str, Any]]) -> None:
    assert [answer["bytes"] for answer in slow] == [GRADIENT_BYTES] * 2
    ranks = len(slow)
    sent_bytes = GRADIENT_BYTES * 2 * (ranks - 1) / ranks  # by each rank of a ring, at once
    framed_bytes = sent_bytes * 1514 / 1448  # a full Ethernet frame and the TCP payload in it
    expected_s = 8 * framed_bytes / RATE_BITS_PER_S
    plain, planted = medians(slow, "plain"), medians(slow, "planted")
    assert planted["transfer_s"] == pytest.approx(expected_s, rel=0.15)
    assert plain["transfer_s"] < 0.5 * expected_s  # it is the link, and not the software
    assert (planted["wait_s"] < 0.15 * expected_s).all()
    for phase in ALONE:
        assert (abs(planted[phase] - plain[phase]) < 0.15 * expected_s).all(), phase


def test_hosts_of_one_kernel_have_one_clock(slow: list[dict[str, Any]]) -> None:
    hosts = [answer["host"] for answer in slow]
    assert tuple(host["name"] for host in hosts) == netns.HOSTS
    assert hosts[0]["clock"] == hosts[1]["clock"]


def test_clocks_are_compared_over_the_link(slow: list[dict[str, Any]]) -> None:
    own, other = slow
    assert [(one["offset_s"], one["error_s"]) for one in own["exchanges"]] == [(0, 0)] * 2
    before, after = other["exchanges"]
    assert 0 < before["error_s"] < 0.005
    assert abs(before["offset_s"] - other["true_offset_s"]) <= before["error_s"]
    span_s = after["at_s"] - before["at_s"]
    drift = (after["offset_s"] - before["offset_s"]) / span_s
    assert drift == pytest.approx(1e-4, abs=(before["error_s"] + after["error_s"]) / span_s)
