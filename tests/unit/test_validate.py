"""What is refused before anything starts, and in what words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.config import RunConfig, parse_sweep
from harness.config.identity import point_id
from harness.detect import Host, Machine, Mpi, Slurm
from harness.errors import ConfigError, HarnessError, MissingDependencyError, ValidationError
from harness.legal import CombinationError
from harness.options import check_options
from harness.validate import check_point, plan
from workloads import registry

OPENMPI = Mpi("openmpi", "5.0.11", "/env/bin/mpirun")
SAMPLES = 2_000  # 1,500 of them for training

CPU = Machine(
    hosts=(Host("n1", 4, 4),),
    device="cpu",
    python="/env/bin/python",
    mpi=OPENMPI,
    launchers={"horovodrun": "/env/bin/horovodrun"},
    modules=frozenset({"torch", "tensorflow", "horovod", "mpi4py"}),
    euid=1000,
)
GPU = replace(CPU, device="cuda", hosts=(Host("g1", 64, 8),))
GPUS = replace(GPU, hosts=(*GPU.hosts, Host("g2", 64, 8)))


def data(**keys: Any) -> dict[str, Any]:
    return {
        "workload": {"name": "stress_strain", "samples": SAMPLES},
        "batch_size": 75,
        **keys,
    }


def point(**keys: Any) -> RunConfig:
    return RunConfig.model_validate(data(**keys))


def without(machine: Machine, *modules: str) -> Machine:
    return replace(machine, modules=machine.modules - set(modules))


def test_a_point_that_can_run_is_resolved() -> None:
    resolved = check_point(point(placement=2), CPU)
    assert (resolved.launcher, resolved.backend, resolved.controller) == ("mpirun", "mpi", "mpi")
    assert (resolved.placement, resolved.hosts, resolved.device) == ((2,), ("n1",), "cpu")
    assert (resolved.cores_per_rank, resolved.bind) == (1, True)


SRUN = replace(CPU, launchers={**CPU.launchers, "srun": "/usr/bin/srun"})

REFUSED: dict[str, tuple[dict[str, Any], Machine, type[HarnessError], str]] = {
    "unknown workload": (
        {"workload": "stress_strian"}, CPU, ConfigError, "did you mean 'stress_strain'",
    ),
    "unknown option": (
        {"workload": {"name": "stress_strain", "sample": 3}},
        CPU, ConfigError, "no option 'sample'",
    ),
    "option out of range": (
        {"workload": {"name": "stress_strain", "samples": 1}}, CPU, ConfigError, "minimum",
    ),
    "option of a wrong type": (
        {"workload": {"name": "stress_strain", "samples": True}}, CPU, ConfigError, "expected int",
    ),
    "framework": (
        {"engine": "ddp", "workload": {"name": "stress_strain", "framework": "tensorflow"}},
        CPU, ConfigError, "engine ddp cannot train in tensorflow.*one of: torch",
    ),
    "channels_last in TensorFlow": (
        {
            "workload": {"name": "resnet", "framework": "tensorflow"},
            "execution": {"channels_last": True},
        },
        CPU, ValidationError, "is a layout of torch",
    ),
    "more ranks than slots": ({"placement": 5}, CPU, ValidationError, "--slots"),
    "batch larger than the data": (
        {"batch_size": 751, "placement": 2}, CPU, ValidationError, "1502.*1500 training samples",
    ),
    "accumulate": (
        {"batch_size": 10, "execution": {"accumulate": 4}},
        CPU,
        ValidationError,
        "a batch of 10 samples has no 4 equal parts",
    ),
    "cores": ({"cores_per_rank": 5}, CPU, ValidationError, "node n1 has 4 cores"),
    "graph on a CPU": (
        {"execution": {"graph": True}}, CPU, ValidationError, "graph needs a CUDA device",
    ),
    "graph of TensorFlow": (
        {"execution": {"graph": True}, "workload": {"name": "resnet", "framework": "tensorflow"}},
        GPU, ValidationError, "runs a step as its own graph already",
    ),
    "graph after a short warm-up": (
        {"execution": {"graph": True}, "measure": {"warmup_steps": 7}},
        GPU, ValidationError, "warmup_steps 7 is too short; set it to 8",
    ),
    "graph of DDP after a short warm-up": (
        {"execution": {"graph": True}, "engine": "ddp", "backend": "nccl",
         "measure": {"warmup_steps": 23}},
        GPU, ValidationError, "warmup_steps 23 is too short; set it to 24",
    ),
    "pieces that would be fused again": (
        {"execution": {"graph": True}, "horovod": {"groups": 2}},
        GPU, ValidationError, "set horovod.fusion_threshold_mb: 0",
    ),
    "graph and adasum": (
        {"execution": {"graph": True}, "horovod": {"op": "adasum"}},
        GPU, ValidationError, "adasum",
    ),
    "cudnn_benchmark": (
        {"execution": {"cudnn_benchmark": True}}, CPU, ValidationError,
        "cudnn_benchmark needs a CUDA device",
    ),
    "cudnn_benchmark of TensorFlow": (
        {"execution": {"cudnn_benchmark": True},
         "workload": {"name": "resnet", "framework": "tensorflow"}},
        GPU, ValidationError, "is a switch of torch",
    ),
    "cudnn_benchmark and determinism": (
        {"execution": {"cudnn_benchmark": True}, "deterministic": True},
        GPU, ValidationError, "results vary from launch to launch",
    ),
    "static graph and parts of a batch": (
        {"engine": "ddp", "backend": "gloo", "ddp": {"static_graph": True},
         "execution": {"accumulate": 5}},
        CPU, ValidationError, "ddp.static_graph: with execution.accumulate 5 there are",
    ),
    "static graph and noise scale": (
        {"engine": "ddp", "backend": "gloo", "ddp": {"static_graph": True}, "train": {}},
        CPU, ValidationError, "or train.noise_scale to false",
    ),
    "tf32": (
        {"execution": {"precision": "tf32"}}, CPU, ValidationError, "tf32 needs a CUDA device",
    ),
    "channels_last": (
        {"execution": {"channels_last": True}}, CPU, ValidationError, "layout of images",
    ),
    "async completion": (
        {"horovod": {"async_completion": True}}, CPU, ValidationError, "needs a CUDA device",
    ),
    "compression": (
        {"horovod": {"compression": "bf16"}}, CPU, ValidationError, "no bfloat16.*fp16 or none",
    ),
    "async completion off the device": (
        {"backend": "mpi-host", "placement": 2, "horovod": {"async_completion": True}},
        GPU, CombinationError, "needs backend nccl",
    ),
    "hierarchical on a CPU": (
        {"placement": 2, "horovod": {"hierarchical_allreduce": True}},
        CPU, CombinationError, "backend mpi would leave it out silently; set backend: nccl",
    ),
    "hierarchical on one node": (
        {"placement": 8, "horovod": {"hierarchical_allreduce": True}},
        GPU, CombinationError, "placement 8 is on one node",
    ),
    "hierarchical without MPI": (
        {
            "placement": "2+2",
            "launcher": "horovodrun",
            "horovod": {"hierarchical_allreduce": True, "controller": "gloo"},
        },
        GPUS, CombinationError, "needs the MPI controller.*set horovod.controller: mpi",
    ),
    "hierarchical and torus": (
        {
            "placement": "2+2",
            "horovod": {"hierarchical_allreduce": True, "torus_allreduce": True},
        },
        GPUS, ValidationError, "the first alone",
    ),
    "torus on one node": (
        {"placement": 2, "horovod": {"torus_allreduce": True}},
        GPUS, CombinationError, "torus_allreduce.*is on one node",
    ),
    "adasum over Gloo": (
        {"backend": "gloo", "placement": 2, "horovod": {"op": "adasum"}},
        CPU, CombinationError, "with the gloo controller there is none",
    ),
    "adasum of three": (
        {"placement": 3, "horovod": {"op": "adasum"}},
        CPU, CombinationError, "2, 4, 8, ... ranks, and placement 3 has 3",
    ),
    "adasum on one node with NCCL": (
        {"placement": 4, "horovod": {"op": "adasum"}},
        GPU, CombinationError, "averages inside a node.*backend: mpi-host",
    ),
    "adasum on uneven nodes with NCCL": (
        {"placement": "2+1", "horovod": {"op": "adasum"}},
        GPUS, CombinationError, "equally many ranks, and placement 2\\+1",
    ),
    "adasum in groups": (
        {"placement": 2, "horovod": {"op": "adasum", "groups": 2}},
        CPU, ValidationError, "leaves horovod.groups out silently",
    ),
    "adasum of GPU memory by MPI": (
        {"backend": "mpi", "placement": 2, "horovod": {"op": "adasum"}},
        replace(GPU, mpi=replace(OPENMPI, cuda_aware=True)),
        CombinationError, "use backend: mpi-host or nccl",
    ),
    "deterministic sums of three": (
        {"placement": 3, "deterministic": True},
        CPU, ValidationError, "groups: 1 .all gradients together.*fusion_threshold_mb: 0",
    ),
    "deterministic sums of three in two groups": (
        {"placement": 3, "deterministic": True, "horovod": {"groups": 2}},
        CPU, ValidationError, "order in which 3 ranks are summed",
    ),
    "deterministic adasum": (
        {"placement": 2, "deterministic": True, "horovod": {"op": "adasum"}},
        CPU, ValidationError, "set horovod.fusion_threshold_mb: 0",
    ),
    "MPI that is not CUDA-aware": (
        {"backend": "mpi"}, GPU, ValidationError, "not CUDA-aware; use backend: mpi-host",
    ),
    "no torch": (
        {}, without(CPU, "torch"), MissingDependencyError, r"pip install 'hvdscale\[torch\]'",
    ),
    "no Horovod": (
        {}, without(CPU, "horovod"), MissingDependencyError, "hvdscale build-horovod",
    ),
    "no horovodrun": (
        {"backend": "gloo"}, replace(CPU, launchers={}), MissingDependencyError, "horovodrun is",
    ),
    "no MPI": ({}, replace(CPU, mpi=None), MissingDependencyError, "MPI"),
    "no MPI behind horovodrun": (
        {"launcher": "horovodrun"}, replace(CPU, mpi=None), MissingDependencyError, "MPI",
    ),
    "an unknown MPI": (
        {}, replace(CPU, mpi=Mpi("unknown", "", "/x/mpirun")), ValidationError, "/x/mpirun",
    ),
    "an old Open MPI": (
        {}, replace(CPU, mpi=Mpi("openmpi", "3.1.6", "/x")), ValidationError, "3.1.6.*too old",
    ),
    "no srun": ({"launcher": "srun"}, CPU, MissingDependencyError, "comes with Slurm"),
    "srun outside an allocation": (
        {"launcher": "srun"}, SRUN, ValidationError, "inside a Slurm allocation",
    ),
    "srun without the plug-in": (
        {"launcher": "srun"},
        replace(SRUN, slurm=Slurm("1", mpi_plugins=("none", "pmi2"))),
        ValidationError, "no MPI plug-in pmix",
    ),
    "uneven under horovodrun and MPICH": (
        {"launcher": "horovodrun", "placement": "2+1"},
        replace(CPU, hosts=(*CPU.hosts, Host("n2", 4, 4)), mpi=Mpi("mpich", "5.0", "/x")),
        ValidationError, "same number of ranks on every node",
    ),
    "Gloo under mpirun": (
        {"backend": "gloo", "launcher": "mpirun"}, CPU, CombinationError, "can use: horovodrun",
    ),
    "NCCL on a CPU": ({"backend": "nccl"}, CPU, CombinationError, "NCCL moves GPU memory only"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str) -> None:
    keys, machine, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        check_point(point(**keys), machine)
    assert "\n" not in str(caught.value)


ALLOWED: dict[str, tuple[dict[str, Any], Machine]] = {
    "hierarchical": (
        {"placement": "2+1", "horovod": {"hierarchical_allreduce": True}}, GPUS,
    ),
    "torus without MPI": (
        {
            "placement": "2+2",
            "launcher": "horovodrun",
            "horovod": {"torus_allreduce": True, "controller": "gloo"},
        },
        GPUS,
    ),
    "async completion": ({"placement": 2, "horovod": {"async_completion": True}}, GPU),
    "adasum": ({"placement": 4, "horovod": {"op": "adasum"}}, CPU),
    "adasum between nodes": ({"placement": "2+2", "horovod": {"op": "adasum"}}, GPUS),
    "adasum through the host": (
        {"backend": "mpi-host", "placement": 2, "horovod": {"op": "adasum"}}, GPU,
    ),
    # Alone, Horovod reduces nothing: the base of a sweep has its points' tuning.
    "one rank": (
        {"horovod": {"op": "adasum", "hierarchical_allreduce": True}, "deterministic": True}, CPU,
    ),
    "deterministic sums of two": ({"placement": 2, "deterministic": True}, CPU),
    "deterministic, one group": (
        {"placement": 3, "deterministic": True, "horovod": {"groups": 1}}, CPU,
    ),
    "deterministic, nothing fused": (
        {"placement": 3, "deterministic": True, "horovod": {"fusion_threshold_mb": 0}}, CPU,
    ),
    "deterministic adasum, nothing fused": (
        {
            "placement": 2,
            "deterministic": True,
            "horovod": {"op": "adasum", "fusion_threshold_mb": 0},
        },
        CPU,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_allowed(name: str) -> None:
    keys, machine = ALLOWED[name]
    assert check_point(point(**keys), machine).world_size == point(**keys).world_size


def with_facts(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Give the regressor other facts than it has."""
    info = replace(registry.info("stress_strain"), **facts)
    monkeypatch.setattr(registry, "info", lambda name: info)


def test_images_may_be_channels_last_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    with_facts(monkeypatch, image_inputs=True)
    check_point(point(execution={"channels_last": True}), CPU)


def test_streams_are_not_cut_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    with_facts(monkeypatch, order="streams")
    check_point(point(), CPU)
    with pytest.raises(ValidationError, match="carries state from batch to batch"):
        check_point(point(execution={"accumulate": 3}), CPU)


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = point(execution={"compile": True})
    compiler = tmp_path / "g++"
    compiler.touch()
    compiler.chmod(0o755)
    resolved = check_point(point(), CPU)
    check_options(config, resolved, CPU, {"PATH": str(tmp_path)})
    for environ, name in ({"PATH": "/nowhere"}, r"g\+\+"), ({"CXX": "/no/icpx -v"}, "/no/icpx"):
        with pytest.raises(MissingDependencyError, match=f"compile.*{name}.*install g"):
            check_options(config, resolved, CPU, environ)


def test_another_interpreter_is_not_judged_by_this_ones_modules() -> None:
    machine = replace(GPU, python_by_backend={"mpi-host": "/host/bin/python"})
    config = point(backend="mpi-host")
    assert check_point(config, without(machine, "horovod")).backend == "mpi-host"
    with pytest.raises(MissingDependencyError):
        check_point(point(backend="nccl"), without(machine, "horovod"))


def test_engine_none_needs_no_horovod_and_no_mpi() -> None:
    bare = replace(without(CPU, "horovod"), mpi=None, launchers={})
    assert check_point(point(engine="none"), bare).launcher == "inline"


def sweep(**keys: Any) -> Any:
    return parse_sweep(data(name="s", **keys))


def test_a_plan_launches_each_base_and_point_once() -> None:
    planned = plan(sweep(placement=["1x1", "1x2"], batch_size=[75, 700]), CPU)
    assert len(planned.points) == 4
    assert len(planned.launches) == 6  # and a base a batch size
    assert [b.engine for b in planned.bases if b] == ["none"] * 4
    assert {point_id(c) for c in planned.launches} == set(planned.resolved)
    for config in (*planned.points, *(b for b in planned.bases if b)):
        assert planned.resolved[point_id(config)].world_size == config.world_size
    assert planned.left_out == ()


def test_a_base_that_is_a_point_too_is_launched_once() -> None:
    planned = plan(sweep(engine=["none", "horovod"], placement="1x1"), CPU)
    assert [c.engine for c in planned.launches] == ["none", "horovod"]


def test_what_multiplication_made_and_the_table_has_not_is_left_out_and_said() -> None:
    planned = plan(
        sweep(engine=["none", "horovod", "ddp"], backend=["mpi", "gloo"], placement=["1x1", "1x2"]),
        CPU,
    )
    assert len(planned.points) == 1 + 4 + 2
    left = {(c.engine, c.backend, str(c.placement)): why for c, why in planned.left_out}
    assert set(left) == {("none", None, "1x2"), ("ddp", "mpi", "1x1"), ("ddp", "mpi", "1x2")}
    assert "no MPI process group" in left["ddp", "mpi", "1x1"]
    assert not {point_id(c) for c, _ in planned.left_out} & set(planned.resolved)


def test_a_value_that_no_point_is_left_of_is_an_error() -> None:
    with pytest.raises(ValidationError, match=r"no point of backend nccl can run.*GPU memory"):
        plan(sweep(backend=["mpi", "nccl"]), CPU)
    with pytest.raises(ValidationError, match="no point of engine none"):
        plan(sweep(engine=["none", "horovod"], placement=["1x2", "1x4"]), CPU)


def test_a_point_asked_for_by_name_is_never_left_out() -> None:
    with pytest.raises(CombinationError):
        plan(sweep(backend="nccl"), CPU)
    named = {"engine": "ddp", "backend": "mpi"}
    with pytest.raises(CombinationError, match="no MPI process group"):
        plan(sweep(engine=["horovod", "ddp"], backend=["mpi", "gloo"], include=[named]), CPU)


def test_options_that_a_placement_cannot_have_are_left_out_and_said() -> None:
    tuned = {"horovod": {"hierarchical_allreduce": [False, True]}}
    planned = plan(sweep(placement=["1x2", "2x2"], **tuned), GPUS)
    assert len(planned.points) == 3
    ((left, why),) = planned.left_out
    assert str(left.placement) == "1x2"
    assert "is on one node" in why
    with pytest.raises(ValidationError, match=r"no point of horovod\.hierarchical_allreduce true"):
        plan(sweep(placement=["1x2", "1x4"], **tuned), GPUS)


def test_sizes_are_always_errors() -> None:
    with pytest.raises(ValidationError, match="5 ranks"):
        plan(sweep(placement=["1x1", "1x5"]), CPU)
    with pytest.raises(ValidationError, match="training samples"):
        plan(sweep(batch_size=[75, 1501]), CPU)


def test_a_base_that_cannot_run_is_an_error_that_says_so() -> None:
    bare = replace(CPU, mpi=None)
    with pytest.raises(MissingDependencyError, match=r"^base horovod on 1x1: "):
        plan(sweep(engine="none", base="horovod@1"), bare)


def test_base_node_is_a_full_node_of_this_machine() -> None:
    planned = plan(sweep(placement="1x2", base="node"), CPU)
    assert [str(b.placement) for b in planned.bases if b] == ["1x4"]


def test_equal_points_have_one_form_and_one_id() -> None:
    """A count is the placement it resolves to, and a default that is written out is left out."""
    written = parse_sweep(
        {
            "name": "x",
            "workload": {"name": "stress_strain", "samples": 1_000_000},
            "engine": "horovod",
            "backend": "mpi",
            "placement": [1, "1x1", 2, "1x2"],
            "batch_size": 8,
            "base": "horovod@1",
        }
    )
    plain = parse_sweep(
        {
            "name": "x",
            "workload": "stress_strain",
            "engine": "horovod",
            "backend": "mpi",
            "placement": ["1x1", "1x2"],
            "batch_size": 8,
            "base": "horovod@1",
        }
    )
    ids = [[point_id(config) for config in plan(sweep, CPU).launches] for sweep in (written, plain)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 2


def test_a_knob_of_the_shell_that_no_key_covers_ends_a_sweep_of_horovod() -> None:
    environ = {"HOROVOD_TIMELINE": "/tmp/t.json", "PATH": "/bin"}
    with pytest.raises(ConfigError, match=r"HOROVOD_TIMELINE=/tmp/t\.json changes"):
        plan(sweep(placement="1x2"), CPU, environ)
    with pytest.raises(ConfigError, match="HOROVOD_TIMELINE"):  # the base alone is Horovod's
        plan(sweep(engine="none", base="horovod@1"), CPU, environ)
    assert plan(sweep(engine="none"), CPU, environ).launches
    assert plan(sweep(placement="1x2"), CPU, {"PATH": "/bin"}).launches


def test_a_sweep_is_checked_against_the_environment_of_the_runner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOROVOD_THREAD_AFFINITY", "0,1")
    with pytest.raises(ConfigError, match="HOROVOD_THREAD_AFFINITY"):
        plan(sweep(placement="1x2"), CPU)


def test_one_value_of_an_option_has_one_id_however_it_is_written() -> None:
    def ids(**options: float) -> list[str]:
        workload = {"name": "stress_strain", **options}
        return [point_id(c) for c in plan(sweep(workload=workload), CPU, {}).launches]

    assert ids(samples=2000) == ids(samples=2e3)
    assert (
        len(plan(sweep(workload={"name": "stress_strain", "samples": [2e3, 2000]}), CPU).points)
        == 1
    )
    with pytest.raises(ConfigError, match=r"option samples: 10{25} is above the maximum"):
        ids(samples=10**25)


def test_a_static_graph_goes_with_all_else() -> None:
    ddp = {"engine": "ddp", "backend": "gloo", "ddp": {"static_graph": True}}
    check_point(point(**ddp), CPU)
    check_point(point(**ddp, train={"noise_scale": False}), CPU)
    check_point(point(**ddp, workload="lstm", train={}), CPU)  # a stream has no noise scale
    check_point(point(**{**ddp, "engine": "horovod"}, execution={"accumulate": 5}), CPU)
