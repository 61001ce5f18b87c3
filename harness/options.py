"""Speed options: which of them can be active together, as far as it is known before a launch.

What Horovod does with an option is read in 0.28.1's ``common/operations.cc`` (the order of its
operations, and when it drops a flag without a word) and ``torch/mpi_ops.py``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from harness.config.models import RunConfig
from harness.detect import Machine
from harness.errors import MissingDependencyError, ValidationError
from harness.legal import CombinationError
from harness.spec import Resolved
from workloads import registry


def check_options(
    config: RunConfig,
    resolved: Resolved,
    machine: Machine,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Raise where an option that is asked for could not be active.

    CombinationError where it depends on backend, controller or placement: a sweep that multiplied
    axes may leave such a point out. MissingDependencyError where something is to be installed.
    """
    _check_device(config, machine)
    _check_batch(config)
    _check_layout(config)
    _check_graph(config)
    _check_cudnn(config)
    _check_static_graph(config)
    if config.execution.compile and config.workload.framework == "torch":  # XLA brings its own
        _check_compiler(environ)
    if config.engine == "horovod":
        _check_compression(config)
        if config.world_size > 1:  # alone, Horovod reduces nothing, and the record says so
            _check_asynchronous(config, resolved)
            _check_adasum(config, resolved)
            _check_hierarchical(config, resolved)
            _check_torus(config, resolved)
            _check_determinism(config)


def _check_device(config: RunConfig, machine: Machine) -> None:
    needs_cuda = {
        "execution.graph": config.execution.graph,
        "execution.cudnn_benchmark": config.execution.cudnn_benchmark,
        "execution.precision: tf32": config.execution.precision == "tf32",
        "horovod.async_completion": config.horovod.async_completion,
    }
    for key, wanted in needs_cuda.items():
        if wanted and machine.device != "cuda":
            raise ValidationError(f"{key} needs a CUDA device, and there is none here")


#: Fewer steps of warm-up could leave eager steps, or the capture itself, in the window.
_GRAPH_WARMUP = {"none": 8, "horovod": 8, "ddp": 24}


def _check_graph(config: RunConfig) -> None:
    if not config.execution.graph:
        return
    if config.workload.framework != "torch":
        raise ValidationError(
            f"execution.graph: {config.workload.framework} runs a step as its own graph already; "
            "set it to false"
        )
    least = _GRAPH_WARMUP[config.engine]
    if config.train is None and config.measure.warmup_steps < least:
        raise ValidationError(
            f"execution.graph: engine {config.engine} captures its graphs in the warm-up, and "
            f"measure.warmup_steps {config.measure.warmup_steps} is too short; set it to {least}"
        )
    if config.horovod.op == "adasum":
        raise ValidationError(
            "horovod.op: adasum updates each parameter in a hook, and with execution.graph the "
            "gradients are one buffer; set op: average, or graph to false"
        )
    if config.horovod.groups > 1 and config.horovod.fusion_threshold_mb > 0:
        raise ValidationError(
            f"horovod.groups: {config.horovod.groups} pieces of a captured gradient are negotiated "
            "together, and Horovod would fuse them into one again; set "
            "horovod.fusion_threshold_mb: 0"
        )


def _check_cudnn(config: RunConfig) -> None:
    if not config.execution.cudnn_benchmark:
        return
    if config.workload.framework != "torch":
        raise ValidationError(
            f"execution.cudnn_benchmark is a switch of torch; {config.workload.framework} chooses "
            "its algorithms itself; set it to false"
        )
    if config.deterministic:
        raise ValidationError(
            "execution.cudnn_benchmark chooses by time, so that results vary from launch to "
            "launch, and deterministic is asked for; set one to false"
        )


def _check_static_graph(config: RunConfig) -> None:
    """A static graph is learned from the first backward pass, which must reduce (torch 2.13)."""
    if config.engine != "ddp" or not config.ddp.static_graph:
        return
    unlike = {
        f"execution.accumulate {config.execution.accumulate}": config.execution.accumulate > 1,
        "train.noise_scale": config.train is not None
        and config.train.noise_scale
        and registry.info(config.workload.name).order != "streams",  # of which there is none
    }
    for key in (key for key, wanted in unlike.items() if wanted):
        off = "1" if key.startswith("execution") else "false"
        raise ValidationError(
            f"ddp.static_graph: with {key} there are backward passes without an all-reduce, which "
            f"torch cannot take first then; set static_graph to false, or {key.split()[0]} to {off}"
        )


def _check_batch(config: RunConfig) -> None:
    accumulate = config.execution.accumulate
    if config.rank_batch % accumulate:
        raise ValidationError(
            f"execution.accumulate: a batch of {config.rank_batch} samples has no "
            f"{accumulate} equal parts; take a divisor of it"
        )
    if accumulate > 1 and registry.info(config.workload.name).order == "streams":
        raise ValidationError(
            f"execution.accumulate: workload {config.workload.name} carries state from batch to "
            "batch, row by row, and parts of a batch are other rows; set it to 1"
        )


def _check_layout(config: RunConfig) -> None:
    if not config.execution.channels_last:
        return
    if not registry.info(config.workload.name).image_inputs:
        raise ValidationError(
            "execution.channels_last is a layout of images, and workload "
            f"{config.workload.name} has none; set it to false"
        )
    if config.workload.framework != "torch":
        raise ValidationError(
            f"execution.channels_last is a layout of torch; {config.workload.framework} chooses "
            "its own; set it to false"
        )


def _check_compiler(environ: Mapping[str, str]) -> None:
    """torch.compile writes C++ on a CPU, and needs a C compiler for Triton's launchers on a GPU."""
    compiler = environ.get("CXX", "").strip() or "g++"
    if shutil.which(compiler.split()[0], path=environ.get("PATH")) is None:
        raise MissingDependencyError(
            f"execution.compile needs a C++ compiler, and {compiler} is not on the PATH; install "
            "g++ (apt-get install g++, or your site's gcc module), or set CXX"
        )


def _check_compression(config: RunConfig) -> None:
    if config.horovod.compression == "bf16":
        raise ValidationError(
            "horovod.compression: Horovod 0.28.1 has no bfloat16 among the types that it reduces "
            "(common/message.h); use fp16 or none"
        )


def _check_asynchronous(config: RunConfig, resolved: Resolved) -> None:
    """Only operations that end on a CUDA stream can complete there (``FinalizeGPUQueue``)."""
    if config.horovod.async_completion and resolved.backend != "nccl":
        raise CombinationError(
            "horovod.async_completion needs backend nccl: with backend "
            f"{resolved.backend} Horovod waits on the host"
        )


def _check_hierarchical(config: RunConfig, resolved: Resolved) -> None:
    if not config.horovod.hierarchical_allreduce:
        return
    key = "horovod.hierarchical_allreduce"
    _check_two_levels(key, config, resolved)
    if resolved.controller != "mpi":
        raise CombinationError(
            f"{key} needs the MPI controller, without which Horovod leaves it out silently; set "
            "horovod.controller: mpi, or set it to false"
        )
    if config.horovod.torus_allreduce:
        raise ValidationError(
            f"{key} and horovod.torus_allreduce are both asked for, and Horovod would use the "
            "first alone; set one to false"
        )


def _check_torus(config: RunConfig, resolved: Resolved) -> None:
    if config.horovod.torus_allreduce:
        _check_two_levels("horovod.torus_allreduce", config, resolved)


def _check_two_levels(key: str, config: RunConfig, resolved: Resolved) -> None:
    if resolved.backend != "nccl":
        raise CombinationError(
            f"{key} is an operation of NCCL, and backend {resolved.backend} would leave it out "
            "silently; set backend: nccl, or set it to false"
        )
    if len(resolved.placement) == 1:
        raise CombinationError(
            f"{key} reduces inside nodes and then between them, and placement "
            f"{config.placement} is on one node, where Horovod leaves it out silently; take two "
            "nodes or more, or set it to false"
        )


def _check_adasum(config: RunConfig, resolved: Resolved) -> None:
    if config.horovod.op != "adasum":
        return
    _check_adasum_operation(resolved)
    if resolved.backend == "nccl":
        _check_adasum_nodes(config, resolved)
    elif not _is_power_of_two(config.world_size):
        raise CombinationError(
            f"horovod.op: adasum needs 2, 4, 8, ... ranks, and placement {config.placement} has "
            f"{config.world_size}"
        )
    if config.horovod.groups and config.workload.framework == "torch":
        raise ValidationError(
            "horovod.op: adasum reduces each tensor as it is updated, and leaves horovod.groups "
            "out silently; set groups to 0"
        )


def _check_adasum_operation(resolved: Resolved) -> None:
    if resolved.controller != "mpi":
        raise CombinationError(
            "horovod.op: adasum needs MPI between the ranks, and with the "
            f"{resolved.controller} controller there is none; set horovod.controller: mpi"
        )
    if resolved.device == "cuda" and resolved.backend == "mpi":
        raise CombinationError(
            "horovod.op: adasum computes on the host, where a build that hands GPU memory to MPI "
            "has no gradients; use backend: mpi-host or nccl"
        )


def _check_adasum_nodes(config: RunConfig, resolved: Resolved) -> None:
    """With NCCL the ranks of a node are averaged, and only nodes are combined by Adasum."""
    nodes = len(resolved.placement)
    if nodes == 1 or not _is_power_of_two(nodes) or len(set(resolved.placement)) > 1:
        raise CombinationError(
            "horovod.op: adasum with backend nccl averages inside a node and needs 2, 4, 8, ... "
            f"nodes with equally many ranks, and placement {config.placement} is "
            f"{'+'.join(map(str, resolved.placement))}; use backend: mpi-host, or other nodes"
        )


def _check_determinism(config: RunConfig) -> None:
    """Which gradients share a fusion buffer depends on when each is ready.

    A ring adds the elements of a buffer in an order that depends on their place in it, so sums of
    three or more ranks differ in their last bits from launch to launch (seen: 40 equal all-reduces
    of 4 ranks over Gloo gave 14 results). Two numbers have one sum in either order; Adasum's
    dot products are sums over a buffer's parts.
    """
    tuning = config.horovod
    if not config.deterministic or tuning.fusion_threshold_mb == 0:
        return
    if tuning.op == "average" and (config.world_size == 2 or tuning.groups == 1):
        return
    group = "" if tuning.op == "adasum" else "horovod.groups: 1 (all gradients together), or "
    raise ValidationError(
        "deterministic: which gradients Horovod fuses depends on their timing, and with it the "
        f"order in which {config.world_size} ranks are summed; set {group}"
        "horovod.fusion_threshold_mb: 0 (each alone)"
    )


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
