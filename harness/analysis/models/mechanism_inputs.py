"""What the mechanism of one curve is made of, and whether that is enough; see ``mechanism``."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.models.api import Network
from harness.analysis.models.jitter import Jitter, read_jitter
from harness.analysis.models.measured import Facts, Measured, facts_of, measured_points
from harness.analysis.results import Results
from harness.analysis.scaling import Curve
from harness.collectives.record import CollectivesRecord
from harness.errors import AnalysisError


@dataclass(frozen=True, eq=False)
class Inputs:
    """All that the mechanism of one curve is made of."""

    curve: Curve
    facts: Facts
    alone: tuple[Measured, ...]  # N = 1
    reduced: tuple[Measured, ...]  # two ranks or more, in order of N
    jitter: Jitter
    network: Network | None
    allreduce: CollectivesRecord | None


def gather(
    results: Results,
    curve: Curve,
    network: Network | None,
    allreduce: CollectivesRecord | None,
) -> Inputs:
    """Return what the mechanism is made of; AnalysisError where that is too little."""
    if curve.engine == "none":
        raise AnalysisError(f"{curve.label}: engine none is one device, there is nothing to scale")
    points = measured_points(curve)
    reduced = tuple(one for one in points if one.place.world_size > 1 and one.isolated_s)
    counts = {one.place.world_size for one in reduced}
    if not counts:
        raise AnalysisError(
            f"{curve.label}: one device cannot show what an all-reduce costs; measure at 2 and more"
        )
    if len(counts) < 2 and allreduce is None:
        there = ", ".join(str(one.place.world_size) for one in points)
        raise AnalysisError(
            f"{curve.label}: N = {there} alone cannot show dependence on N; measure at one more "
            "device count (e.g. --set placement=[1,2,4]), or give a result of hvdscale allreduce "
            "(--allreduce DIR)"
        )
    most = reduced[-1]
    scales = {part.run_id: part.scale for part in most.parts}
    launches = [(part.block, part.run_id) for part in most.parts]
    return Inputs(
        curve=curve,
        facts=facts_of(results, curve),
        alone=tuple(one for one in points if one.place.world_size == 1),
        reduced=reduced,
        jitter=read_jitter(launches, results.steps, scales),
        network=network,
        allreduce=allreduce,
    )
