"""A node from its /proc and /sys, and where a process may run on it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.provenance import binding
from harness.provenance.host import collect as node
from harness.provenance.host import cpu_list, cpu_model, numa_cpus, parse_cpus
from harness.provenance.notes import Notes

CPUINFO = """processor\t: 0
model name\t: Test CPU 3000
flags\t\t: fpu sse {more}

processor\t: 1
model name\t: Test CPU 3000
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def two_sockets(root: Path, *, threads: int = 2) -> Path:
    """Write a node of 2 sockets of 2 cores each: CPUs 0-3 are cores, 4-7 their second threads."""
    cpu = "sys/devices/system/cpu"
    files = {}
    for core in range(4):
        siblings = [core + 4 * thread for thread in range(threads)]
        for number in siblings:
            topology = f"{cpu}/cpu{number}/topology"
            files[f"{topology}/physical_package_id"] = str(core // 2)
            files[f"{topology}/thread_siblings_list"] = ",".join(map(str, siblings))
    files |= {
        f"{cpu}/cpufreq/policy0/scaling_governor": "performance",
        f"{cpu}/cpufreq/policy1/scaling_governor": "powersave",
        f"{cpu}/intel_pstate/no_turbo": "1",
        "sys/devices/system/node/node0/cpulist": "0-1,4-5",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/meminfo": "MemTotal:       1024 kB\nMemFree:  3 kB",
        "proc/cpuinfo": CPUINFO.format(more="hypervisor"),
        "etc/os-release": 'NAME="X"\nPRETTY_NAME="X Linux 9"',
    }
    return write(root, files)


def test_a_node_of_two_sockets(tmp_path: Path) -> None:
    found = node(two_sockets(tmp_path))
    assert found.pop("kernel")
    assert found == {
        "os": "X Linux 9",
        "hypervisor": True,
        "memory_bytes": 1 << 20,
        "numa_nodes": 2,
        "governor": "performance / powersave",
        "turbo": False,
        "clocksource": "tsc",
        "transparent_hugepage": "madvise",
        "sockets": 2,
        "physical_cores": 4,
        "smt": 2,
    }
    assert cpu_model(tmp_path) == "Test CPU 3000"
    assert numa_cpus(tmp_path) == {0: {0, 1, 4, 5}, 1: {2, 3, 6, 7}}


def test_without_hardware_threads_or_a_hypervisor(tmp_path: Path) -> None:
    root = two_sockets(tmp_path, threads=1)
    write(root, {"proc/cpuinfo": CPUINFO.format(more="")})
    write(root, {"sys/devices/system/cpu/intel_pstate/no_turbo": "0"})
    found = node(root)
    assert (found["smt"], found["physical_cores"]) == (1, 4)
    assert (found["hypervisor"], found["turbo"]) == (False, True)


def test_the_other_drivers_switch(tmp_path: Path) -> None:
    write(tmp_path, {"sys/devices/system/cpu/cpufreq/boost": "1"})
    assert node(tmp_path)["turbo"] is True


def test_what_a_system_does_not_show_has_no_key(tmp_path: Path) -> None:
    assert set(node(tmp_path)) == {"kernel"}
    assert numa_cpus(tmp_path) == {}


@given(st.sets(st.integers(0, 500)))
def test_lists_of_cpus_there_and_back(cpus: set[int]) -> None:
    assert parse_cpus(cpu_list(cpus)) == cpus


def test_lists_of_cpus_as_the_kernel_writes_them() -> None:
    assert cpu_list({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11"
    assert parse_cpus("0-2,8\n") == {0, 1, 2, 8}
    assert parse_cpus("\n") == frozenset()


def test_a_thread_that_was_bound_elsewhere_shows() -> None:
    mine = sorted(os.sched_getaffinity(0))
    ready, done = threading.Event(), threading.Event()

    def bound() -> None:
        os.sched_setaffinity(0, mine[:1])  # of this thread alone
        ready.set()
        done.wait(120)

    thread = threading.Thread(target=bound)
    thread.start()
    try:
        assert ready.wait(120)
        notes = Notes()
        found = binding.collect(notes, mine)
    finally:
        done.set()
        thread.join()
    assert found["affinity"] == cpu_list(mine)
    assert notes.lines == []
    if len(mine) > 1:  # with one core there is no elsewhere
        assert found["thread_affinity"][str(mine[0])] == 1
        assert found["thread_affinity"][cpu_list(mine)] >= 1
