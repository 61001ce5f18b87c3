"""What Horovod's engines share whatever the framework: the world, the proof, the timeline.

``hvd`` is ``horovod.torch`` or ``horovod.tensorflow``; both have one core of their own, loaded with
the framework's library, and the same names for what is used here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from typing_extensions import override

from harness.detect import read_build_marker
from harness.engines.api import Engine, World
from harness.engines.evidence import (
    NETWORK_STEMS,
    horovod_backend,
    horovod_controller,
    loaded_libraries,
    mpi_evidence,
)
from harness.engines.nccl_log import is_nccl, nccl_evidence
from harness.errors import LaunchError
from harness.record import BackendProof
from harness.spec import Resolved


def join(hvd: Any, resolved: Resolved) -> World:
    """Initialise Horovod; raise LaunchError where it has another size than was asked for."""
    hvd.init()
    wanted = resolved.world_size
    if hvd.size() != wanted:
        raise LaunchError(
            f"Horovod sees {hvd.size()} ranks, the config asks for {wanted}: the launcher and "
            "Horovod's controller do not belong together"
        )
    return World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())


def prove(hvd: Any, resolved: Resolved) -> BackendProof:
    """Say what Horovod reduces gradients with, and negotiates over, with evidence."""
    gloo, mpi = bool(hvd.gloo_enabled()), bool(hvd.mpi_enabled())
    evidence = {
        "gloo_enabled": str(gloo),
        "mpi_enabled": str(mpi),
        "nccl_built": str(hvd.nccl_built()),
        **loaded_libraries(*NETWORK_STEMS),
    }
    build = read_build_marker().get("gpu")
    evidence |= {"horovod_build": f"--gpu {build}"} if build else {}
    if mpi:
        evidence |= mpi_evidence()
    proven = horovod_backend(
        device=resolved.device,
        nccl=bool(hvd.nccl_built()),
        gloo=gloo,
        mpi=mpi,
        build=str(build) if build else None,
    )
    if proven == "nccl":
        evidence |= nccl_evidence()
        proven = "nccl" if is_nccl(evidence) else None
    named = os.environ.get("HOROVOD_CONTROLLER", "")
    return BackendProof(
        requested=resolved.backend,
        proven=proven,
        controller=horovod_controller(gloo=gloo, mpi=mpi, named=named),
        evidence=evidence,
    )


class HorovodEngine(Engine):
    """What Horovod's engines do alike, beside a framework's part."""

    name = "horovod"
    hvd: Any

    def prepare_device(self, local_rank: int, rank: int) -> None:
        """Take this rank's device and cores; the framework's part."""
        raise NotImplementedError

    @override
    def start(self) -> World:
        world = join(self.hvd, self.resolved)
        self.prepare_device(world.local_rank, world.rank)
        return world

    @override
    def proof(self) -> BackendProof:
        return prove(self.hvd, self.resolved)

    @override
    def start_timeline(self, path: Path) -> None:
        """As the base says; its file is open when this returns. Only rank 0's call writes one.

        With cycle marks: what ``HOROVOD_TIMELINE_MARK_CYCLES`` says is overruled by this call.
        """
        path.unlink(missing_ok=True)
        try:
            self.hvd.start_timeline(str(path), mark_cycles=True)
        except ValueError:
            raise LaunchError(
                "Horovod writes a timeline only where all ranks had HOROVOD_TIMELINE=DYNAMIC when "
                "it was initialised"
            ) from None
        # Horovod logs that it cannot open a file, and goes on without.
        if not path.is_file():
            raise LaunchError(f"Horovod could not open {path} for its timeline")

    @override
    def stop_timeline(self) -> None:
        # Returns when what was queued is written and the file is closed (timeline.cc,
        # SetPendingTimelineFile and SetTimelineFile).
        self.hvd.stop_timeline()
