"""What every rank finds in its environment, whatever starts it.

Horovod's knobs go by the environment and never by a launcher's flags: then one place sets them, and
two launchers cannot differ. Names and meaning: Horovod 0.28.1, ``horovod/common/common.h``,
``utils/env_parser.cc`` and ``operations.cc``.
"""

from __future__ import annotations

from pathlib import PurePath

from harness.config.instruments import is_timeline
from harness.launch.api import Launch
from harness.tuning import (
    AUTOTUNE_LOG,
    DYNAMIC_TIMELINE,
    NOT_IN_CONFIG,
    THREADS,
    to_environment,
    transport,
)

#: Knobs that a shell may have set and that a config does not have, pinned to Horovod's defaults:
#: equal run ids must mean equal measurements.
_PINNED = {name: f"{value:g}" for name, value in NOT_IN_CONFIG.items()}

_STALL_WARNING_S = 60  # Horovod's default
_GLOO_TIMEOUT_S = 30  # Horovod's default
#: What the autotuner tried and chose, beside the logs of a launch.
AUTOTUNE_FILE = "autotune.csv"


def rank_environment(launch: Launch) -> dict[str, str]:
    """Return what is added to the environment of all ranks."""
    env = {
        "PYTHONUNBUFFERED": "1",  # a rank that is killed leaves its last lines
        # As -P of the ranks' own command, for every interpreter that a launcher starts in between.
        "PYTHONSAFEPATH": "1",
    }
    env |= _threads(launch)
    env |= _network(launch)
    if launch.resolved.backend == "nccl":
        # The proof of the backend reads NCCL's own account of what it uses; it is written once.
        env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
    if launch.config.engine == "horovod":
        env |= _horovod(launch)
    return env


def daemon_environment(launch: Launch) -> dict[str, str]:
    """Return what an MPI's launcher needs in an allocation to start its daemons on other hosts.

    It starts them by ``srun``. In a job that was submitted with ``--export=NONE``, as many sites
    advise, an ``srun`` that is not told otherwise hands nothing on, and no daemon is found.
    """
    if launch.here or launch.machine.slurm is None:
        return {}
    # In a step its srun would wait for that step's end.
    overlap = {"SLURM_OVERLAP": "1"} if launch.machine.slurm.in_step else {}
    return {"SLURM_EXPORT_ENV": "ALL", **overlap}


def _threads(launch: Launch) -> dict[str, str]:
    # Left alone, every rank would start a thread for each core of the node.
    cores = str(launch.resolved.cores_per_rank)
    env = dict.fromkeys(THREADS, cores)
    if launch.config.workload.framework == "tensorflow":
        env |= {"TF_NUM_INTRAOP_THREADS": cores, "TF_NUM_INTEROP_THREADS": cores}
    return env


def _network(launch: Launch) -> dict[str, str]:
    """Name the interface for Gloo and for NCCL's bootstrap where there is no choice.

    On one host it is loopback, which horovodrun takes too: otherwise Gloo resolves the host's name
    (at size 1 as well), which fails in a container without it, and launchers would differ. On
    several hosts that have one interface it is that one: some systems (Debian's /etc/hosts) resolve
    a host's own name to 127.0.1.1, where no other host can reach it. With several interfaces the
    choice is the user's, by these same variables.

    Horovod 0.28.1 takes HOROVOD_GLOO_IFACE for its global communicator only: those of its process
    sets (``GlooContext::InitializeForProcessSet``) go by the host's own name, so between hosts that
    name must not resolve to loopback.
    """
    names = ("lo",) if launch.one_host else launch.machine.interfaces
    if len(names) != 1:
        return {}
    backend = launch.resolved.backend
    env: dict[str, str] = {}
    if launch.config.engine == "horovod" and "gloo" in (backend, launch.resolved.controller):
        env["HOROVOD_GLOO_IFACE"] = names[0]
    if launch.config.engine == "ddp":
        env["GLOO_SOCKET_IFNAME"] = names[0]
    if backend == "nccl":
        env["NCCL_SOCKET_IFNAME"] = names[0]
    return env


def _horovod(launch: Launch) -> dict[str, str]:
    warn_s, shutdown_s = stall_seconds(launch.timeout_s)
    return (
        _PINNED
        | to_environment(launch.config.horovod)
        | transport(launch.resolved.backend, launch.resolved.controller)
        | (DYNAMIC_TIMELINE if is_timeline(launch.config) else {})
        | (_autotune_log(launch) if launch.config.horovod.autotune else {})
        | {
            "HOROVOD_STALL_CHECK_DISABLE": "0",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": str(warn_s),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(shutdown_s),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(_GLOO_TIMEOUT_S, shutdown_s)),
            "HOROVOD_LOG_LEVEL": "warning",
        }
    )


def _autotune_log(launch: Launch) -> dict[str, str]:
    return {AUTOTUNE_LOG: str(PurePath(launch.run_file).with_name(AUTOTUNE_FILE))}


def stall_seconds(timeout_s: float) -> tuple[int, int]:
    """Return when Horovod warns of a missing rank, and when it ends the job, in whole seconds.

    It looks once a warning time, and ends nothing if the second is below the first
    (``stall_inspector.cc``). Both fit into the launch's time limit, so that the record has
    Horovod's own words on who is missing, and not only that time was up.

    Over the Gloo controller 0.28.1 as released neither warns nor ends anything: its list of ranks
    has no size (``gloo_controller.cc``), so none is missing. ``build-horovod`` mends that; with a
    Horovod built otherwise the time limit ends a hang, and the ranks' stacks say where it was.
    """
    warn_s = max(1, min(_STALL_WARNING_S, int(timeout_s / 10)))
    return warn_s, max(warn_s + 1, int(timeout_s / 2))
