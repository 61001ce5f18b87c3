"""A record counts only if it is right: each wrong thing is refused, with the rank named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.errors import LaunchError
from harness.measure.gate import check_backend, check_window
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


def test_several_ranks_cannot_do_without_an_all_reduce() -> None:
    """Equal weights without one would be luck, and an engine that says so is wrong."""
    with pytest.raises(LaunchError, match=r"2 ranks .* no all-reduce"):
        check([window(reduced_bytes=0)] * 2, ["a", "a"], allreduce=False)


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
