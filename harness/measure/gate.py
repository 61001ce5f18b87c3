"""A record counts only if it is right: what must hold on all ranks, before and after a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from harness.errors import LaunchError
from harness.measure.seats import Seat, nodes_of, placed, runs
from harness.measure.window import RankWindow
from harness.record import BackendProof, Placed
from harness.spec import Resolved


def check_window(
    windows: Sequence[RankWindow],
    checksums: Sequence[str],
    *,
    gradient_bytes: int,
    gradient_allreduce: bool,
) -> None:
    """Raise LaunchError where ranks hold different weights, a loss is not finite, or the bytes
    reduced are not the gradient's times the steps.
    """
    _check_losses(windows)
    check_checksums(checksums)
    check_reduced(
        [window.reduced_bytes for window in windows],
        len(windows[0].step_s),
        gradient_bytes=gradient_bytes,
        gradient_allreduce=gradient_allreduce,
        during="window",
    )


def check_reduced(
    reduced_bytes: Sequence[int],
    steps: int,
    *,
    gradient_bytes: int,
    gradient_allreduce: bool,
    during: str,
) -> None:
    """Raise LaunchError where a rank reduced other bytes than the gradient's times the steps.

    ``during`` is what the steps are of: the window, or a training.
    """
    if not gradient_allreduce:
        if len(reduced_bytes) > 1:
            raise LaunchError(
                f"{len(reduced_bytes)} ranks trained, and the engine did no all-reduce"
            )
        return
    wanted = gradient_bytes * steps
    for rank, found in enumerate(reduced_bytes):
        if found != wanted:
            raise LaunchError(
                f"rank {rank} reduced {found} bytes in the {during}, but gradient bytes × steps = "
                f"{gradient_bytes} × {steps} = {wanted}"
            )


def _check_losses(windows: Sequence[RankWindow]) -> None:
    """Raise LaunchError for the first loss that is not finite.

    One step later it is that of all ranks, because their gradients are averaged; where it is at the
    first step already, a gradient was not finite before.
    """
    wrong = {r: np.flatnonzero(~np.isfinite(w.losses)) for r, w in enumerate(windows)}
    first = min((bad[0] for bad in wrong.values() if len(bad)), default=None)
    if first is None:
        return
    who = [rank for rank, bad in wrong.items() if len(bad) and bad[0] == first]
    value = windows[who[0]].losses[first]
    if len(who) == len(windows) > 1:
        raise LaunchError(
            f"the loss of all ranks is {value} from step {first} of the window on, so a gradient "
            "was not finite before: lower the learning rate, or look at the data"
        )
    raise LaunchError(
        f"the loss of rank {', '.join(map(str, who))} is {value} at step {first} of the window: "
        "lower the learning rate, or look at the data"
    )


def check_software(versions: Sequence[Mapping[str, str]]) -> None:
    """Raise LaunchError where ranks have other versions than rank 0; package → version, each rank.

    What was measured would be neither the one's nor the other's.
    """
    for rank, here in enumerate(versions):
        for name in sorted({*here, *versions[0]}):
            mine, first = here.get(name, "none"), versions[0].get(name, "none")
            if mine != first:
                raise LaunchError(
                    f"rank {rank} has {name} {mine}, and rank 0 has {first}: give all nodes the "
                    "same environment (hvdscale preflight compares them)"
                )


def check_checksums(checksums: Sequence[str]) -> None:
    """Raise LaunchError where ranks hold different weights."""
    differing = [r for r, checksum in enumerate(checksums) if checksum != checksums[0]]
    if differing:
        raise LaunchError(
            f"at the end the parameters of rank(s) {differing} differ from rank 0's: "
            "gradients were not synchronised"
        )


def check_placement(seats: Sequence[Seat], resolved: Resolved) -> Placed:
    """Return where the ranks are, every rank's seat given in order.

    LaunchError where the ranks of a host, one host after the other, are not as many as was asked
    for. Names are not compared: Slurm, a host and a container may each have their own.
    """
    got = runs(seats)
    if tuple(ranks for _, ranks in got) != resolved.placement:
        raise LaunchError(
            f"placement: asked for {_plus(resolved.placement)}, got {_plus(n for _, n in got)} on "
            f"{_few([host for host, _ in got])}; see what else tells the launcher where ranks go "
            "(a hostfile, SLURM_DISTRIBUTION, OMPI_MCA_rmaps_*)"
        )
    return placed(seats)


def check_local_sizes(seats: Sequence[Seat], launcher: str) -> Placed:
    """Return where the ranks are; of a launch that a person typed nothing else was asked for.

    LaunchError where the launcher told a rank of more or fewer ranks on its node than are there.
    """
    nodes = nodes_of(seats)
    for rank, seat in enumerate(seats):
        there = nodes.count(nodes[rank])
        if seat.local_size not in (0, there):
            raise LaunchError(
                f"placement: {launcher} told rank {rank} of {seat.local_size} rank(s) on its node, "
                f"but {there} are on {seat.host}; start all ranks with one launcher, and give each "
                "node a host name of its own"
            )
    return placed(seats)


def _plus(counts: Iterable[int]) -> str:
    return "+".join(map(str, counts))


def _few(hosts: Sequence[str], most: int = 8) -> str:
    more = f" and {len(hosts) - most} more" if len(hosts) > most else ""
    return ", ".join(hosts[:most]) + more


def check_backend(proofs: Sequence[BackendProof], resolved: Resolved) -> None:
    """Raise LaunchError where backend or controller is not what was asked for, on any rank."""
    for rank, proof in enumerate(proofs):
        if proof.proven != resolved.backend:
            raise LaunchError(
                f"backend {resolved.backend} was asked for, but on rank {rank} "
                f"{proof.proven or 'an unproven one'} moves the gradients ({proof.evidence})"
            )
        if proof.controller != resolved.controller:
            raise LaunchError(
                f"controller {resolved.controller} was asked for, but rank {rank} negotiates over "
                f"{proof.controller or 'an unknown one'} ({proof.evidence})"
            )
