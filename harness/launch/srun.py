"""Slurm's ``srun``: a step of the allocation this process is in.

Slurm's binding is off (``--cpu-bind=none``): a step has the cores of its ranks, and every rank
binds itself among them by its local rank, as under any other launcher. ``--cpus-per-task`` is given
again, because since 22.05 ``srun`` does not take it over from ``sbatch``, and ``--export=ALL``,
because after ``sbatch --export=NONE`` it would hand nothing on, our own variables neither.
"""

from __future__ import annotations

import hashlib

from harness.errors import ValidationError
from harness.launch.api import Command, Launch
from harness.launch.environment import rank_environment
from harness.legal import slurm_mpi_plugin

# Above the registered services, below Linux's range of ephemeral ports (32768 up).
_FIRST_PORT, _PORTS = 20_000, 12_000


def command(launch: Launch) -> Command:
    """Return ``srun`` with one task a rank."""
    resolved = launch.resolved
    plugin = slurm_mpi_plugin(launch.config.engine, launch.machine.mpi)
    argv = [launch.launcher_path("srun"), f"--mpi={plugin}"]
    argv += [f"--nodes={len(resolved.placement)}", f"--ntasks={resolved.world_size}"]
    argv += _layout(launch)
    argv += ["--export=ALL", "--cpu-bind=none", "--kill-on-bad-exit=1"]
    if resolved.bind:
        argv.append(f"--cpus-per-task={resolved.cores_per_rank}")
    else:  # more ranks than cores
        argv += ["--cpus-per-task=1", "--overcommit"]
    if launch.machine.slurm is not None and launch.machine.slurm.in_step:
        argv.append("--overlap")  # without it this step waits for the one that it is started in
    env = rank_environment(launch)
    if launch.config.engine == "ddp":
        env |= _rendezvous(launch)
    return Command((*argv, *launch.rank_argv), env)


def _layout(launch: Launch) -> list[str]:
    hosts, placement = launch.resolved.hosts, launch.resolved.placement
    if launch.even:
        return [f"--nodelist={','.join(hosts)}", f"--ntasks-per-node={placement[0]}"]
    # The arbitrary distribution starts one task for each name, in the order of the list. Repeated
    # names are understood by all versions, "n1*8" by 22.05 not.
    names = [host for host, ranks in zip(hosts, placement, strict=True) for _ in range(ranks)]
    return [f"--nodelist={','.join(names)}", "--distribution=arbitrary"]


def _rendezvous(launch: Launch) -> dict[str, str]:
    """Return where torch.distributed's ranks meet: on the first host, at a port of this launch."""
    slurm = launch.machine.slurm
    if slurm is None:
        raise ValidationError("launcher srun: not inside a Slurm allocation")
    # Jobs that share a node must not meet each other, nor a launch the one before it.
    digest = hashlib.sha256(f"{slurm.job_id} {launch.run_file}".encode()).digest()
    port = _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS
    address = "127.0.0.1" if launch.one_host else launch.resolved.hosts[0]
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
