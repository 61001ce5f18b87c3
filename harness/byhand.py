"""``horovodrun -np 2 hvdscale bench WORKLOAD …`` typed by hand: one rank, without a sweep.

The launcher has decided where the ranks are; flags and Horovod's environment say the rest. The same
RunConfig comes out as for a point of a sweep, and the record goes to ``RESULTS/bench/``.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import affinity, bench, provenance, scratch, tuning
from harness.clock import utc_now
from harness.config import Placement, RunConfig, apply_overrides, run_id
from harness.config.instruments import is_timeline
from harness.config.load import validated
from harness.config.tuning_presets import with_preset
from harness.detect import MODULES, Host, Machine, detect_gpus, usable_cores
from harness.digits import whole
from harness.errors import ConfigError, HarnessError, StoreError
from harness.measure import gate, seats
from harness.provenance import packages
from harness.provenance.slurm import slurm_facts
from harness.ranks import RankPlace, find_place
from harness.record import Placed, RunRecord
from harness.spec import BlockRef, Resolved
from harness.staging import DataPlace
from harness.store.files import named_errors
from harness.summary import summary

SWEEP = "bench"
WHERE = "bench"
PATIENCE_S = 20.0  # a rank may start that much later than another


def by_hand(
    workload: str,
    *,
    flags: Mapping[str, int | str | None],
    overrides: Sequence[str],
    results: Path,
    data_dir: Path,
) -> int:
    """Be one rank of a launch that a person typed; rank 0 prints the summary. Returns 0.

    Raises HarnessError on bad input, on rank 0 only: the other ranks end with its exit code and
    without a word, so that one mistake is one line. They wait before, because a launcher ends all
    ranks with the first, and rank 0 must have spoken by then.
    """
    place = find_place(os.environ) or RankPlace("inline", 0, 1, 0)
    try:
        config = config_of(workload, flags, overrides, place, os.environ)
        machine = machine_of(config, place)
        resolved = _check(config, machine)
        config = _settled(config, resolved)
    except HarnessError as error:
        if place.rank == 0:
            raise
        time.sleep(PATIENCE_S)
        sys.exit(error.exit_code)
    set_environment(config, resolved)
    facts = provenance.at_start()
    start = bench.Start(affinity.bind(resolved, place.local_rank), facts)
    started_at = utc_now()
    with bench.joined(config, resolved) as (engine, world):
        places = engine.gather((seats.here(world, place.local_size), packages.software()))
        found = gate.check_local_sizes([seat for seat, _ in places], place.launcher)
        gate.check_software([versions for _, versions in places])
        config, resolved = _as_placed(config, resolved, found)
        timeline = _timeline_file(results) if is_timeline(config) and world.rank == 0 else Path()
        # Rank 0's word: a launcher may hand its environment to the ranks of its own host alone.
        where = DataPlace(data_dir, engine.gather(scratch.asked_for(os.environ))[0])
        measured = bench.measure(config, resolved, where, engine, world, start, timeline)
        if measured is not None:
            record = _write(config, resolved, results, started_at, measured, found)
            print("\n".join(summary(record, results / SWEEP, timeline)), flush=True)
        engine.barrier()
    return 0


def config_of(
    workload: str,
    flags: Mapping[str, int | str | None],
    overrides: Sequence[str],
    place: RankPlace,
    environ: Mapping[str, str],
) -> RunConfig:
    """Return the config that flags, overrides, launcher and shell stand for; ConfigError if bad."""
    data: dict[str, Any] = {"workload": {"name": workload}}
    if flags.get("framework"):
        data["workload"]["framework"] = flags["framework"]
    for key in ("engine", "backend", "batch_size", "global_batch_size"):
        if flags.get(key) is not None:
            data[key] = flags[key]
    data = apply_overrides(data, overrides)
    if "train" in data:
        raise ConfigError("--set train: hvdscale train trains a sweep; bench measures a window")
    for key in ("placement", "launcher"):
        if key in data:
            raise ConfigError(f"--set {key}: the launcher that started this has decided it")
    if "global_batch_size" in data:
        data.setdefault("scaling", "strong")
    if "batch_size" not in data and "global_batch_size" not in data:
        raise ConfigError("bench: give --batch-size (a rank's) or --global-batch-size (all ranks')")
    default = {"torchrun": "ddp", "inline": "none"}.get(place.launcher, "horovod")
    data.setdefault("engine", default)
    data |= {"launcher": place.launcher, "placement": str(place.size)}
    threads = whole(environ.get("OMP_NUM_THREADS", ""))
    if "cores_per_rank" not in data and threads is not None:
        data["cores_per_rank"] = _threads(threads, place)
    if data["engine"] == "none":
        for key in ("backend", "horovod", "ddp"):
            if data.get(key):
                raise ConfigError(
                    f"{key}: engine none reduces nothing, so it would have no effect; leave it "
                    "out, or start the ranks with mpirun or horovodrun"
                )
    if data["engine"] == "horovod":
        if data.get("ddp"):
            raise ConfigError(
                "ddp: these are knobs of engine ddp, and this is horovod, so they would have no "
                "effect; leave them out, or give --engine ddp"
            )
        tuning.check_environment(environ)
        _add_horovod(data, place, environ)
    return validated(RunConfig, data, WHERE)


def _threads(wanted: int, place: RankPlace) -> int:
    cores = usable_cores()
    if wanted > cores:
        raise ConfigError(
            f"environment: OMP_NUM_THREADS={wanted}, but {place.launcher} leaves this rank "
            f"{cores} core(s); bind ranks to none (mpirun --bind-to none), or set it to {cores}"
        )
    return wanted


def _add_horovod(data: dict[str, Any], place: RankPlace, environ: Mapping[str, str]) -> None:
    """Take over what the launcher and the shell have set; ``--set`` goes before both."""
    given = with_preset(data.get("horovod", {}))
    if not isinstance(given, Mapping):
        raise ConfigError("bench: --set horovod takes keys, e.g. horovod.cycle_time_ms=0.1")
    # horovodrun gives its ranks a rendezvous and no MPI; every other launcher is an MPI one.
    controller = environ.get("HOROVOD_CONTROLLER", "").lower()
    controller = controller or ("gloo" if place.launcher == "horovodrun" else "mpi")
    data["horovod"] = {"controller": controller, **tuning.from_environment(environ), **given}
    operations = environ.get("HOROVOD_CPU_OPERATIONS", "").lower()
    if "backend" not in data and _device() == "cpu":
        data["backend"] = operations or str(data["horovod"]["controller"])


def _device() -> str:
    # Not by torch: it reads its environment when it is imported, and that is not made yet.
    return "cuda" if detect_gpus() else "cpu"


def machine_of(config: RunConfig, place: RankPlace) -> Machine:
    """Return the machine as far as the launcher's variables tell it; names come with the ranks."""
    on_this_host = place.local_size or place.size
    count = -(-place.size // on_this_host)
    hosts = tuple(Host(f"node{n}", usable_cores(), on_this_host) for n in range(count))
    return Machine(
        hosts=hosts,
        device=_device(),
        launchers={place.launcher: place.launcher},
        modules=frozenset(name for name in MODULES if find_spec(name) is not None),
    )


def _settled(config: RunConfig, resolved: Resolved) -> RunConfig:
    from harness.validate import settled

    return settled(config, resolved)


def _check(config: RunConfig, machine: Machine) -> Resolved:
    from harness.validate import check_training

    return check_training(config, machine)


def set_environment(config: RunConfig, resolved: Resolved) -> None:
    """Put the config in force before a framework reads its environment."""
    for name in tuning.THREADS:
        os.environ.setdefault(name, str(resolved.cores_per_rank))
    if resolved.backend == "nccl" and "NCCL_DEBUG_FILE" not in os.environ:
        # The proof of the backend is what NCCL says of itself; on the screen it would be noise.
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
        descriptor, os.environ["NCCL_DEBUG_FILE"] = tempfile.mkstemp(prefix="hvdscale-nccl-")
        os.close(descriptor)
    if config.engine != "horovod":
        return
    os.environ.update(tuning.to_environment(config.horovod))
    os.environ.update(tuning.transport(resolved.backend, resolved.controller))
    if is_timeline(config):
        os.environ.update(tuning.DYNAMIC_TIMELINE)


def _as_placed(config: RunConfig, resolved: Resolved, found: Placed) -> tuple[RunConfig, Resolved]:
    """Put the hosts that the ranks really are on into the config and the record."""
    devices = found.ranks_per_host
    placed = config.model_copy(update={"placement": Placement(sum(devices), devices)})
    return placed, resolved.model_copy(update={"placement": devices, "hosts": found.hosts})


def _timeline_file(results: Path) -> Path:
    """Return where the timeline of this launch goes: a run has no id before it is measured."""
    folder = results / SWEEP / "timelines"
    with named_errors(folder, "written"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.json"


def _write(
    config: RunConfig,
    resolved: Resolved,
    results: Path,
    started_at: str,
    measured: bench.Measured,
    placed: Placed,
) -> RunRecord:
    from harness.store import Store

    store = Store.open(results / SWEEP, create=True)
    repeat = 0
    while True:
        done = store.done_ids()
        while run_id(config, repeat) in done:
            repeat += 1
        identity = run_id(config, repeat)
        attempt, _ = store.claim_attempt(identity)
        record = RunRecord(
            run_id=identity,
            attempt=attempt,
            status="ok",
            sweep=SWEEP,
            block=BlockRef(repeat=repeat, allocation=_allocation(resolved, started_at)),
            config=config,
            resolved=resolved,
            started_at=started_at,
            ended_at=utc_now(),
            argv=tuple(sys.argv),
            slurm=slurm_facts(os.environ),
            placed=placed,
            **measured.fields,
        )
        try:
            return store.commit(record, measured.steps, measured.series)
        except StoreError:
            # Another launch took this repeat in the meantime; any other trouble shows again.
            if identity not in store.done_ids():
                raise


def _allocation(resolved: Resolved, started_at: str) -> str:
    """Return a name of this launch's own: what was typed at other times is no pair, and gives no
    speedup.
    """
    return f"hand:{resolved.hosts[0]}:{started_at}"
