"""From sweeps to answers: which questions the records can answer, and what would answer the rest.

Points of one job (workload, framework, options) on one kind of device compete. A batch size, like a
precision, is chosen only where it is known what it costs in epochs:

1. With a target (the goal's, or the one that all trainings share) the cost is training to it. A
   point that was not trained costs the epochs that another training took at the same global batch
   times its own epoch time; from another global batch only by the gradient noise scale.
2. Without one, but with the noise scale, the cost is the progress of one epoch with small batches:
   1 + B / B_noise epochs (McCandlish, Kaplan, Amodei et al. 2018, E = E_min (1 + B / B_noise)).
3. With neither the cost is an epoch, and each batch size has an answer of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis.advise import sentences
from harness.analysis.advise.answering import Question, answer, unchosen
from harness.analysis.advise.costs import Draft, epoch_speeds, finished, of_epochs, of_progress
from harness.analysis.advise.costs import of_target as costs_of_target
from harness.analysis.advise.keys import job_names, job_of, numerics_of, numerics_text
from harness.analysis.advise.measured import Speed, speeds
from harness.analysis.advise.trained import Training, noise_scale, trainings_of
from harness.analysis.advise.types import Advice, Answer, Goal, Target
from harness.analysis.advise.worth import worth_measuring
from harness.analysis.results import Results, nothing_measured
from harness.analysis.unlike import refuse_unlike, what_differs
from harness.errors import AnalysisError, did_you_mean
from harness.stats import Interval

Numerics = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Job:
    """All that was measured of one job on one kind of device."""

    name: str
    speeds: tuple[Speed, ...]
    trainings: tuple[Training, ...]
    results: tuple[Results, ...]

    @property
    def numerics(self) -> list[Numerics]:
        """Return each kind of numerics, in the order in which they are met."""
        places = [*(s.place for s in self.speeds), *(t.place for t in self.trainings)]
        return list(dict.fromkeys(numerics_of(place.config) for place in places))

    def of(self, numerics: Numerics) -> tuple[list[Speed], list[Training]]:
        """Return what has these numerics."""
        return (
            [one for one in self.speeds if numerics_of(one.place.config) == numerics],
            [one for one in self.trainings if numerics_of(one.place.config) == numerics],
        )


def advise(
    results: Sequence[Results], goal: Goal, *, mixed: bool = False, look_ahead: bool = False
) -> Advice:
    """Return what to ask for, from the records of one or several sweeps.

    ``look_ahead`` fits scaling models (seconds a curve) to say what is worth measuring next.

    Raises AnalysisError where nothing was measured, where a job's launches ran on unlike hardware
    or software and ``mixed`` is False, and where no training knows the goal's metric. What single
    questions lack is said in their answers.
    """
    sweeps = list({one.folder.resolve(): one for one in results}.values())
    found, trained = speeds(sweeps), trainings_of(sweeps)
    if not found and not trained:
        raise AnalysisError(
            "; ".join(nothing_measured(one.folder, one.failures) for one in sweeps)
            or "no sweep was given"
        )
    _check_target(goal.target, trained)
    notes = [*_unlike(sweeps, found, trained, mixed)]
    notes += [
        nothing_measured(one.folder, one.failures)
        for one in sweeps
        if not one.curves and not one.trainings
    ]
    notes += sentences.failed(sweeps)
    answers: list[Answer] = []
    for job in _jobs(sweeps, found, trained):
        answers += _answers(job, goal)
    if look_ahead:
        answers = [replace(one, next=worth_measuring(one, goal, sweeps)) for one in answers]
    return Advice(goal=goal, answers=tuple(answers), notes=tuple(notes))


def _jobs(
    sweeps: Sequence[Results], found: Iterable[Speed], trained: Iterable[Training]
) -> list[Job]:
    groups: dict[tuple[object, str], tuple[list[Speed], list[Training]]] = {}
    for speed in found:
        key = (job_of(speed.place.config), speed.place.device)
        groups.setdefault(key, ([], []))[0].append(speed)
    for training in trained:
        key = (job_of(training.place.config), training.place.device)
        groups.setdefault(key, ([], []))[1].append(training)
    jobs = [job_of(_config(*group)) for group in groups.values()]
    named = zip(groups.items(), job_names(jobs), strict=True)
    made = []
    for ((_, device), (own, trainings)), name in named:
        where = {"cpu": "CPU", "cuda": "GPU"}.get(device, device)
        used = {n for one in own for n in one.sweeps} | {n for t in trainings for n in t.sweeps}
        of_job = tuple(one for one in sweeps if one.name in used)
        # Without windows the epoch time of trainings is all there is; with them it is no match.
        epochs = own or epoch_speeds(trainings)
        made.append(Job(f"{name}, {where}", tuple(epochs), tuple(trainings), of_job))
    return made


def _config(found: Sequence[Speed], trained: Sequence[Training]) -> str:
    return (found[0] if found else trained[0]).place.config


def _answers(job: Job, goal: Goal) -> list[Answer]:
    notes: list[str] = []
    target = goal.target
    if target is None:
        target, note = _implied(job)
        notes += [note] if note else []
    elif not any(one.point.metric == target.metric for one in job.trainings):
        return [_refused(job, goal, sentences.untrained(target, job.results))]
    if target is not None:
        found, missed = _to_target(job, goal, target)
        if found is not None:
            return [found]
        if goal.target is not None:
            return [_refused(job, goal, missed)]
        notes.append(missed)
    if any(_noise(job, numerics) for numerics in job.numerics):
        return _by_noise(job, goal, notes)
    return _per_batch(job, goal, notes)


def _to_target(job: Job, goal: Goal, target: Target) -> tuple[Answer | None, str]:
    """Return the answer where a training reached the target, else why there is none."""
    drafts: list[Draft] = []
    unknown: list[Speed] = []
    notes: list[str] = []
    of_metric = [one for one in job.trainings if one.point.metric == target.metric]
    measured = [one for one in job.speeds if one.no_efficiency != sentences.NO_BASE]
    for numerics in job.numerics:
        trained = [one for one in of_metric if numerics_of(one.place.config) == numerics]
        own = [one for one in measured if numerics_of(one.place.config) == numerics]
        noise = noise_scale(trained)
        made, left = costs_of_target(own, trained, target, noise)
        drafts, unknown = [*drafts, *made], [*unknown, *left]
        if noise and any(draft.candidate.basis == "noise scale" for draft in made):
            notes.append(sentences.noise(noise))
    if not drafts:
        return None, sentences.not_reached(target, of_metric, job.results)
    question = Question(
        title=job.name,
        cost_of=f"training to {sentences.target_text(target, of_metric[0])}",
        chooses_batch=True,
        notes=(
            *sentences.of_training(target, of_metric, drafts, implied=goal.target is None),
            *notes,
            *sentences.not_judged(unknown, job.results),
        ),
    )
    return answer(question, finished(drafts), goal), ""


def _by_noise(job: Job, goal: Goal, notes: Sequence[str]) -> list[Answer]:
    answers = []
    for numerics in job.numerics:
        own, _ = job.of(numerics)
        noise = _noise(job, numerics)
        if noise is None or not own:
            answers += _per_batch(replace(job, speeds=tuple(own)), goal, notes) if own else []
            continue
        question = Question(
            title=", ".join(filter(None, (job.name, numerics_text(numerics)))),
            cost_of="the progress of one epoch with small batches",
            chooses_batch=True,
            notes=(*notes, sentences.noise(noise), sentences.progress(job.results)),
        )
        answers.append(answer(question, finished(of_progress(own, noise)), goal))
    return answers


def _noise(job: Job, numerics: Numerics) -> Interval | None:
    return noise_scale(job.of(numerics)[1])


def _per_batch(job: Job, goal: Goal, notes: Sequence[str]) -> list[Answer]:
    """Return an answer for each declared batch size and kind of numerics."""
    if not job.speeds:
        return [_refused(job, goal, sentences.no_step(job.results))]
    groups: dict[tuple[str, int, Numerics], list[Speed]] = {}
    for speed in sorted(job.speeds, key=_batch_order):
        key = (speed.scaling, speed.batch, numerics_of(speed.place.config))
        groups.setdefault(key, []).append(speed)
    said = (*notes, *sentences.no_batch_chosen(job.speeds, job.trainings, job.results))
    single = [own[0] for own in groups.values() if len(own) == 1]
    answers = []
    for (scaling, batch, numerics), own in groups.items():
        if len(own) == 1 and len(single) > 1:
            continue
        of = f"batch {batch} of a rank" if scaling == "weak" else f"global batch {batch}"
        title = ", ".join(filter(None, (job.name, of, numerics_text(numerics))))
        question = Question(title, "an epoch", chooses_batch=False, notes=said)
        answers.append(answer(question, finished(of_epochs(own)), goal))
    if len(single) > 1:
        title = f"{job.name}, batch sizes with one point each"
        question = Question(title, "an epoch", chooses_batch=False, notes=said)
        shown = answer(question, finished(of_epochs(single)), goal)
        answers.append(unchosen(shown, sentences.ONE_POINT_EACH))
    return answers


def _batch_order(speed: Speed) -> tuple[bool, int, str]:
    return (speed.scaling != "weak", speed.batch, numerics_text(numerics_of(speed.place.config)))


def _implied(job: Job) -> tuple[Target | None, str | None]:
    """Return the one target of all trainings, or why there is none to go by."""
    found = {
        Target(one.point.metric, one.point.target)
        for one in job.trainings
        if one.point.target is not None
    }
    if len(found) == 1:
        return found.pop(), None
    if not job.trainings:
        return None, None
    if not found:
        metric = job.trainings[0].point.metric
        return None, f"the trainings had no target; name one: --target {metric}=VALUE"
    texts = sorted(f"{one.metric}={one.value:g}" for one in found)
    return None, f"the trainings had several targets; name one: --target {', '.join(texts)}"


def _check_target(target: Target | None, trained: Sequence[Training]) -> None:
    if target is None:
        return
    metrics = sorted({one.point.metric for one in trained})
    if not metrics:
        raise AnalysisError(
            f"--target {target.metric}={target.value:g}: no training is in these records; "
            f"train first: hvdscale train SWEEP.yaml --set train.target={target.value:g}"
        )
    if target.metric not in metrics:
        raise AnalysisError(
            f"--target: no training has the metric '{target.metric}'"
            f"{did_you_mean(target.metric, metrics)}; there is: {', '.join(metrics)}"
        )


def _refused(job: Job, goal: Goal, why: str) -> Answer:
    of = goal.target.metric if goal.target else ""
    question = Question(title=job.name, cost_of=f"training to a target of {of}", chooses_batch=True)
    return replace(answer(question, (), goal), refusal=why)


def _unlike(
    sweeps: Sequence[Results], found: Sequence[Speed], trained: Sequence[Training], mixed: bool
) -> list[str]:
    """Compare the machines of all good launches of a job; say what differs, or refuse it."""
    rows: dict[tuple[object, str], list[dict[str, str | None]]] = {}
    sizes: dict[object, dict[int, str]] = {}
    names = ("status", "config", "device", "provenance", "train_samples")
    for one in sweeps:
        columns = [one.table[name].to_pylist() for name in names]
        for status, config, device, provenance, samples in zip(*columns, strict=True):
            if status == "ok":
                rows.setdefault((job_of(config), device), []).append({"provenance": provenance})
                if samples is not None:
                    sizes.setdefault(job_of(config), {}).setdefault(samples, one.name)
    _refuse_other_data(sizes.values())
    said = []
    for key, launches in rows.items():
        differing = what_differs(launches)
        if not mixed:
            refuse_unlike("advice would compare points that", differing)
        if differing:
            said.append(f"{key[1]}: unlike launches are compared: {differing}")
    return said


def _refuse_other_data(sizes: Iterable[Mapping[int, str]]) -> None:
    """Refuse epochs of unlike length: the data behind one config may change between sweeps."""
    for found in sizes:
        if len(found) > 1:
            told = ", ".join(f"{samples:,} ({name})" for samples, name in sorted(found.items()))
            raise AnalysisError(
                f"advice would compare epochs of unlike data: training samples are {told}; "
                "give sweeps of the same data together"
            )
