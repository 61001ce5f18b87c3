"""A real sampler on real processes: what they burn, its pauses, and that it never outlives them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from harness import telemetry
from harness.errors import LaunchError, MissingDependencyError
from harness.processes import read_process
from harness.telemetry import sampler as sampler_module
from tests.integration.ranks import ROOT

STUB = ROOT / "tests" / "unit" / "nvml_stub"

#: Spin on two threads or rest, with memory in use, until the input ends.
BUSY = """
import sys, threading
kept = bytearray(int(sys.argv[1]) << 20)
def spin():
    while True: hash(b"x" * 4096)
if sys.argv[2] == "spin": threading.Thread(target=spin, daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""
#: A rank with a sampler, which it leaves in the way that is asked for.
RANK = """
import os, sys, time
from harness.telemetry import Sampler
with Sampler((os.getpid(),)) as sampler:
    if "paused" in sys.argv: sampler.pause()
    forked = os.fork() if "fork" in sys.argv else -1
    if forked == 0: time.sleep(600); os._exit(0)
    print(sampler.pid, forked, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def ranks() -> Iterator[tuple[int, int]]:
    """Give the pids of a process that computes and of one that rests."""
    each = [
        subprocess.Popen(
            [sys.executable, "-c", BUSY, size, what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for size, what in (("64", "spin"), ("8", "rest"))
    ]
    try:
        for process in each:
            assert process.stdout is not None
            process.stdout.readline()
        yield each[0].pid, each[1].pid
    finally:
        for process in each:
            process.kill()
            process.communicate()


def alive(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def burnt(pid: int) -> float:
    """Return a process's CPU seconds, to the nanosecond, by the kernel's clock of that process."""
    return time.clock_gettime((~pid << 3) | 2)


def ends(pid: int, within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while alive(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def test_it_tells_what_each_rank_burns(ranks: tuple[int, int]) -> None:
    with telemetry.Sampler(ranks, interval_s=0.05) as sampler:
        pid = sampler.pid
        assert pid is not None
        start_s, before_s = time.time(), burnt(ranks[0])
        time.sleep(1.0)
        end_s, after_s = time.time(), burnt(ranks[0])
        sampler.pause()
        time.sleep(0.3)
        sampler.resume()
        time.sleep(0.1)
        series = sampler.stop()
        assert sampler.pid is None
        assert not alive(pid)
        with pytest.raises(RuntimeError, match="not running"):
            sampler.pause()
    (node,) = telemetry.summarise([(series, start_s, end_s)], samples=10).nodes
    assert 5 <= node.samples <= (end_s - start_s) / 0.05 + 2
    busy, resting = node.rank_cpu_mean
    # About a core, or what the machine's other work leaves of it.
    assert busy == pytest.approx((after_s - before_s) / (end_s - start_s), abs=0.2)
    assert 0.1 <= busy <= 1.2
    assert 0.0 <= resting <= busy / 5.0
    assert 0.0 < node.cpu_utilisation_mean <= 1.0
    large, small = node.rank_rss_max_bytes
    assert large - small > 40 << 20
    assert node.devices == ()
    (gap,) = np.flatnonzero(np.diff(series.segment))
    assert series.times_s[gap + 1] - series.times_s[gap] >= 0.3
    assert set(series.sampler_cores) <= os.sched_getaffinity(0)
    assert 0.0 < series.sampler_cpu_s < 5.0
    assert "power_w" not in telemetry.table([series]).column_names


def test_its_gpus_by_uuid_whatever_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{STUB}{os.pathsep}{ROOT}")
    monkeypatch.setenv("HVDSCALE_TEST_NVML", json.dumps({"uuids": ["GPU-a", "GPU-b"]}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with telemetry.Sampler((os.getpid(),), ("GPU-b",), interval_s=0.05) as sampler:
        start_s = time.time()
        time.sleep(2.0)
        end_s = time.time()
        series = sampler.stop()
    told = telemetry.summarise([(series, start_s, end_s)], samples=10)
    (device,) = told.nodes[0].devices
    assert (device.index, device.uuid) == (1, "GPU-b")
    assert device.power_mean_w == pytest.approx(400.0)
    assert device.energy_j == pytest.approx(400.0 * (end_s - start_s), rel=0.1)
    # The stand-in's activity is the seconds since the sample before.
    assert 0.04 < device.sm_activity_mean < 0.5
    assert device.throttle_reasons == ("sw_power_cap",)
    assert series.devices[0].sources["power_w"] == "NVML_FI_DEV_POWER_INSTANT"


@pytest.mark.parametrize(
    ("config", "pids", "uuids", "kind", "words"),
    [
        ({"errors": {"nvmlInit": 12}}, None, ("GPU-a",), MissingDependencyError, "driver"),
        ({"uuids": ["GPU-a"]}, None, ("MIG-a",), LaunchError, "split by MIG"),
        ({}, (2**22 + 1,), (), LaunchError, "rank with pid 4194305"),
    ],
)
def test_what_cannot_be_sampled_is_an_error_here(
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, object],
    pids: tuple[int, ...] | None,
    uuids: tuple[str, ...],
    kind: type,
    words: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{STUB}{os.pathsep}{ROOT}")
    monkeypatch.setenv("HVDSCALE_TEST_NVML", json.dumps(config))
    sampler = telemetry.Sampler(pids or (os.getpid(),), uuids)
    with pytest.raises(kind, match=words) as caught:
        sampler.__enter__()
    assert type(caught.value) is kind
    assert sampler.pid is None


def test_a_sampler_that_died_is_an_error() -> None:
    with telemetry.Sampler((os.getpid(),)) as sampler:
        assert sampler.pid is not None
        os.kill(sampler.pid, signal.SIGKILL)
        with pytest.raises(LaunchError, match="ended by itself with -9"):
            sampler.stop()
        assert sampler.pid is None


def test_a_sampler_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "ANSWER_S", 0.2)
    monkeypatch.setattr(sampler_module, "_END_S", 0.2)
    with telemetry.Sampler((os.getpid(),)) as sampler:
        pid = sampler.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(LaunchError, match="does not answer; it was ended"):
            sampler.pause()
        assert not alive(pid)


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_an_interval_is_above_zero(interval_s: float) -> None:
    with pytest.raises(ValueError, match="above 0 s"):
        telemetry.Sampler((os.getpid(),), interval_s=interval_s)


@pytest.mark.parametrize("how", [(), ("paused",), ("fork",), ("fork", "paused")])
def test_it_ends_with_a_rank_that_is_killed(how: tuple[str, ...], tmp_path: Path) -> None:
    """Also where a process that the rank forked still holds the pipe."""
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, *how],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert rank.stdout is not None
    sampler, forked = map(int, rank.stdout.readline().split())
    try:
        assert alive(sampler)
        rank.kill()
        assert ends(sampler, within_s=100.0)
        assert forked < 0 or alive(forked)
        assert list(tmp_path.iterdir()) == []
    finally:
        rank.kill()
        if forked > 0:
            with suppress(ProcessLookupError):
                os.kill(forked, signal.SIGKILL)
        rank.communicate()


def test_the_self_test_says_what_each_device_tells() -> None:
    config = {"uuids": ["GPU-a"], "errors": {"nvmlDeviceGetTotalEnergyConsumption": 3}}
    path = f"{STUB}{os.pathsep}{ROOT}"
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "harness.telemetry", "--self-test"],
        env={**os.environ, "PYTHONPATH": path, "HVDSCALE_TEST_NVML": json.dumps(config)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    took_s = time.monotonic() - started_s
    line = done.stdout.splitlines()[-1]
    assert line.startswith("0 GPU-a Stub GPU: utilisation 0.4, sm_activity ")
    assert "power 300 W (NVML_FI_DEV_POWER_INSTANT), energy " in line
    # 300 W for the 2 s that it waits, and for what a busy machine adds.
    length_s = printed(line, "energy") / 300
    assert 1.98 <= length_s <= took_s
    # The stand-in's activity is the seconds since the sample before: 0.1, or where one came late,
    # or not at all, up to as long as it all took.
    missed = re.search(r"\b(\d+) missed", done.stdout)
    assert missed, done.stdout
    most = 0.19 if missed[1] == "0" else length_s
    assert 0.08 < printed(line, "sm_activity") < most
    assert line.endswith("absent: energy_j: NVML error 3")


def printed(line: str, name: str) -> float:
    """The number that follows ``name`` in a line of the self-test."""
    found = re.search(rf"\b{name} ([0-9.e+-]+)", line)
    assert found, line
    return float(found[1])
