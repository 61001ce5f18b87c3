"""What is wrong with an allocation, from what was measured; pure.

**Nodes.** A node's time a step is that of its devices' blocks put together; nodes are compared with
each other, and a node's devices among themselves, by the rule of ``robust`` (its docstring has how
often it is wrong). Where all devices of a node are slow, that is a slow node. Of two nodes the
slower one is named with the ratio, and the sentence says that two cannot tell which one is ill.

**Clocks.** A GPU is throttled where one of ``AILMENTS`` stood in more than a tenth of the samples
(power limits are no ailment: a GPU that works is at its limit), or where its median clock is under
0.9 of that of all GPUs.

**Load.** A node is busy where its load average before the start, by core, was over a quarter and
over three times the median of the others'. The cores of one machine alone are compared with
nothing: then it is a note.

**Cautions** are nothing that is wrong with a node, but what makes a clean result worth less; they
leave the exit code alone. Any load of more than half a core a core before anything of ours ran is
others' work. And the noise of the blocks says how slow a node would have to be to be named by the
rule of ``robust``: a caution where that is more than ``_TELLABLE`` times as long as the others.

**Versions**: ``versions``. **Links**: ``judge_links``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from harness.submit.preflight.judge_links import judge_links
from harness.submit.preflight.record import Finding, NodeReport, Way
from harness.submit.preflight.robust import LEAST, Slow, error, limit, slow_in_all
from harness.submit.preflight.versions import differences

AILMENTS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown",
     "board_limit", "reliability", "thermal"}
)  # fmt: skip
_AILING = 0.10  # share of samples
_CLOCK = 0.90  # of the median GPU's
_BUSY_A_CORE = 0.25
_BUSIER = 3.0
_OTHERS_A_CORE = 0.5
_TELLABLE = 1.25
_NAMED = 3


def judge(
    nodes: Sequence[NodeReport], links: Sequence[Way], workload: str
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Return findings, what is worst first, and notes."""
    alive = [one for one in nodes if not one.error]
    findings = [
        *(_dead(one) for one in nodes if one.error),
        *slow_nodes(nodes, workload),
        *_throttled(nodes),
        *judge_links(links, {one.node: one.interface_bits_per_s for one in nodes}),
        *_busy(alive),
        *differences({one.node: one.facts for one in nodes if one.facts}),
    ]
    return tuple(findings), (*_notes(nodes), *cautions(nodes))


def cautions(nodes: Sequence[NodeReport]) -> tuple[str, ...]:
    """Return what makes speeds and links worth less than they look, a sentence each."""
    loads = {
        node: load
        for node, load in _load_by_core([one for one in nodes if not one.error]).items()
        if load > _OTHERS_A_CORE
    }
    found = []
    if loads:
        found.append(
            f"others compute on {_names(list(loads))}: load a core {_range(list(loads.values()))} "
            f"before anything of ours ran, over {_OTHERS_A_CORE:g}; speeds and links may be less "
            "than the nodes can do"
        )
    tellable = _tellable([one for one in nodes if one.speeds])
    if tellable > _TELLABLE:
        found.append(
            "steps are too noisy for the comparison of nodes: a slow one is named only where its "
            f"step takes {tellable:.1f} times the others' or more"
        )
    return tuple(found)


def _tellable(measured: Sequence[NodeReport]) -> float:
    """Return how many times as long a node has to take to be named, for the noisiest of them.

    By the rule of ``robust`` without what nodes differ by nature; 1 where nothing is compared.
    """
    by_node = [_of_node(one) for one in measured]
    if len(by_node) < 2:
        return 1.0
    limits = [0.0]
    for number in range(min(map(len, by_node))):
        errors = [error(looks[number]) for looks in by_node]
        others = min(errors) if len(errors) == 2 else median(errors)
        limits.append(limit(LEAST, math.hypot(max(errors), others)))
    return math.exp(max(limits))


def _names(names: Sequence[str]) -> str:
    """Return ``n1``, ``n1 and n2``; of many the first ones, and how many more there are."""
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _range(values: Sequence[float]) -> str:
    ends = dict.fromkeys((f"{min(values):.2f}", f"{max(values):.2f}"))
    return " to ".join(ends)


def _dead(report: NodeReport) -> Finding:
    last = next((line for line in reversed(report.tail) if line.strip()), "")
    said = f"; its last line: {last.strip()}" if last else ""
    return Finding(
        kind="dead-node",
        nodes=(report.node,),
        text=f"{report.node} failed: {report.error}{said}",
        tail=report.tail,
    )


def slow_nodes(nodes: Sequence[NodeReport], workload: str) -> list[Finding]:
    """Return slow nodes, and slow devices of nodes."""
    measured = [one for one in nodes if one.speeds]
    found = [
        _slow_node(measured, one, workload) for one in _slow([_of_node(one) for one in measured])
    ]
    for report in measured:
        looks = [list(speed.looks_step_s) for speed in report.speeds]
        found += [_slow_device(report, one, workload) for one in _slow(looks)]
    return found


def _of_node(report: NodeReport) -> list[tuple[float, ...]]:
    """Return, by look, the seconds a step of a node's blocks: the median over its devices."""
    looks = zip(*(speed.looks_step_s for speed in report.speeds), strict=True)
    return [tuple(map(median, zip(*look, strict=False))) for look in looks]


def _slow(by_place: Sequence[Sequence[Sequence[float]]]) -> tuple[Slow, ...]:
    """Apply the rule; a second look counts only where all that are compared have one."""
    count = min((len(looks) for looks in by_place), default=0)
    return slow_in_all([[looks[number] for looks in by_place] for number in range(count)])


def _slow_node(measured: Sequence[NodeReport], found: Slow, workload: str) -> Finding:
    report = measured[found.place]
    speed = report.samples_per_s or 0.0
    said = f"{speed:,.0f} samples/s of {workload}, {1 / found.ratio:.2f} of"
    if len(measured) == 2:
        other = measured[1 - found.place].node
        text = (
            f"{report.node} is slower than {other}: {said} its speed; of two nodes nobody can say "
            "which one is ill, so compare with a third"
        )
    else:
        text = f"{report.node} is slow: {said} the median node's speed"
    return Finding(kind="slow-node", nodes=(report.node,), text=text)


def _slow_device(report: NodeReport, found: Slow, workload: str) -> Finding:
    speed = report.speeds[found.place]
    others = "the other's" if len(report.speeds) == 2 else "the median device's"
    return Finding(
        kind="slow-device",
        nodes=(report.node,),
        text=(
            f"device {speed.device} of {report.node} is slow: {speed.samples_per_s:,.0f} samples/s "
            f"of {workload}, {1 / found.ratio:.2f} of {others} speed in this node"
        ),
    )


def _throttled(nodes: Sequence[NodeReport]) -> list[Finding]:
    clocks = [(one.node, clock) for one in nodes for clock in one.clocks]
    found = []
    for node, clock in clocks:
        ill = {name: part for name, part in clock.throttle.items() if name in AILMENTS}
        worst = max(ill, key=lambda name: ill[name], default="")
        if worst and ill[worst] > _AILING:
            share = "" if clock.device == "CPU" else f" in {ill[worst]:.0%} of the samples"
            text = f"{clock.device} of {node} is throttled: {worst}{share}"
            found.append(Finding(kind="throttled", nodes=(node,), text=text))
    named = {(finding.nodes[0], finding.text.partition(" of ")[0]) for finding in found}
    medians = {
        (node, clock.device): median(clock.mhz)
        for node, clock in clocks
        if clock.mhz and clock.device != "CPU"
    }
    usual = median(medians.values()) if len(medians) > 2 else 0.0
    for (node, device), mhz in medians.items():
        if mhz < _CLOCK * usual and (node, device) not in named:
            text = f"{device} of {node} works at {mhz:,.0f} MHz, where the median has {usual:,.0f}"
            found.append(Finding(kind="throttled", nodes=(node,), text=text))
    return found


def _load_by_core(nodes: Sequence[NodeReport]) -> Mapping[str, float]:
    return {
        one.node: one.load_1min / one.cores
        for one in nodes
        if one.load_1min is not None and one.cores
    }


def _busy(nodes: Sequence[NodeReport]) -> list[Finding]:
    loads = _load_by_core(nodes)
    found = []
    for node, load in loads.items():
        others = [other for name, other in loads.items() if name != node]
        if others and load > _BUSY_A_CORE and load > _BUSIER * median(others):
            text = (
                f"{node} was busy before the start: load {load:.2f} a core, where the others have "
                f"{median(others):.2f}; is somebody else's work, or an earlier job's, still there?"
            )
            found.append(Finding(kind="busy", nodes=(node,), text=text))
    return found


def _notes(nodes: Sequence[NodeReport]) -> list[str]:
    notes = list(dict.fromkeys(f"{one.node}: {line}" for one in nodes for line in one.notes))
    if len(nodes) == 1:
        notes += [
            f"{node} had a load of {load:.2f} a core before the start: it is not alone"
            for node, load in _load_by_core(nodes).items()
            if _BUSY_A_CORE < load <= _OTHERS_A_CORE  # from there on it is a caution
        ]
    return notes
