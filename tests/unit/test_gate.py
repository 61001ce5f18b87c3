"""A record counts only if it is right: each wrong thing is refused, with the rank named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.errors import LaunchError
from harness.measure.gate import (
    check_backend,
    check_local_sizes,
    check_placement,
    check_software,
    check_window,
)
from harness.measure.seats import Seat
from harness.measure.window import RankWindow
from harness.record import BackendProof
from harness.spec import Resolved

STEPS, BYTES = 4, 400


def window(**changes: Any) -> RankWindow:
    good = RankWindow(1e9, 1.0, np.full(STEPS, 0.25), np.full(STEPS, 0.1), STEPS * BYTES)
    return replace(good, **changes)


def check(windows: list[RankWindow], checksums: list[str], allreduce: bool = True) -> None:
    check_window(windows, checksums, gradient_bytes=BYTES, gradient_allreduce=allreduce)


def test_right_data_passes() -> None:
    check([window(), window(), window()], ["a", "a", "a"])
    check([window(reduced_bytes=0)], ["a"], allreduce=False)


def test_ranks_with_other_weights_are_named() -> None:
    with pytest.raises(LaunchError, match=r"parameters of rank\(s\) \[1, 3\] differ from rank 0's"):
        check([window()] * 4, ["a", "b", "a", "c"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite(bad: float) -> None:
    losses = np.array([0.1, 0.1, bad, bad])
    with pytest.raises(LaunchError, match=f"loss of rank 1 is {bad} at step 2 .* lower the learn"):
        check([window(), window(losses=losses)], ["a", "a"])
    with pytest.raises(LaunchError, match="loss of rank 0 is"):
        check([window(losses=losses, reduced_bytes=0)], ["a"], allreduce=False)


@pytest.mark.parametrize("reduced", [0, STEPS * BYTES - 4, STEPS * BYTES + 4, 2 * STEPS * BYTES])
def test_wrong_bytes(reduced: int) -> None:
    with pytest.raises(LaunchError, match=f"rank 1 reduced {reduced} bytes .* 400 × 4 = 1600"):
        check([window(), window(reduced_bytes=reduced)], ["a", "a"])


@pytest.mark.parametrize("reduced", [0, STEPS * BYTES])
def test_several_ranks_cannot_do_without_an_all_reduce(reduced: int) -> None:
    """Equal weights without one would be luck, and an engine that says so is wrong."""
    with pytest.raises(LaunchError, match="2 ranks trained, and the engine did no all-reduce"):
        check([window(reduced_bytes=reduced)] * 2, ["a", "a"], allreduce=False)


def proof(proven: str | None, controller: str | None = "mpi") -> BackendProof:
    return BackendProof(
        requested="mpi", proven=proven, controller=controller, evidence={"mpi_enabled": "False"}
    )


def asked(backend: str | None, controller: str | None = "mpi") -> Resolved:
    return Resolved(
        launcher="mpirun",
        backend=backend,
        controller=controller,
        placement=(2,),
        hosts=("a",),
        device="cpu",
        cores_per_rank=1,
        bind=False,
    )


def test_the_backend_asked_for_passes() -> None:
    check_backend([proof("mpi"), proof("mpi")], asked("mpi"))
    check_backend([proof(None, None)], asked(None, None))


@pytest.mark.parametrize(("proven", "said"), [("gloo", "gloo"), (None, "an unproven one")])
def test_another_backend_is_refused_with_its_evidence(proven: str | None, said: str) -> None:
    with pytest.raises(LaunchError, match=f"backend mpi .* on rank 1 {said} moves .*mpi_enabled"):
        check_backend([proof("mpi"), proof(proven)], asked("mpi"))


def test_a_backend_where_none_was_asked_for_is_refused() -> None:
    with pytest.raises(LaunchError, match="on rank 0 nccl moves"):
        check_backend([proof("nccl")], asked(None))


@pytest.mark.parametrize(("controller", "said"), [("gloo", "gloo"), (None, "an unknown one")])
def test_another_controller_is_refused(controller: str | None, said: str) -> None:
    with pytest.raises(LaunchError, match=f"controller mpi .* rank 1 negotiates over {said}"):
        check_backend([proof("mpi"), proof("mpi", controller)], asked("mpi"))


def on(host: str, local_rank: int, kernel: str = "", told: int = 0) -> Seat:
    return Seat(host, kernel or f"kernel of {host}", local_rank, told)


def node(host: str, ranks: int, kernel: str = "", told: int = 0) -> list[Seat]:
    return [on(host, local_rank, kernel, told) for local_rank in range(ranks)]


def wanted(*placement: int) -> Resolved:
    hosts = tuple(f"n{number}" for number in range(len(placement)))
    return asked("mpi").model_copy(update={"placement": placement, "hosts": hosts})


@pytest.mark.parametrize(
    ("seats", "placement", "hosts"),
    [
        (node("n0", 8) + node("n1", 2), (8, 2), ("n0", "n1")),
        # Names are the hosts' own, and none of them is the one that Slurm has.
        (node("n0.cluster", 1) + node("other", 1), (1, 1), ("n0.cluster", "other")),
        (node("1f0c4a", 3), (3,), ("1f0c4a",)),
        # A container a rank, on one host: one kernel, and local ranks that go on.
        ([on("c1", 0, "k"), on("c2", 1, "k")], (2,), ("c1",)),
        # Such containers on two hosts.
        (
            [on("c1", 0, "k"), on("c2", 1, "k"), on("c3", 0, "l"), on("c4", 1, "l")],
            (2, 2),
            ("c1", "c3"),
        ),
        # Namespaces of one kernel, each a node; and those that share the machine's name, too.
        (node("a", 1, "k") + node("b", 2, "k"), (1, 2), ("a", "b")),
        (node("a", 1, "k") + node("a", 2, "k"), (1, 2), ("a", "a")),
        # Two machines that are both called localhost.
        (node("localhost", 2, "k") + node("localhost", 2, "l"), (2, 2), ("localhost",) * 2),
    ],
)
def test_the_placement_asked_for_passes(
    seats: list[Seat], placement: tuple[int, ...], hosts: tuple[str, ...]
) -> None:
    found = check_placement(seats, wanted(*placement))
    assert (found.ranks_per_host, found.hosts) == (placement, hosts)
    assert found.local_ranks == tuple(seat.local_rank for seat in seats)


@pytest.mark.parametrize(
    ("seats", "placement", "said"),
    [
        (node("a", 5) + node("b", 5), (8, 2), r"asked for 8\+2, got 5\+5 on a, b; see"),
        (node("b", 2) + node("a", 8), (8, 2), r"asked for 8\+2, got 2\+8 on b, a;"),
        (node("a", 4), (2, 2), r"asked for 2\+2, got 4 on a;"),
        (node("a", 2) + node("b", 2), (4,), r"asked for 4, got 2\+2 on a, b;"),
        # In turn: as many on each host, and every hop of the ring goes between hosts.
        (
            [on("a", 0), on("b", 0), on("a", 1), on("b", 1)],
            (2, 2),
            r"asked for 2\+2, got 1\+1\+1\+1 on a, b, a, b;",
        ),
        # Both of local rank 0: they would share their device and their cores.
        ([on("a", 0), on("a", 0)], (2,), r"asked for 2, got 1\+1 on a, a;"),
        (
            [seat for n in range(12) for seat in node(f"n{n}", 1)],
            (12,),
            r"on n0, n1, n2, n3, n4, n5, n6, n7 and 4 more;",
        ),
    ],
)
def test_another_placement_is_refused(
    seats: list[Seat], placement: tuple[int, ...], said: str
) -> None:
    with pytest.raises(LaunchError, match=said):
        check_placement(seats, wanted(*placement))


def test_by_hand_it_is_what_the_launcher_said_of_each_node() -> None:
    found = check_local_sizes(node("a", 3, told=3) + node("b", 1, told=1), "mpirun")
    assert (found.hosts, found.ranks_per_host) == (("a", "b"), (3, 1))
    # In turn is as good as one after the other, and srun without a count tells nothing.
    in_turn = [on("a", 0), on("b", 0), on("a", 1), on("b", 1)]
    assert check_local_sizes(in_turn, "srun").ranks_per_host == (2, 2)
    mixed = [on("a", 0, told=2), on("b", 0, told=2), on("b", 1, told=2)]
    with pytest.raises(LaunchError, match=r"mpirun told rank 0 of 2 rank\(s\) on its node, but 1 "):
        check_local_sizes(mixed, "mpirun")


def test_the_loss_that_was_wrong_first_is_named() -> None:
    """Rank 1's data were bad at step 1; the step after, the average has spoilt rank 0's weights."""
    first, second = np.full(STEPS, 0.1), np.full(STEPS, 0.1)
    first[2:], second[1:] = np.nan, np.nan
    with pytest.raises(LaunchError, match=r"^the loss of rank 1 is nan at step 1 of the window: "):
        check([window(losses=first), window(losses=second)], ["a", "a"])


def test_losses_that_are_wrong_together_come_from_a_gradient() -> None:
    losses = np.array([0.1, np.nan, np.nan, np.nan])
    said = r"^the loss of all ranks is nan from step 1 of the window on, so a gradient was not fin"
    with pytest.raises(LaunchError, match=said):
        check([window(losses=losses)] * 2, ["a", "a"])


def test_other_software_on_a_rank_is_refused() -> None:
    same = {"Python": "3.11.7", "torch": "2.13.0"}
    check_software([same, dict(same)])
    with pytest.raises(LaunchError, match=r"^rank 2 has torch 2\.12\.1, and rank 0 has 2\.13\.0: "):
        check_software([same, same, same | {"torch": "2.12.1"}])
    with pytest.raises(LaunchError, match=r"^rank 1 has horovod none, and rank 0 has 0\.28\.1: "):
        check_software([same | {"horovod": "0.28.1"}, same])
