"""What the records cannot tell, and what to run so that they could; a sentence each."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from harness.analysis.advise.costs import Draft, noise_ends
from harness.analysis.advise.measured import Speed
from harness.analysis.advise.trained import Training
from harness.analysis.advise.types import Target
from harness.analysis.results import Results
from harness.stats import Interval

NO_BASE = "trainings have no base"
ONE_POINT_EACH = (
    "each batch size (or precision) was measured at one point only, so to choose one would be to "
    "choose a batch size, which throughput alone cannot; measure several placements, e.g. with "
    "--set 'placement=[1,2,4]', or train"
)
_SHOWN = 3


def target_text(target: Target, training: Training) -> str:
    """Return e.g. ``mse ≤ 0.002``."""
    sign = "≤" if training.point.lower_is_better else "≥"
    return f"{target.metric} {sign} {target.value:g}"


def train_command(results: Sequence[Results], *settings: str) -> str:
    """Return the command that trains what a sweep measured, on where one trained already."""
    first = next((one for one in results if one.trainings), next(iter(results), None))
    source = str(first.folder / "sweep.yaml") if first else "SWEEP.yaml"
    words = ["hvdscale", "train", source]
    for setting in settings:
        words += ["--set", setting]
    return " ".join(map(shlex.quote, words))


def untrained(target: Target, results: Sequence[Results]) -> str:
    """Say that this job has no training with the metric."""
    command = train_command(results, f"train.target={target.value:g}")
    return f"no training of it has the metric {target.metric}; run: {command}"


def no_step(results: Sequence[Results]) -> str:
    """Say that nothing is known of a job whose trainings were evaluated before any step alone."""
    command = train_command(results, "train.epochs=10")
    return f"its trainings were evaluated before their first step alone; train longer: {command}"


def not_reached(target: Target, trained: Sequence[Training], results: Sequence[Results]) -> str:
    """Say how far the trainings came, and how to train them further."""
    best = min(trained, key=lambda one: one.best() * (1 if one.point.lower_is_better else -1))
    text = target_text(target, best)
    hits = [hit for one in trained for _, hit in one.hits(target) if hit is not None]
    if hits and all(hit.step == 0 for hit in hits):
        return f"{text} is reached before the first step; name a harder target"
    partly = [one for one in trained if any(hit is not None for _, hit in one.hits(target))]
    if partly:
        one = partly[0]
        count = sum(hit is not None for _, hit in one.hits(target))
        return (
            f"no point reached {text} in all of its trainings (the first: {count} of "
            f"{len(one.runs)}); train longer: {_further(target, results, trained)}"
        )
    place = f"global batch {best.point.global_batch}, N={best.point.world_size}"
    epochs = max(run.trained.moments[-1].epoch for run in best.runs)
    own = best.point.target
    # A training ends at its own target, where it gets there.
    early = own is not None and any(
        hit is not None for _, hit in best.hits(Target(target.metric, own))
    )
    why = f"; it ended at its own target of {own:g}" if early else ""
    return (
        f"no training reached {text}; the best came to {best.best():.4g} ({place}, {epochs:.3g} "
        f"epochs){why}; train further: {_further(target, results, trained)}"
    )


def _further(target: Target, results: Sequence[Results], trained: Sequence[Training]) -> str:
    epochs = max(run.trained.moments[-1].epoch for one in trained for run in one.runs)
    return train_command(
        results, f"train.target={target.value:g}", f"train.epochs={2 * math.ceil(epochs)}"
    )


def of_training(
    target: Target, trained: Sequence[Training], drafts: Sequence[Draft], *, implied: bool
) -> list[str]:
    """Say what a time to the target is, and whom it leaves out."""
    found = []
    if implied:
        found.append(f"the target is that of the trainings, {target_text(target, trained[0])}")
    found.append("times are of training steps alone, without evaluations and checkpoints")
    short = []
    for one in trained:
        count = sum(hit is not None for _, hit in one.hits(target))
        if count < len(one.runs):
            p = one.point
            short.append(
                f"N={p.world_size} at global batch {p.global_batch} ({count} of {len(one.runs)})"
            )
    if short:
        found.append(f"trained, but not each time to the target, so not counted: {_listed(short)}")
    if len({run.seed for one in trained for run in one.runs}) == 1:
        found.append(
            "all trainings have one seed: what other seeds would need is in no interval "
            "(make seed an axis to see it)"
        )
    if any(draft.candidate.basis == "computed" for draft in drafts):
        found.append(
            "computed: epochs to the target as trained at the same global batch elsewhere × the "
            "epoch time measured at the point; train it to be sure"
        )
    return found


def not_judged(unknown: Sequence[Speed], results: Sequence[Results]) -> list[str]:
    """Name the points whose time to the target nothing tells."""
    if not unknown:
        return []
    batches = sorted({one.global_batch for one in unknown})
    points = "1 point is" if len(unknown) == 1 else f"{len(unknown)} points are"
    return [
        f"{points} not judged: no training at global batch {_listed(list(map(str, batches)))}, and "
        f"no gradient noise scale to carry another's; run: {train_command(results)}"
    ]


def noise(found: Interval) -> str:
    """Say what the noise scale is, how well it is known and what using it supposes."""
    low, high = noise_ends(found)
    ends = "one estimate, which scatters widely"
    if found.has_interval:
        most = "no upper end" if low == 0 else _samples(low)
        ends = f"[{_samples(high)}, {most}] over {found.n} evaluations"
    return (
        f"gradient noise scale {_samples(found.estimate)} samples, {ends}; epochs grow as 1 + "
        "global batch / noise scale (McCandlish et al. 2018), if the learning rate suits each batch"
    )


def _samples(inverse: float) -> str:
    """Return 1 / ``inverse`` as a count of samples, which may be below one."""
    return f"{1 / inverse:,.0f}" if inverse <= 0.1 else f"{1 / inverse:.2g}"


def progress(results: Sequence[Results]) -> str:
    """Say what a cost by the noise scale alone is not."""
    return (
        "no target was reached, so this is no time to one: it compares batch sizes by the noise "
        f"scale alone; for a time run: {train_command(results, 'train.target=VALUE')}"
    )


def no_batch_chosen(
    found: Sequence[Speed], trained: Sequence[Training], results: Sequence[Results]
) -> list[str]:
    """Say that throughput chooses no batch size, and what to run to choose one."""
    if len({one.global_batch for one in found}) < 2:
        return []
    why = "no batch size is chosen: throughput alone does not tell how many epochs one needs"
    if trained:  # what they lack is said beside it: one target, or one that was reached
        said = [f"{why}, and no training to one target does"]
    else:
        said = [
            f"{why}, and no training to a target or gradient noise scale of this job was "
            f"given; run: {train_command(results, 'train.target=VALUE', 'train.epochs=10')}"
        ]
    if any(one.scaling == "weak" and one.world_size > 1 for one in found):
        said.append(
            "with a rank's batch constant the global batch grows with N: costs are of an epoch, "
            "and with more devices more epochs may be needed"
        )
    return said


def failed(sweeps: Sequence[Results]) -> list[str]:
    """Name the launches that failed: their points have fewer blocks, or are no candidates."""
    missing = [one for sweep in sweeps for one in sweep.missing]
    if not missing:
        return []
    names = list(dict.fromkeys(one.what or one.run_id for one in missing))
    count = "1 launch" if len(missing) == 1 else f"{len(missing)} launches"
    return [f"{count} failed and count for nothing: {_listed(names)}"]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
