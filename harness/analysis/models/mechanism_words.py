"""The mechanism in words: its parameters, what each term assumes, and what could not be told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.analysis.models.api import Parameter, Place, Term
from harness.analysis.models.measured import marked_apart, timeline_parts
from harness.analysis.models.mechanism_fit import Fitted
from harness.analysis.models.mechanism_inputs import Inputs
from harness.analysis.models.negotiation import growth_text
from harness.analysis.models.spread import Draws
from harness.analysis.texts import seconds_text

#: Measured waits outside of this range are said to be other than independent ranks would wait.
_LIKE_JITTER = (0.5, 2.0)


def terms_of(inputs: Inputs, fitted: Fitted, place: Place) -> tuple[Term, ...]:
    """Return the parts of a step at ``place``, each with what must hold there."""
    words = {
        "compute": _compute_words(inputs),
        "contention": "it grows with the ranks of a node by the line of those measured",
        "jitter": _jitter_words(inputs, place),
        "cycle": "the last gradient waits for half a cycle of Horovod, and nothing hides it",
        "negotiation": f"it grows as {growth_text(inputs.facts.controller)}",
        "all-reduce latency": f"a ring: 2(N−1)·α; {_ring_words(fitted, place)}",
        "all-reduce bandwidth": f"a ring: 2(N−1)/N · bytes/β; {_ring_words(fitted, place)}",
    }
    return tuple(
        Term(name, float(draws[0]), words[name]) for name, draws in fitted.parts(place).items()
    )


def parameters_of(inputs: Inputs, fitted: Fitted) -> tuple[Parameter, ...]:
    """Return the parameters with their intervals."""
    return tuple(_parameters(inputs, fitted))


def _parameters(inputs: Inputs, fitted: Fitted) -> Iterator[Parameter]:
    def made(name: str, symbol: str, unit: str, draws: Draws, meaning: str) -> Parameter:
        return Parameter(name, symbol, unit, fitted.spread.interval(draws), meaning)

    first = inputs.reduced[0].place.world_size
    if inputs.curve.scaling == "weak":
        yield made("compute", "a", "s", fitted.compute_s, f"of a rank's step at N = {first}")
    else:
        yield made("fixed compute", "a", "s", fitted.compute_s, "of a step, whatever its batch")
        yield made("compute a sample", "b", "s", fitted.per_sample_s, "of a rank")
    if fitted.contention_s.any():
        yield made("contention", "k", "s", fitted.contention_s, "a further rank on a node adds it")
    if not inputs.jitter.from_waits:
        deviation = fitted.jitter_s
        yield made("jitter", "σ", "s", deviation, "standard deviation of a rank's own time")
        meaning = "measured waits / expected maximum of that many ranks' own times"
        yield made("wait share", "w", "", fitted.wait_share, meaning)
    else:
        meaning = "standard deviation of a rank's own time, from measured waits"
        yield made("jitter", "σ", "s", fitted.wait_share, meaning)
    for link, where, mark in (
        (fitted.links.inside, "inside a node", "1"),
        (fitted.links.across, "between nodes", "2"),
    ):
        if link is not None:
            yield made(
                f"latency {where}", f"α{mark}", "s", link.alpha_s, f"of a message; {link.origin}"
            )
            bandwidth = 1.0 / np.maximum(link.s_per_byte, 1e-15)
            if link.s_per_byte[0] > 0:
                yield made(f"bandwidth {where}", f"β{mark}", "bytes/s", bandwidth, link.origin)
    for overlap, tail in ((fitted.overlap, ""), (fitted.overlap_across, " across nodes")):
        if tail and overlap is fitted.overlap:
            continue
        if overlap.form == "share":
            yield made(f"exposed share{tail}", "φ", "", overlap.level, overlap.why)
        else:
            yield made(f"hidden time{tail}", "h", "s", overlap.level, overlap.why)
        if inputs.facts.tuning is not None:
            law = growth_text(inputs.facts.controller)
            yield made(f"negotiation{tail}", "r", "s", overlap.exchange_s, f"of one unit of {law}")
    if inputs.facts.tuning is not None:
        yield made("cycle", "q", "s", fitted.queue_s, "wait for Horovod's next cycle, exposed")


def notes_of(inputs: Inputs, fitted: Fitted) -> tuple[str, ...]:
    """Return what a reader must know."""
    return tuple(_notes(inputs, fitted))


def _notes(inputs: Inputs, fitted: Fitted) -> Iterator[str]:
    counts = sorted({one.place.world_size for one in inputs.reduced})
    said = ", ".join(map(str, counts))
    yield (
        f"each part is measured at N = {said}; that it goes on by its law beyond is assumed"
        if len(counts) > 1
        else f"measured at N = {said} only: how each part grows with N is assumed, not shown"
    )
    if not fitted.spread.has_interval:
        yield "one block: its parameters have no intervals; measure more blocks"
    yield from _jitter_notes(inputs, fitted)
    yield from _link_notes(inputs, fitted)
    if inputs.curve.scaling == "strong":
        yield from _strong_notes(inputs)
    far = max(inputs.reduced, key=lambda one: abs(one.point.phases_minus_step or 0.0))
    yield from marked_apart(far.point)


def _jitter_notes(inputs: Inputs, fitted: Fitted) -> Iterator[str]:
    jitter = inputs.jitter
    if jitter.missing is not None:
        yield (
            "jitter: no raw steps, so ranks are taken to vary normally, by as much as measured "
            f"waits say ({jitter.missing})"
        )
        return
    yield (
        f"jitter: known from about {jitter.independent:,} independent steps of ranks; what more "
        "ranks than that meet lies beyond what was seen, and is at least what is said"
    )
    share = float(fitted.wait_share[0])
    if not _LIKE_JITTER[0] <= share <= _LIKE_JITTER[1]:
        yield (
            f"ranks waited {share:.2g} times as long as independent ones would: they do not vary "
            "independently, or marked steps were too few to tell"
        )


def _link_notes(inputs: Inputs, fitted: Fitted) -> Iterator[str]:
    tuning, record = inputs.facts.tuning, inputs.allreduce
    if tuning is not None and record is None:
        cycle_s = tuning.cycle_time_ms / 1e3
        covered = [
            one
            for one in inputs.reduced
            if cycle_s > 0.5 * float(fitted.spread.draws(one.isolated_s)[0])
        ]
        if covered:
            counts = ", ".join(str(one.place.world_size) for one in covered)
            yield (
                f"the isolated all-reduce at N = {counts} is mostly Horovod's cycle of "
                f"{seconds_text(cycle_s)}, so latency and bandwidth are little known: give a "
                "result of hvdscale allreduce with a library beside Horovod (--allreduce DIR)"
            )
    if tuning is not None and all(timeline_parts(one.point) is None for one in inputs.reduced):
        yield (
            "no timeline: negotiation is what of the exposed transfer the all-reduce and half a "
            "cycle do not explain"
        )
    if inputs.network is not None:
        yield "between nodes: a ring over the network as it was given, not measured"


def _strong_notes(inputs: Inputs) -> Iterator[str]:
    batches = sorted({one.point.rank_batch for one in inputs.reduced})
    if len(batches) < 2:
        batches = sorted({one.point.rank_batch for one in (*inputs.alone, *inputs.reduced)})
    if len(batches) < 2:
        yield (
            f"compute was measured at a rank's batch of {batches[0]} alone: it is taken to be "
            "proportional to the batch, the best case"
        )
    else:
        yield (
            f"compute is a line in a rank's batch, from {batches[0]} to {batches[-1]} samples; "
            "smaller batches lie outside"
        )


def _compute_words(inputs: Inputs) -> str:
    if inputs.curve.scaling == "strong":
        return "a rank's compute is a line in its batch"
    return f"a rank computes as fast as at N = {inputs.reduced[0].place.world_size}"


def _jitter_words(inputs: Inputs, place: Place) -> str:
    if inputs.jitter.from_waits:
        return "ranks vary independently and normally"
    seen = inputs.jitter.independent
    if place.world_size > seen:
        return f"ranks vary independently; {seen:,} steps do not show this tail, so at least this"
    return "ranks vary independently, as in the steps seen"


def _ring_words(fitted: Fitted, place: Place) -> str:
    """Say where latency and bandwidth are from, and what is hidden."""
    inside = place.nodes == 1
    link = fitted.links.inside if inside else fitted.links.across
    form = (fitted.overlap if inside else fitted.overlap_across).form
    hidden = "a constant share is exposed" if form == "share" else "a constant time is hidden"
    return f"{link.origin}; {hidden}" if link is not None else hidden
