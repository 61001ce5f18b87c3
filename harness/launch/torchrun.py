"""torch's own launcher, on one host; across hosts DDP is started by ``srun``."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ValidationError
from harness.launch.api import Command, Launch
from harness.launch.environment import rank_environment


def command(launch: Launch) -> Command:
    """Return ``python -m torch.distributed.run``, which is what ``torchrun`` is.

    By its module it is the torch of the ranks' interpreter, and no script with a path of its own.
    """
    if not launch.one_host:
        raise ValidationError(
            f"launcher torchrun starts the ranks of one node, but placement "
            f"{'+'.join(map(str, launch.resolved.placement))} has "
            f"{len(launch.resolved.placement)}; use launcher: srun inside an allocation"
        )
    argv = [launch.python, "-P", "-m", "torch.distributed.run", "--nnodes=1"]
    argv.append(f"--nproc-per-node={launch.resolved.world_size}")
    # A rendezvous of its own on a free port, reached by an address that needs no name service.
    argv += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    # Its reports of failed ranks go beside the launch's own; by default each launch leaves a folder
    # under /tmp.
    argv += ["--max-restarts=0", f"--log-dir={Path(launch.run_file).parent / 'torchrun'}"]
    # Its parser would take the program's own --run for a short form of --run-path: "--" ends that.
    module = ["-m"] if launch.program[0] == "-m" else []
    program = launch.program[len(module) :]
    return Command((*argv, *module, "--", *program), rank_environment(launch))
