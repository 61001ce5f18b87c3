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

**Versions**: ``versions``. **Links**: ``judge_links``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from harness.submit.preflight.judge_links import judge_links
from harness.submit.preflight.record import Finding, NodeReport, Way
from harness.submit.preflight.robust import Slow, slow_in_all
from harness.submit.preflight.versions import differences

AILMENTS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown",
     "board_limit", "reliability", "thermal"}
)  # fmt: skip
_AILING = 0.10  # share of samples
_CLOCK = 0.90  # of the median GPU's
_BUSY_A_CORE = 0.25
_BUSIER = 3.0


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
    return tuple(findings), tuple(_notes(nodes))


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
            if load > _BUSY_A_CORE
        ]
    return notes
