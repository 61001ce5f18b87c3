"""The table of what goes together, and what is chosen where a config leaves it open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import RunConfig
from harness.config.models import LAUNCHERS
from harness.detect import Host, Machine, Mpi, Slurm
from harness.errors import ValidationError
from harness.legal import TABLE, CombinationError, choose, resolve, slurm_mpi_plugin

ENGINES = ("horovod", "ddp", "none")
BACKENDS = ("nccl", "mpi", "mpi-host", "gloo")
CONTROLLERS = ("mpi", "gloo")
MPI = Mpi("openmpi", "5.0.11", "/env/bin/mpirun")
ALL = {"horovodrun": "/env/bin/horovodrun", "srun": "/usr/bin/srun"}


def machine(*cores_slots: tuple[int, int], device: str = "cpu", **more: Any) -> Machine:
    hosts = tuple(Host(f"n{i}", c, s) for i, (c, s) in enumerate(cores_slots or ((8, 8),)))
    keys: dict[str, Any] = {"mpi": MPI, "launchers": ALL, "modules": frozenset({"torch"})} | more
    return Machine(hosts=hosts, device=device, **keys)


def config(**keys: Any) -> RunConfig:
    return RunConfig.model_validate({"workload": "w", "batch_size": 1, **keys})


def chosen(where: Machine, **keys: Any) -> tuple[str, str | None, str | None]:
    resolved = resolve(config(**keys), where)
    return resolved.launcher, resolved.backend, resolved.controller


SLURM = Slurm("1", mpi_plugins=("none", "pmix"))


def test_defaults_of_each_engine_and_device() -> None:
    assert chosen(machine(), engine="none") == ("inline", None, None)
    assert chosen(machine()) == ("mpirun", "mpi", "mpi")
    assert chosen(machine(device="cuda")) == ("mpirun", "nccl", "mpi")
    assert chosen(machine(), engine="ddp") == ("torchrun", "gloo", None)
    assert chosen(machine(device="cuda"), engine="ddp") == ("torchrun", "nccl", None)


def test_the_named_column_decides_the_others() -> None:
    assert chosen(machine(), backend="gloo") == ("horovodrun", "gloo", "gloo")
    assert chosen(machine(), launcher="horovodrun") == ("horovodrun", "mpi", "mpi")
    gpu = machine(device="cuda")
    assert chosen(gpu, horovod={"controller": "gloo"}) == ("horovodrun", "nccl", "gloo")


def test_what_is_here_goes_before_what_is_not() -> None:
    assert chosen(machine(mpi=None))[0] == "horovodrun"
    # Where nothing is here the first is taken, and validation says what is missing.
    assert chosen(machine(mpi=None, launchers={}))[0] == "mpirun"


def test_across_the_nodes_of_an_allocation_srun_starts_the_ranks() -> None:
    two = machine((4, 4), (4, 4), slurm=SLURM)
    assert chosen(two, placement="2x2")[0] == "srun"
    assert chosen(two, placement="1x2")[0] == "mpirun"
    assert chosen(two, placement="2x2", engine="ddp")[0] == "srun"
    wordless = replace(two, slurm=Slurm("1", mpi_plugins=("none",)))
    assert chosen(wordless, placement="2x2")[0] == "mpirun"
    assert chosen(wordless, placement="2x2", engine="ddp")[0] == "srun"


def test_from_a_login_node_no_rank_starts_there() -> None:
    """``salloc`` there: what starts ranks on its own host would start them on none of the nodes."""
    login = machine((4, 4), (4, 4), slurm=SLURM, outside=True)
    assert chosen(login, engine="none")[0] == "srun"
    assert chosen(login, engine="ddp")[0] == "srun"
    assert chosen(login, launcher="mpirun")[0] == "mpirun"  # it reaches other hosts
    with pytest.raises(ValidationError, match="launcher torchrun starts ranks on the host it is"):
        chosen(login, engine="ddp", launcher="torchrun")
    assert chosen(replace(login, outside=False), engine="none")[0] == "inline"


def test_a_default_backend_that_does_not_fit_is_said_to_be_one() -> None:
    with pytest.raises(CombinationError, match=r"backend mpi \(the default here\) cannot use"):
        resolve(config(horovod={"controller": "gloo"}), machine())


def test_torchrun_is_of_one_node() -> None:
    two = machine((4, 4), (4, 4))
    with pytest.raises(CombinationError, match="use launcher: srun"):
        resolve(config(engine="ddp", launcher="torchrun", placement="2x1"), two)


def test_none_is_one_device() -> None:
    with pytest.raises(CombinationError, match="engine none is one device"):
        resolve(config(engine="none", placement="1x2"), machine())


@given(
    st.sampled_from(ENGINES),
    st.sampled_from((None, *BACKENDS)),
    st.sampled_from((None, *CONTROLLERS)),
    st.sampled_from((None, *LAUNCHERS)),
    st.sampled_from(("cpu", "cuda")),
)
def test_whatever_is_chosen_is_a_row_of_the_table_and_keeps_what_was_named(
    engine: str, backend: str | None, controller: str | None, launcher: str | None, device: str
) -> None:
    asked = config(
        engine=engine, backend=backend, launcher=launcher, horovod={"controller": controller}
    )
    rows = [
        row
        for row in TABLE
        if row.engine == engine
        and device in row.devices
        and asked.backend in (None, row.backend)
        and asked.launcher in (None, row.launcher)
        and asked.horovod.controller in (None, row.controller)
    ]
    try:
        row = choose(asked, machine(device=device))
    except CombinationError:
        # A default backend may exclude what another backend could do; a named one never does.
        assert not rows or asked.backend is None
        return
    assert row in rows


def test_mpi_operations_always_have_the_mpi_controller_and_gloo_gloos() -> None:
    for row in TABLE:
        if row.engine == "horovod" and row.backend in ("mpi", "mpi-host", "gloo"):
            assert row.controller == ("gloo" if row.backend == "gloo" else "mpi")
        if row.controller == "gloo":
            assert row.launcher == "horovodrun"


@pytest.mark.parametrize(
    ("rule", "placement", "cores"),
    [
        ("fixed", "1x1", 6),  # 48 cores / 8 devices, whatever N is
        ("fixed", "1x8", 6),
        ("share", "1x1", 48),
        ("share", "1x5", 9),
        ("share", "8+2", 6),  # alike on both nodes: the fuller one decides
        (3, "1x8", 3),
    ],
)
def test_cores_of_a_rank(rule: Any, placement: str, cores: int) -> None:
    study = machine((48, 8), (48, 8), device="cuda")
    resolved = resolve(config(cores_per_rank=rule, placement=placement), study)
    assert resolved.cores_per_rank == cores
    assert resolved.bind


def test_more_ranks_than_cores_have_one_core_each_and_are_not_bound() -> None:
    resolved = resolve(config(placement="1x4"), machine((2, 4)))
    assert (resolved.cores_per_rank, resolved.bind) == (1, False)


def test_hosts_without_devices_take_no_ranks() -> None:
    mixed = machine((8, 0), (8, 4), (8, 4), device="cuda")
    resolved = resolve(config(placement=6), mixed)
    assert (resolved.hosts, resolved.placement) == (("n1", "n2"), (4, 2))
    spread = resolve(config(placement=6, placement_policy="spread"), mixed)
    assert (spread.hosts, spread.placement) == (("n1", "n2"), (3, 3))


def test_too_small_a_machine_is_no_illegal_combination() -> None:
    with pytest.raises(ValidationError) as caught:
        resolve(config(placement=9), machine())
    assert not isinstance(caught.value, CombinationError)


def test_plug_in_of_srun() -> None:
    assert slurm_mpi_plugin("horovod", MPI) == "pmix"
    assert slurm_mpi_plugin("horovod", Mpi("mpich", "5", "/x")) == "pmi2"
    assert slurm_mpi_plugin("ddp", MPI) == "none"


class TestSite:
    """What a site says of its machines decides what a config leaves open."""

    def test_its_launcher_goes_before_the_first_that_fits(self) -> None:
        assert chosen(machine(launcher="horovodrun"))[0] == "horovodrun"
        assert chosen(machine(launcher="srun", slurm=SLURM))[0] == "srun"

    def test_a_launcher_that_cannot_start_an_engine_is_no_fault(self) -> None:
        assert chosen(machine(launcher="horovodrun"), engine="ddp")[0] == "torchrun"

    def test_a_launcher_of_no_such_name(self) -> None:
        with pytest.raises(ValidationError, match="HVDSCALE_LAUNCHER: 'slurm' is none of"):
            chosen(machine(launcher="slurm"))

    def test_without_an_mpi_nccl_is_negotiated_by_gloo(self) -> None:
        assert chosen(machine(device="cuda"))[2] == "mpi"
        assert chosen(machine(device="cuda", mpi=None)) == ("horovodrun", "nccl", "gloo")

    def test_what_to_do_where_there_are_too_few_devices(self) -> None:
        """``--slots`` is an option of a machine that one has alone, not of an allocation."""

        def said(where: Machine) -> str:
            with pytest.raises(ValidationError) as error:
                chosen(where, placement="1x2", engine="ddp")
            return str(error.value)

        assert "has 1 slot; ask for fewer, or allow more with --slots" in said(machine((1, 1)))
        assert "--exclusive" in said(machine((1, 1), slurm=SLURM))
        of_site = said(machine((1, 1), slurm=Slurm("")))
        assert "a site with more" in of_site
        assert "--slots" not in of_site
