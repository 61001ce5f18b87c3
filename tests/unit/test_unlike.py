"""Which launches may share a curve, and how what differs is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.frame import frame
from harness.analysis.scaling import curves
from harness.analysis.unlike import (
    SETTINGS,
    differences,
    refuse_unlike,
    shared_provenance,
    what_differs,
)
from harness.errors import AnalysisError
from harness.provenance import interfaces, settings
from harness.record import RunRecord
from harness.store.migrate import migrate
from tests import factories
from tests.factories import config, record

GOLDEN = Path(__file__).parents[1] / "golden" / "records"
GPU = {"model": "H100", "driver": "580.1", "cuda_driver": "13.0", "power_limit_w": 700.0}
LIBRARIES: dict[str, Any] = {
    "gpu": GPU,
    "nccl": {"version": "2.28.9", "path": "/a"},
    "mpi": {"library": "Open MPI v5.0.11", "path": "/b"},
    "horovod": {"version": "0.28.1", "build": {"digest": "02adb1", "gpu": "nccl"}},
    "nodes": {"node0": {"governor": "performance", "smt": 1, "memory_bytes": 1}},
}


def text(provenance: dict[str, Any], launcher: str = "mpirun") -> str:
    return json.dumps(shared_provenance(provenance, launcher))


def point(repeat: int, **changed: Any) -> RunRecord:
    where = factories.PROVENANCE | LIBRARIES | changed
    return record(config("horovod", 2, backend="nccl"), repeat, provenance=where)


def test_equal_launches_are_alike_whatever_is_their_own() -> None:
    mine = point(0), point(1, hosts=["other"], executable="/elsewhere", notes=["gpu: none"])
    assert len(curves(frame(mine))[0].points[0].launches) == 2


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"gpu": GPU | {"model": "A100"}}, "gpu.model is A100 (1), H100 (1)"),
        ({"gpu": GPU | {"driver": "570.1"}}, "gpu.driver is 570.1 (1), 580.1 (1)"),
        ({"gpu": GPU | {"cuda_driver": "12.9"}}, "gpu.cuda_driver is 12.9 (1), 13.0 (1)"),
        ({"gpu": GPU | {"power_limit_w": 500.0}}, "gpu.power_limit_w is 500.0 (1), 700.0 (1)"),
        ({"nccl": {"version": "2.27.7"}}, "nccl.version is 2.27.7 (1), 2.28.9 (1)"),
        ({"mpi": {"library": "MPICH 5"}}, "mpi.library is MPICH 5 (1), Open MPI v5.0.11 (1)"),
        (
            {"horovod": {"version": "0.28.1", "build": {"digest": "77"}}},
            "horovod.build.digest is 02adb1 (1), 77 (1)",
        ),
        ({"horovod": {"version": "0.27.0"}}, "horovod.version is 0.27.0 (1), 0.28.1 (1)"),
        ({"cpu_model": "Old CPU"}, "cpu_model is Old CPU (1), Test CPU 3000 (1)"),
        ({"cores": 32}, "cores is 32 (1), 64 (1)"),
        ({"kernel": "5.15"}, "kernel is 5.15 (1), 6.1.0 (1)"),
        (
            {"nodes": {"a": {"governor": "powersave"}, "b": {"governor": "performance"}}},
            "node.governor is performance (1), performance / powersave (1)",
        ),
        (
            {"versions": {"torch": "2.12.0"}},
            "versions.torch is 2.12.0 (1), 2.13.0 (1)",
        ),
        (
            {"environment": {"OMP_NUM_THREADS": "1", "NCCL_ALGO": "Ring"}},
            "environment.NCCL_ALGO is Ring (1), unset (1)",
        ),
    ],
)
def test_what_differs_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(AnalysisError) as caught:
        curves(frame([point(0), point(1, **changed)]))
    assert named in str(caught.value)
    assert "--mixed" in str(caught.value)


@pytest.mark.parametrize("name", ["NCCL_ALGO", "UCX_TLS", "OMPI_MCA_btl", "OMP_PROC_BIND"])
def test_a_setting_on_half_of_the_launches_is_refused(name: str) -> None:
    with_it = {"environment": {name: "x", "SLURM_JOB_ID": "1"}}
    without = {"environment": {"SLURM_JOB_ID": "2"}}
    found = differences([text(with_it), text(with_it), text(without), text(without)])
    assert found == {f"environment.{name}": {"x": 2, "unset": 2}}


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICES",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "HOROVOD_RANK",
        "HOROVOD_CYCLE_TIME",  # the config has it
        "OMP_NUM_THREADS",
        "NCCL_DEBUG",  # set for the proof of the backend
        "NCCL_DEBUG_SUBSYS",
        "NCCL_DEBUG_FILE",
        "NCCL_VERSION",  # of an image
        "CUDA_HOME",
        "UCX_LOG_LEVEL",
        "OMPI_MCA_rmaps_base_mapping_policy",  # set by mpirun itself
        "OMPI_MCA_hwloc_base_binding_policy",
        "NCCL_SOCKET_IFNAME",  # on one host
    ],
)
def test_what_differs_by_nature_is_no_difference(name: str) -> None:
    assert settings({name: "x"}) == {}
    assert differences([text({"environment": {name: "x"}}), text({"environment": {}})]) == {}


def test_a_record_without_an_environment_says_nothing_of_it() -> None:
    assert differences([text({}), text({"environment": {"NCCL_ALGO": "Ring"}})]) == {}


def test_interfaces_count_between_hosts_only() -> None:
    two = {"hosts": ["a", "b"]}
    one = {"hosts": ["a"], "environment": {"NCCL_SOCKET_IFNAME": "lo"}}
    eth = two | {"environment": {"NCCL_SOCKET_IFNAME": "eth0"}}
    open_choice = two | {"environment": {}}
    assert differences([text(one), text(eth)]) == {}
    assert differences([text(one), text(eth), text(open_choice)]) == {
        "environment.NCCL_SOCKET_IFNAME": {"eth0": 1, "unset": 1}
    }
    assert interfaces({"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"


def test_what_horovodrun_sets_by_itself_is_no_setting_of_the_user() -> None:
    given = {"environment": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib"}}
    assert differences([text(given, "horovodrun"), text({"environment": {}}, "inline")]) == {}
    # The same from somebody's shell is one.
    assert len(differences([text(given, "mpirun"), text({"environment": {}}, "mpirun")])) == 2
    other = {"environment": {"OMPI_MCA_pml": "ucx"}}
    assert list(differences([text(given, "horovodrun"), text(other, "horovodrun")])) == [
        "environment.OMPI_MCA_pml"
    ]


def test_a_base_that_uses_none_of_the_libraries_is_like_its_points() -> None:
    libraries = {key: LIBRARIES[key] for key in ("gpu", "nodes")}
    base = record(config("none"), 0, is_base=True, provenance=factories.PROVENANCE | libraries)
    gloo = {"environment": {"GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO"}}
    found = curves(frame([base, point(0, **gloo)]))
    assert any(curve.points[-1].speedup.estimate > 1.1 for curve in found)


def test_a_record_of_the_first_schema_compares() -> None:
    data = migrate(json.loads((GOLDEN / "v1.json").read_text(encoding="utf-8")), "v1.json")
    old = RunRecord.model_validate(data)
    kept = shared_provenance(old.provenance, old.resolved.launcher)
    assert kept == {
        "versions.python": "3.11.7", "versions.torch": "2.13.0", "versions.horovod": "0.28.1",
    }  # fmt: skip
    rows = [{"provenance": json.dumps(kept)}, {"provenance": text(factories.PROVENANCE)}]
    refuse_unlike("curve x", what_differs(rows))
    rows.append({"provenance": text({"versions": {"torch": "2.12.0"}})})
    with pytest.raises(AnalysisError, match=r"curve x .*versions\.torch is 2\.13\.0 \(2\)"):
        refuse_unlike("curve x", what_differs(rows))


def test_odd_shapes_are_left_out() -> None:
    odd = {"gpu": "H100", "nodes": ["a"], "environment": "x", "horovod": {"build": None}}
    assert shared_provenance(odd) == {}
    assert shared_provenance({"environment": {}, "hosts": None}) == {SETTINGS: {}}


def test_many_differences_are_counted() -> None:
    unlike = {"python": "3.12.3", "cores": 2, "kernel": "7", "cpu_model": "B"}
    rows = [{"provenance": text(factories.PROVENANCE | more)} for more in ({}, unlike)]
    with pytest.raises(AnalysisError, match="and 1 more keys"):
        refuse_unlike("curve x", what_differs(rows))
