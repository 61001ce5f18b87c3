"""A record counts only if it is right: what must hold on all ranks, before and after a window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    for rank, window in enumerate(windows):
        bad = np.flatnonzero(~np.isfinite(window.losses))
        if len(bad):
            raise LaunchError(
                f"the loss of rank {rank} is {window.losses[bad[0]]} at step {bad[0]} of the "
                "window: lower the learning rate, or look at the data"
            )
    check_checksums(checksums)
    if not gradient_allreduce:
        if len(windows) > 1:
            raise LaunchError(f"{len(windows)} ranks trained, and the engine did no all-reduce")
        return
    for rank, window in enumerate(windows):
        wanted = gradient_bytes * len(window.step_s)
        if window.reduced_bytes != wanted:
            raise LaunchError(
                f"rank {rank} reduced {window.reduced_bytes} bytes in the window, but gradient "
                f"bytes × steps = {gradient_bytes} × {len(window.step_s)} = {wanted}"
            )


def check_checksums(checksums: Sequence[str]) -> None:
    """Raise LaunchError where ranks hold different weights."""
    differing = [r for r, checksum in enumerate(checksums) if checksum != checksums[0]]
    if differing:
        raise LaunchError(
            f"after the window the parameters of rank(s) {differing} differ from rank 0's: "
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
