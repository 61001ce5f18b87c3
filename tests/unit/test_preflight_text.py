"""What a preflight says and keeps: differences of versions, its text, its record, transports."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.preflight import command_preflight
from harness.config import RunConfig
from harness.errors import ConfigError, StoreError
from harness.provenance.notes import Notes
from harness.submit.preflight import facts
from harness.submit.preflight.answers import Linked, ready_path
from harness.submit.preflight.clocks import CpuSampler, GpuSampler, shares
from harness.submit.preflight.judge import judge
from harness.submit.preflight.plan import Limits
from harness.submit.preflight.record import Clock, NodeReport, Preflight, read_preflight
from harness.submit.preflight.render import render
from harness.submit.preflight.speed import block_plan, together
from harness.submit.preflight.transports import of_mpi, of_stage
from harness.submit.preflight.versions import differences
from tests.unit.preflight_cases import both, mesh, names, node

GOLDEN = Path(__file__).parents[1] / "golden" / "preflight"


def test_what_differs_and_where() -> None:
    facts = {name: {"NCCL": "2.28.9", "kernel": "6.1"} for name in names(8)}
    facts["n3"] = {"NCCL": "2.27.3"}
    found = differences(facts)
    assert [one.text for one in found] == [
        "NCCL differs: 2.27.3 on n3, where the other 7 nodes have 2.28.9",
        "kernel differs: absent on n3, where the other 7 nodes have 6.1",
    ]
    assert {one.nodes for one in found} == {("n3",)}


def test_where_no_value_has_most_all_are_told() -> None:
    (found,) = differences({"a": {"torch": "2.9"}, "b": {"torch": "2.8"}})
    assert found.text == "torch differs: 2.9 on a, 2.8 on b"
    assert found.nodes == ("a", "b")
    many = {name: {"torch": "1" if place < 6 else "2"} for place, name in enumerate(names(12))}
    (found,) = differences(many)
    assert found.text == "torch differs: 1 on n1, n2, n3 and 3 more, 2 on n7, n8, n9 and 3 more"


def test_nothing_differs_on_one_node_or_on_equal_ones() -> None:
    assert differences({"a": {"torch": "2.9"}}) == ()
    assert differences({name: {"torch": "2.9"} for name in names(3)}) == ()
    assert differences({}) == ()


def a_record(count: int = 4) -> Preflight:
    config = RunConfig.model_validate(
        {"workload": "stress_strain", "engine": "none", "batch_size": 75}
    )
    clocks = [Clock(device="CPU", mhz=(2400.0, 2450.0, 2450.0))]
    nodes = [
        node(name, [1.5 if name == "n2" else 1.0], noise=0.01, clocks=clocks, load=1.2)
        for name in names(count)
    ]
    nodes = [
        one.model_copy(update={"interface": f"eth0 10.0.0.{place}", "facts": {"torch": "2.9"}})
        for place, one in enumerate(nodes, start=1)
    ]
    links = mesh(count, dict.fromkeys(both("n1", "n3"), 5.0)) if count > 2 else mesh(count)
    findings, notes = judge(nodes, links, "stress_strain")
    return Preflight(
        version="1.0",
        sweep=None,
        started_at="2026-01-02T03:04:05.000+00:00",
        ended_at="2026-01-02T03:05:05.000+00:00",
        allocation="slurm:7",
        launcher="srun",
        device="cpu",
        config=config,
        nodes=tuple(nodes),
        links=links,
        transports={"gloo": {"interface": "eth0 10.0.0.1 on n1"}},
        absent=("mpi: mpi4py is not installed",),
        findings=findings,
        notes=notes,
    )


@pytest.mark.parametrize("count", [2, 4, 9])
def test_the_text(count: int) -> None:
    """Two nodes have a table of one link, four a matrix, nine the worst links."""
    path, found = GOLDEN / f"{count}.txt", render(a_record(count)) + "\n"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_a_busy_and_noisy_allocation_is_told_in_the_place_of_nothing_found() -> None:
    nodes = tuple(node(name, noise=0.25, load=96.0, seed=3) for name in names(2))
    findings, notes = judge(nodes, (), "stress_strain")
    record = a_record(2).model_copy(
        update={"nodes": nodes, "links": (), "findings": findings, "notes": notes}
    )
    text = render(record)
    assert record.exit_code == 0
    assert "\n\nNothing found, but with doubts:\n  caution: others compute on n1 and n2" in text
    assert text.count("caution: ") == 2
    assert "note: " not in text  # not once more
    quiet = a_record(2).model_copy(update={"findings": (), "nodes": a_record(2).nodes[:1]})
    assert "\n\nNothing found.\n\n" in render(quiet)
    worse = record.model_copy(update={"findings": a_record().findings})
    assert "Found:\n  n2 is slow" in render(worse)
    assert "  caution: others compute on n1 and n2" in render(worse)


def test_the_last_lines_of_what_failed_are_shown() -> None:
    bad = NodeReport(
        node="n9", error="training on device 0 ended with 1", tail=("a", "b", "ImportError: x")
    )
    record = a_record()
    findings, _ = judge([*record.nodes, bad], (), "stress_strain")
    text = render(record.model_copy(update={"findings": findings}))
    assert "    | b\n    | ImportError: x\n" in text


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record, path = a_record(), tmp_path / "one.json"
    record.write(path)
    again = read_preflight(path)
    assert again.model_copy(update={"sha256": ""}) == record
    assert again.exit_code == 1
    assert a_record().model_copy(update={"findings": ()}).exit_code == 0
    # All samples are there.
    assert len(again.nodes[0].speeds[0].looks_step_s[0]) == 12
    assert len(again.links[0].round_trip_s) == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bench"}, "not a record of hvdscale preflight"),
        ({"launcher": "mpirun"}, "changed since it was written"),
        ({"schema_version": 99}, "99"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "one.json"
    a_record().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match=message):
        read_preflight(path)


MPI_LOG = """\
[n1:05605] mca:base:select:(  mtl) Selected component [ofi]
[n1:05605] select: init returned failure for component cm
[n1:05702] btl:tcp: 0x55cda415cad0: if eth0 kidx 4 cnt 0 addr 10.0.0.1 IPv4 bw 100 lt 100
[n1:05702] select: component ob1 selected
[n1:05702] mca: bml: Using self btl for send to [[33364,1],0] on node n1
[n1:05702] mca: bml: Using tcp btl for send to [[33364,1],1] on node n2
"""


def test_what_open_mpi_says_of_itself() -> None:
    assert of_mpi(MPI_LOG) == {"pml": "ob1", "btl": "tcp", "tcp": "eth0 10.0.0.1"}
    with_cm = MPI_LOG.splitlines()[0] + "\n[n1:1] select: component cm selected\n"
    assert of_mpi(with_cm) == {"pml": "cm", "mtl": "ofi"}
    assert of_mpi("") == {}


def test_transports_of_all_nodes_are_told_once() -> None:
    answers = [
        Linked(node="n1", interface="eth0", address="10.0.0.1", facts={"library": "Open MPI"}),
        Linked(node="n2", interface="ib0", address="10.0.0.2", facts={"library": "Open MPI"}),
    ]
    assert of_stage("mpi", answers, [MPI_LOG, ""]) == {
        "btl": "tcp",
        "interface": "eth0 10.0.0.1 on n1, ib0 10.0.0.2 on n2",
        "library": "Open MPI",
        "pml": "ob1",
        "tcp": "eth0 10.0.0.1",
    }


def test_blocks_fit_into_their_time() -> None:
    assert block_plan(Limits(), 0.010) == (50, 12)
    assert block_plan(Limits(), 10.0) == (1, 6)
    assert block_plan(Limits(), 100.0) == (1, 3)


def test_programs_begin_together_and_wait_for_nobody_for_ever(tmp_path: Path) -> None:
    times = iter(range(1000))
    limits = Limits(patience_s=3.0)
    ready_path(tmp_path, 0, 0).touch()
    assert not together(tmp_path, 2, limits, lambda: float(next(times)))
    ready_path(tmp_path, 1, 0).touch()
    assert together(tmp_path, 2, limits, lambda: 0.0)


def test_a_cpu_that_throttles_while_it_is_watched(tmp_path: Path) -> None:
    count = tmp_path / "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    count.parent.mkdir(parents=True)
    count.write_text("7\n")
    sampler = CpuSampler(tmp_path, lambda: [(800.0, 3000.0), (2900.0, 3000.0)])
    sampler.sample()
    assert sampler.clocks() == (Clock(device="CPU", mhz=(2900.0,), max_mhz=3000.0),)
    count.write_text("9\n")
    (clock,) = sampler.clocks()
    assert clock.throttle == {"thermal": 1.0}


def test_a_reason_has_the_share_of_its_samples() -> None:
    assert shares([("a", "b"), ("a",), ()]) == {"a": 0.667, "b": 0.333}
    assert shares([]) == {}


class FakeGpu:
    """Stands for ``telemetry.nvml.Device``: each reading is the next of ``rows``."""

    columns = ("sm_clock_mhz", "throttle_reasons_bits")

    def __init__(self, index: int, *rows: tuple[float, float]) -> None:
        self.index, self._rows = index, iter(rows)

    def read(self, fresh: bool) -> list[float]:
        return list(next(self._rows))


def test_gpus_tell_clock_and_why_it_is_low() -> None:
    nan = float("nan")
    gpu: Any = FakeGpu(3, (1980.0, 0x4), (1500.0, 0x44), (nan, nan))
    sampler = GpuSampler((gpu,))
    for _ in range(3):
        sampler.sample()
    assert sampler.clocks() == (
        Clock(
            device="GPU 3",
            mhz=(1980.0, 1500.0),
            throttle={"hw_thermal_slowdown": 0.5, "sw_power_cap": 1.0},
        ),
    )


def test_facts_of_this_node() -> None:
    found = facts.collect([], Notes())
    assert found["Python"] == platform.python_version()
    assert found["kernel"] == platform.release()
    assert found["numpy"] == np.__version__
    assert "GPU" not in found


def test_a_variable_that_changes_a_measurement_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("NCCL_SECRET_KEY", "x")
    found = facts.collect([], Notes())
    assert found["$NCCL_ALGO"] == "Tree"
    assert not any("SECRET" in name for name in found)


def test_gpus_of_two_kinds_in_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        facts.gpu, "collect", lambda uuid: {"model": "A" if uuid == "1" else "B", "driver": "580"}
    )
    found = facts.collect(["1", "2", "3"], Notes())
    assert found["GPU"] == "1x A, 2x B"
    assert found["NVIDIA driver"] == "3x 580"


def test_one_machine_has_one_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(ConfigError, match="this is one machine and no allocation: give --site"):
        command_preflight(None, None, 2, None, tmp_path, False)
    assert list(tmp_path.iterdir()) == []
