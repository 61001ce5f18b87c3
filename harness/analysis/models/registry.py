"""The models a curve may be fitted with: name → ``module:function``, imported when it is fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from harness.analysis.models.api import Fit, Model, Network
from harness.analysis.scaling import Curve

if TYPE_CHECKING:
    from harness.analysis.results import Results
    from harness.collectives.record import CollectivesRecord

_HERE = "harness.analysis.models"
#: Fitted to a curve alone: a ``Fit``.
LAWS: dict[str, str] = {
    "amdahl": f"{_HERE}.amdahl:fit_amdahl",
    "amdahl from 2": f"{_HERE}.amdahl:fit_amdahl_from_2",
    "gustafson": f"{_HERE}.gustafson:fit_gustafson",
    "gustafson from 2": f"{_HERE}.gustafson:fit_gustafson_from_2",
    "usl": f"{_HERE}.usl:fit_usl",
    "usl from 2": f"{_HERE}.usl:fit_usl_from_2",
}
#: Made of measured parts, so given the results, too, and what is known of the network.
MECHANISMS: dict[str, str] = {"mechanism": f"{_HERE}.mechanism:fit_mechanism"}


@dataclass(frozen=True)
class Sources:
    """What a model may be made of, besides the curve."""

    results: Results
    network: Network | None = None
    allreduce: CollectivesRecord | None = None


def names_for(curve: Curve) -> tuple[str, ...]:
    """Return the models to try; those from N = 2 on only where there is an N = 1 to leave out."""
    alone = any(point.world_size == 1 for point in curve.points)
    return tuple(
        name for name in (*LAWS, *MECHANISMS) if alone or not name.endswith(" from 2")
    )  # fmt: skip


def fit(name: str, curve: Curve, sources: Sources) -> Model:
    """Fit a model by its name; AnalysisError (or what its sources raise) where that cannot be."""
    if name in LAWS:
        law: Fit = _function(LAWS[name])
        return law(curve)
    mechanism = _function(MECHANISMS[name])
    found: Model = mechanism(
        sources.results, curve, network=sources.network, allreduce=sources.allreduce
    )
    return found


def _function(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found
