"""One process in several libraries: who joins the ranks, and how the others follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from harness.collectives.api import Control, Library, agree
from harness.collectives.record import Absent
from harness.config.models import RunConfig
from harness.engines.api import Engine, World
from harness.engines.registry import INSTALL, create
from harness.errors import MissingDependencyError
from harness.spec import Resolved

if TYPE_CHECKING:
    import torch

_MPI_LAUNCHERS = ("mpirun", "srun")
_QUICKEST = ("mpi4py", "torch", "horovod")  # a barrier of Horovod's takes a cycle


@dataclass(frozen=True)
class Team:
    """This rank among the others, and what it can be measured with."""

    world: World
    control: Control
    device: torch.device
    libraries: tuple[Library, ...]
    absent: tuple[Absent, ...]
    engine: Engine  # which knows this rank's device, whoever leads
    leave: Callable[[], None]

    def barrier(self) -> None:
        """Meet the other ranks by the quickest library that is here."""
        by_name = {library.name: library for library in self.libraries}
        next(by_name[name] for name in _QUICKEST if name in by_name).barrier()


@dataclass(frozen=True)
class _Lead:
    """Who joined the ranks: Horovod or torchrun's process group (an engine), or MPI."""

    world: World
    control: Control
    device: torch.device
    engine: Engine | None  # None: MPI
    on_device: Engine  # the same, or one that only has the device


def choose(wanted: Sequence[str], launcher: str) -> tuple[list[str], list[Absent]]:
    """Return the libraries that ``launcher`` and this Python allow, and why others are left out.

    The same on all ranks, before they have met. Raises MissingDependencyError where none is left.
    """
    absent = [Absent(library=name, reason=r) for name in wanted if (r := _lacking(name, launcher))]
    usable = [name for name in wanted if name not in {one.library for one in absent}]
    if not usable:
        raise _nothing_left(absent)
    return usable, absent


def join(config: RunConfig, resolved: Resolved, wanted: Sequence[str]) -> Team:
    """Join the ranks in every library of ``wanted`` that can be had under this launcher.

    What cannot is left out, and the team says why. Under torchrun torch leads and is alone.
    Otherwise Horovod leads where it is wanted (and under horovodrun, which starts nothing else),
    else MPI. Raises MissingDependencyError or AgreedError where nothing is left to measure.
    """
    usable, absent = choose(wanted, resolved.launcher)
    lead = _lead(config, resolved, usable)
    libraries: list[Library] = []
    for name in usable:
        made = _library(name, config, resolved, lead)
        if isinstance(made, str):
            absent.append(Absent(library=name, reason=made))
        else:
            libraries.append(made)
    agree(lead.control, None if libraries else _nothing_left(absent))
    leave = _leaving(usable, lead)
    return Team(
        world=lead.world,
        control=lead.control,
        device=lead.device,
        libraries=tuple(libraries),
        absent=tuple(absent),
        engine=lead.on_device,
        leave=leave,
    )


def _nothing_left(absent: Sequence[Absent]) -> MissingDependencyError:
    reasons = "; ".join(f"{one.library}: {one.reason}" for one in absent)
    return MissingDependencyError(f"allreduce: nothing to measure with ({reasons})")


def _lacking(name: str, launcher: str) -> str | None:
    if name == "horovod" and launcher == "torchrun":
        return "torchrun gives it nothing to meet by; start it with horovodrun, mpirun or srun"
    if name == "mpi4py" and launcher not in _MPI_LAUNCHERS:
        return f"this {launcher} starts no MPI; start it with mpirun or srun"
    if find_spec(name) is None:
        return f"not installed; {INSTALL.get(name, 'pip install mpi4py')}"
    return None


def _lead(config: RunConfig, resolved: Resolved, usable: Sequence[str]) -> _Lead:
    if config.engine == "ddp" or "horovod" in usable or resolved.launcher == "horovodrun":
        engine = create(config, resolved)
        world = engine.start()
        return _Lead(world, engine, _device_of(engine), engine, engine)
    if find_spec("mpi4py") is None:
        raise MissingDependencyError(
            f"allreduce: under {resolved.launcher} ranks meet through Horovod or mpi4py, and "
            "neither is here; pip install mpi4py"
        )
    from harness.collectives.by_mpi4py import MpiControl, mpi_world
    from harness.engines.none_torch import NoneTorch

    world = mpi_world(resolved)
    bare = NoneTorch(config, resolved)
    bare.prepare_device(world.local_rank, world.rank)
    return _Lead(world, MpiControl(), bare.device, None, bare)


def _device_of(engine: Engine) -> Any:
    from harness.engines.torch_engine import TorchEngine

    assert isinstance(engine, TorchEngine)  # the config's framework is torch
    return engine.device


def _library(name: str, config: RunConfig, resolved: Resolved, lead: _Lead) -> Library | str:
    """Return a library, or why it cannot be had; the same on all ranks."""
    if name == "horovod":
        from harness.collectives.by_horovod import HorovodLibrary

        assert lead.engine is not None  # Horovod leads where it is wanted
        return HorovodLibrary(lead.engine, lead.device)
    if name == "torch":
        from harness.collectives import by_torch

        if config.engine != "ddp":
            by_torch.join(resolved, lead.world, lead.control, lead.device)
        return by_torch.TorchLibrary(config, resolved, lead.world, lead.device)
    from harness.collectives import by_mpi4py

    unfit = by_mpi4py.unfit(lead.world.size, lead.device, beside_horovod=lead.engine is not None)
    found = [text for text in lead.control.gather(unfit) if text]
    return found[0] if found else by_mpi4py.MpiLibrary(lead.device)


def _leaving(usable: Sequence[str], lead: _Lead) -> Callable[[], None]:
    led_by_torch = lead.engine is not None and lead.engine.name == "ddp"

    def leave() -> None:
        if "torch" in usable and not led_by_torch:
            import torch.distributed as dist

            dist.destroy_process_group()
        if lead.engine is not None:
            lead.engine.stop()
        if "mpi4py" in usable or lead.engine is None:
            from harness.collectives.by_mpi4py import finalise

            finalise()

    return leave
