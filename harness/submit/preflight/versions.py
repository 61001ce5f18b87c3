"""What differs between the nodes, and on which; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.submit.preflight.record import Finding

ABSENT = "absent"
_LISTED = 4  # names in a sentence; of more only how many


def differences(facts: Mapping[str, Mapping[str, str]]) -> tuple[Finding, ...]:
    """Return a finding for each fact that is not the same on all nodes; ``facts`` is by node.

    What most nodes have is what the others should have; where no value has most, all are told. A
    fact that a node lacks is a difference, unless no node that was asked has it.
    """
    names = sorted({name for found in facts.values() for name in found})
    findings = []
    for name in names:
        groups: dict[str, list[str]] = {}
        for node, found in facts.items():
            groups.setdefault(found.get(name, ABSENT), []).append(node)
        if len(groups) > 1:
            findings.append(_finding(name, groups, len(facts)))
    return tuple(findings)


def _finding(name: str, groups: Mapping[str, Sequence[str]], nodes: int) -> Finding:
    # The most nodes first; the order of nodes decides between equals.
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    (common, many), *others = ordered
    said = ", ".join(f"{value} on {listed(where)}" for value, where in others)
    if 2 * len(many) > nodes:
        text = f"{name} differs: {said}, where {_rest(many)} {common}"
        odd = [node for _, where in others for node in where]
    else:
        text = f"{name} differs: {common} on {listed(many)}, {said}"
        odd = [node for where in groups.values() for node in where]
    return Finding(kind="unlike", nodes=tuple(odd), text=text)


def _rest(nodes: Sequence[str]) -> str:
    return f"{nodes[0]} has" if len(nodes) == 1 else f"the other {len(nodes)} nodes have"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence has them: "n1, n2 and n3", of many only the first and how many."""
    if len(names) > _LISTED:
        return f"{', '.join(names[: _LISTED - 1])} and {len(names) - _LISTED + 1} more"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
