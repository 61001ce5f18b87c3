"""A record counts only if it is right: what must hold after a window, on all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.errors import LaunchError
from harness.measure.window import RankWindow
from harness.record import BackendProof
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
