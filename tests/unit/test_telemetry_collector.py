"""What is read of /proc."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import psutil
import pytest

from harness.errors import LaunchError
from harness.telemetry.collector import Collector, parse_node, parse_process

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def test_busy_is_all_but_idle_and_waiting_and_guests_are_counted_once() -> None:
    text = b"cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
    assert parse_node(text) == pytest.approx([171 * TICK_S, 4671 * TICK_S])


def test_a_process_of_any_name() -> None:
    rest = "0 " * 10 + "70 30 9 9 20 0 4 0 12345 999 "
    text = f"42 (a) R (b) S {rest} 25 18446744073709551615".encode()
    assert parse_process(text) == pytest.approx([100 * TICK_S, 25 * PAGE])


def test_a_process_that_ended_tells_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        collector = Collector((child.pid, os.getpid()), ())
        assert not any(map(math.isnan, collector.read(True)))
        child.kill()
        while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert list(map(math.isnan, collector.read(False)[2:])) == [True, True, False, False]
    # Waited for, its pid is free for another.
    assert list(map(math.isnan, collector.read(False)[2:])) == [True, True, False, False]


def test_it_agrees_with_psutil() -> None:
    me = psutil.Process()
    busy_s, total_s, cpu_s, rss = Collector((os.getpid(),), ()).read(True)
    node, own = psutil.cpu_times(), me.cpu_times()
    assert cpu_s == pytest.approx(own.user + own.system, abs=0.5)
    assert rss == pytest.approx(me.memory_info().rss, rel=0.1)
    assert 0.0 < busy_s < total_s
    assert total_s == pytest.approx(sum(node) - node.guest - node.guest_nice, rel=0.01)


def test_a_rank_that_cannot_be_seen_is_an_error() -> None:
    with pytest.raises(LaunchError, match=r"rank with pid 4194305 cannot be seen .*No such file"):
        Collector((2**22 + 1,), ())
