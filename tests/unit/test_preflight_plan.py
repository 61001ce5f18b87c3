"""Who meets whom, for how long, and what the two ends of a link say to each other."""

from __future__ import annotations

import itertools
import queue
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import RunConfig, parse_sweep
from harness.detect import Host, Machine, Mpi, Slurm
from harness.errors import ConfigError, ValidationError
from harness.legal import resolve
from harness.ranks import RankPlace
from harness.submit.preflight import rank
from harness.submit.preflight.asking import (
    no_mpi,
    of_nodes,
    starting_config,
    trained_config,
)
from harness.submit.preflight.exchange import follow, lead
from harness.submit.preflight.naming import node_name
from harness.submit.preflight.plan import (
    Limits,
    Task,
    links_timeout_s,
    one_by_one,
    rounds_of,
    speed_timeout_s,
)


@given(st.integers(0, 40))
def test_every_pair_meets_once_and_nobody_twice_in_a_round(nodes: int) -> None:
    rounds = rounds_of(nodes)
    met = [pair for round_ in rounds for pair in round_]
    assert sorted(met) == list(itertools.combinations(range(nodes), 2))
    for round_ in rounds:
        assert len({rank for pair in round_ for rank in pair}) == 2 * len(round_)
    assert len(rounds) == (0 if nodes < 2 else nodes - 1 + nodes % 2)


def test_a_second_look_has_the_network_to_itself() -> None:
    assert one_by_one([(0, 2), (1, 2)]) == (((0, 2),), ((1, 2),))


def test_64_nodes_take_minutes() -> None:
    limits, rounds = Limits(), rounds_of(64)
    assert limits.pair_s < 4
    assert limits.pair_s * len(rounds) < 250
    # What is ended for, with a start from a busy file system and silent nodes:
    assert links_timeout_s(limits, rounds) < 15 * 60
    assert speed_timeout_s(limits) < 5 * 60


def a_task(folder: Path) -> Task:
    config = RunConfig.model_validate(
        {"workload": "stress_strain", "engine": "none", "batch_size": 75}
    )
    machine = Machine(hosts=(Host("n1", 4, 4),), device="cpu")
    return Task(
        stage="gloo",
        nodes=("n1", "n2"),
        folder=folder,
        config=config,
        resolved=resolve(config, machine),
        data_dir=folder,
        rounds=rounds_of(2),
        timeout_s=10,
    )


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    task = a_task(tmp_path)
    task.write(tmp_path / "task.json")
    assert Task.read(tmp_path / "task.json") == task
    with pytest.raises(ConfigError, match="must be in a file system that all nodes share"):
        Task.read(tmp_path / "nothing.json")


class Pipe:
    """A wire in one process; counts what was transferred."""

    def __init__(self, out: queue.Queue[int], back: queue.Queue[int]) -> None:
        self._out, self._back = out, back
        self.got: list[int] = []

    def put(self, count_bytes: int) -> None:
        self._out.put(count_bytes)

    def get(self, count_bytes: int) -> None:
        self.got.append(self._back.get(timeout=120))
        assert self.got[-1] == count_bytes

    def say(self, word: int) -> None:
        self._out.put(word)

    def hear(self) -> int:
        return self._back.get(timeout=120)


class Clock:
    """Goes on by what the last transfer takes at so many bytes/s, and 10 µs a message."""

    def __init__(self, wire: Pipe, bytes_per_s: float) -> None:
        self._now_s = 0.0
        put = wire.put

        def timed(count_bytes: int) -> None:
            self._now_s += 10e-6 + count_bytes / bytes_per_s
            put(count_bytes)

        wire.put = timed  # type: ignore[method-assign]

    def __call__(self) -> float:
        return self._now_s


@pytest.mark.parametrize(
    ("bytes_per_s", "size", "kept"),
    [
        (1e6, 256 << 10, 3),  # 64 KiB in 66 ms are too short; 3 of 262 ms fit into a second
        (1e4, 64 << 10, 2),  # slow as it is, it is measured twice
        (1e9, 64 << 20, 5),  # 67 ms is the largest transfer
    ],
)
def test_the_leading_end_measures_and_the_other_follows_to_the_end(
    bytes_per_s: float, size: int, kept: int
) -> None:
    there: queue.Queue[int] = queue.Queue()
    back: queue.Queue[int] = queue.Queue()
    leading, following = Pipe(there, back), Pipe(back, there)
    other = threading.Thread(target=follow, args=(following,), daemon=True)
    other.start()
    found = lead(leading, Limits(), Clock(leading, bytes_per_s))
    other.join(120)
    assert not other.is_alive()
    assert len(found.round_trip_s) == 50
    assert found.round_trip_s[0] == pytest.approx(10e-6 + 8 / bytes_per_s)
    assert found.bytes == size
    assert found.transfer_s == pytest.approx([size / bytes_per_s] * kept, rel=1e-3)
    assert following.got.count(size) == kept + 1  # one that found the size


def test_a_node_is_called_as_the_launcher_was_told() -> None:
    nodes = ("n1", "n2")
    srun, mpirun = RankPlace("srun", 1, 2, 0), RankPlace("mpirun", 1, 2, 0)
    assert node_name(nodes, mpirun, "n1", {}) == "n1"
    assert node_name(("n1.site.org", "n2.site.org"), mpirun, "n1", {}) == "n1.site.org"
    assert node_name(nodes, srun, "here", {"SLURMD_NODENAME": "n1"}) == "n1"
    # mpirun and horovodrun may have copied it from the first node.
    assert node_name(nodes, mpirun, "here", {"SLURMD_NODENAME": "n1"}) == "n2"


SLURM = Machine(
    hosts=(Host("n1", 8, 8), Host("n2", 8, 8), Host("n3", 8, 8)),
    device="cpu",
    mpi=Mpi("openmpi", "4.1.4", "/usr/bin/mpirun"),
    slurm=Slurm("7", mpi_plugins=("none", "pmix")),
    launchers={"srun": "/usr/bin/srun", "mpirun": "/usr/bin/mpirun"},
    modules=frozenset({"torch", "mpi4py"}),
)


def test_what_starts_the_programs() -> None:
    made = starting_config(SLURM, ("n1", "n2"), "speed")
    assert (made.launcher, str(made.placement)) == ("srun", "2x1")
    preferring = Machine(**{**vars(SLURM), "launcher": "mpirun"})
    assert starting_config(preferring, ("n1", "n2"), "gloo").launcher == "mpirun"
    assert resolve(starting_config(SLURM, ("n1", "n2"), "mpi"), SLURM).backend == "mpi"
    alone = Machine(hosts=(Host("here", 4, 4),), device="cpu")
    assert starting_config(alone, ("here",), "speed").launcher == "inline"
    with pytest.raises(ValidationError, match="neither srun, mpirun nor horovodrun"):
        starting_config(
            Machine(hosts=SLURM.hosts, device="cpu", slurm=SLURM.slurm), ("n1", "n2"), "gloo"
        )
    gpus = Machine(**{**vars(SLURM), "device": "cuda"})
    for launcher in ("srun", "mpirun"):
        there = Machine(**{**vars(gpus), "launcher": launcher})
        of_nccl = resolve(starting_config(there, ("n1", "n2"), "nccl"), there)
        assert (of_nccl.launcher, of_nccl.backend) == (launcher, "nccl")
    assert [host.name for host in of_nodes(SLURM, ("n1", "n3")).hosts] == ["n1", "n3"]


def test_without_mpi4py_or_mpirun_mpi_is_not_measured() -> None:
    assert no_mpi(SLURM) == ""
    assert no_mpi(Machine(**{**vars(SLURM), "modules": frozenset()})) == (
        "mpi: mpi4py is not installed"
    )
    assert no_mpi(Machine(**{**vars(SLURM), "mpi": None})) == "mpi: there is no mpirun here"


def test_what_every_node_trains() -> None:
    assert trained_config(None, None, "cpu").workload.name == "stress_strain"
    gpu = trained_config(None, None, "cuda")
    assert (gpu.workload.name, gpu.batch_size, gpu.engine) == ("resnet", 64, "none")
    sweep = parse_sweep(
        {
            "name": "s",
            "workload": {"name": "stress_strain", "samples": 2000},
            "scaling": "strong",
            "global_batch_size": 80,
            "placement": ["1x2"],
            "execution": {"precision": "bf16"},
        }
    )
    of_sweep = trained_config(sweep, None, "cpu")
    assert of_sweep.workload.options == {"samples": 2000}
    assert (of_sweep.batch_size, of_sweep.execution.precision) == (40, "bf16")
    assert trained_config(sweep, "lstm", "cpu").workload.options == {"length": 1_000_000}


def test_a_program_that_even_a_kill_does_not_end_was_late(tmp_path: Path) -> None:
    class Stuck:
        killed = 0

        def poll(self) -> None:
            """It runs."""

        def kill(self) -> None:
            self.killed += 1

        def wait(self, timeout: float) -> None:
            raise subprocess.TimeoutExpired("stuck", timeout)

    stuck = Stuck()
    child = rank.Child("training on device 0", stuck, tmp_path)  # type: ignore[arg-type]
    rank._wait([child], timeout_s=0.0)
    assert stuck.killed == 1
    assert child.fault() == "training on device 0 did not end in time"
