"""Which link, or node by its links, is slow; pure.

For each library a link has a bandwidth (of its slower direction) and a latency, each the better one
of its looks. A node is as good as its best link: with at least one healthy partner a healthy node
has a good one. The median node's best is what a good link is here. ::

    a node is named  where its best link is worse than that by more than the limit: all of them are
    a link is named  where it is worse by more than the limit, and none of its nodes is named
    limit            max(log FACTOR, SPREADS · √(s² + e²)) as a logarithm, see ``robust``; s is the
                     spread of the nodes' best, e the median error of the links

FACTOR is 1.5 for bandwidth and 2 for latency. Where over a quarter of the links (and more than 3)
would be named, they are one finding: networks of two levels look like that, too.

Two directions that differ by more than 2 times, and by more than their noise, are a finding of the
link that is not named otherwise. The only link of two nodes is compared with what its interface
says that it can do: under ``OF_NOMINAL`` of it something is wrong, though a single connection is
not expected to fill an interface.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from harness.submit.preflight.record import Finding, Way
from harness.submit.preflight.robust import SPREADS, error, spread
from harness.submit.preflight.versions import listed

BANDWIDTH, LATENCY, ONE_WAY = 1.5, 2.0, 2.0
OF_NOMINAL = 0.05
_MANY, _MANY_SHARE = 3, 0.25


@dataclass(frozen=True)
class Link:
    """One pair of nodes by one library; ``ways`` are its best looks, by (source, target)."""

    library: str
    ends: tuple[str, str]
    ways: Mapping[tuple[str, str], Way]

    @property
    def bytes_per_s(self) -> float:
        """Return the slower direction's bandwidth."""
        return min(way.bytes_per_s for way in self.ways.values())

    @property
    def latency_s(self) -> float:
        """Return the better direction's: a round trip has both in it."""
        return min(way.latency_s for way in self.ways.values())

    @property
    def name(self) -> str:
        """Return the ends."""
        return "–".join(self.ends)


def judge_links(
    ways: Sequence[Way], nominal_bits_per_s: Mapping[str, float | None]
) -> list[Finding]:
    """Return what is wrong with links, each thing once for all libraries."""
    found: dict[tuple[str, tuple[str, ...]], Finding] = {}
    for library in dict.fromkeys(way.library for way in ways):
        mine = [way for way in ways if way.library == library]
        for finding in _of_library(library, mine, nominal_bits_per_s):
            key = (finding.kind, finding.nodes)
            if key in found:
                text = f"{found[key].text}; {finding.text.partition(': ')[2]}"
                found[key] = found[key].model_copy(update={"text": text})
            else:
                found[key] = finding
    return list(found.values())


def suspects(
    ways: Sequence[Way], nominal_bits_per_s: Mapping[str, float | None]
) -> set[frozenset[str]]:
    """Return the links that are worth a second look: of what would be named, every pair."""
    named = judge_links(ways, nominal_bits_per_s)
    pairs = {frozenset((way.source, way.target)) for way in ways}
    return {
        pair
        for pair in pairs
        for finding in named
        if (pair <= set(finding.nodes) if len(finding.nodes) > 1 else pair & set(finding.nodes))
    }


def _of_library(
    library: str, ways: Sequence[Way], nominal_bits_per_s: Mapping[str, float | None]
) -> list[Finding]:
    whole = links_of(ways)
    found = _dead(library, ways, whole)
    nodes, slow = _slow(whole, "bandwidth")
    found += [_node_finding(library, node, whole, "bandwidth") for node in nodes]
    found += _link_findings(library, slow, whole, "bandwidth")
    late_nodes, late = _slow(whole, "latency")
    found += [
        _node_finding(library, node, whole, "latency") for node in late_nodes if node not in nodes
    ]
    rest = [link for link in late if link not in slow and not set(link.ends) & set(nodes)]
    found += _link_findings(library, rest, whole, "latency")
    free = [link for link in whole if link not in slow and not set(link.ends) & set(nodes)]
    found += [finding for link in free if (finding := _one_way(link))]
    if library == "gloo":  # of the others the interface is not known
        found += _below_nominal(free, nominal_bits_per_s)
    return found


def links_of(ways: Sequence[Way]) -> list[Link]:
    """Return the links with both directions measured, each direction by its best look."""
    best: dict[tuple[str, str], Way] = {}
    for way in ways:
        if way.error or not way.transfer_s or not way.round_trip_s:
            continue
        key = (way.source, way.target)
        if key not in best or way.bytes_per_s > best[key].bytes_per_s:
            best[key] = way
    return [
        Link(way.library, (a, b), {(a, b): way, (b, a): best[b, a]})
        for (a, b), way in best.items()
        if (b, a) in best and a < b
    ]


def _slow(links: Sequence[Link], what: str) -> tuple[list[str], list[Link]]:
    """Return nodes all of whose links are slow, and the other slow links."""
    nodes = sorted({end for link in links for end in link.ends})
    if len(nodes) < 3:
        return [], []
    badness = {link.ends: _badness(link, what) for link in links}
    best = {node: min(b for ends, b in badness.items() if node in ends) for node in nodes}
    good = median(best.values())
    e = median(_error(link, what) for link in links)
    factor = BANDWIDTH if what == "bandwidth" else LATENCY
    limit = max(math.log(factor), SPREADS * math.hypot(spread(list(best.values())), e))
    ill = [node for node in nodes if best[node] - good > limit]
    slow = [
        link
        for link in links
        if badness[link.ends] - good > limit and not set(link.ends) & set(ill)
    ]
    return ill, slow


def _badness(link: Link, what: str) -> float:
    return -math.log(link.bytes_per_s) if what == "bandwidth" else math.log(link.latency_s)


def _error(link: Link, what: str) -> float:
    samples = (
        way.transfer_s if what == "bandwidth" else way.round_trip_s for way in link.ways.values()
    )
    return max(map(error, samples))


def _typical(links: Iterable[Link], what: str) -> str:
    if what == "bandwidth":
        return rate_text(median(link.bytes_per_s for link in links))
    return latency_text(median(link.latency_s for link in links))


def _value(link: Link, what: str) -> str:
    return rate_text(link.bytes_per_s) if what == "bandwidth" else latency_text(link.latency_s)


def _node_finding(library: str, node: str, links: Sequence[Link], what: str) -> Finding:
    mine = [link for link in links if node in link.ends]
    others = [link for link in links if node not in link.ends]
    word = "slow" if what == "bandwidth" else "late"
    text = (
        f"all links of {node} are {word}: {library} has {_typical(mine, what)} to the others, who "
        f"have {_typical(others, what)} among themselves"
    )
    return Finding(kind="slow-node", nodes=(node,), text=text)


def _link_findings(
    library: str, slow: Sequence[Link], links: Sequence[Link], what: str
) -> list[Finding]:
    if not slow:  # maybe because not one link works
        return []
    usual = _typical(links, what)
    word = "slow" if what == "bandwidth" else "late"
    if len(slow) <= max(_MANY, _MANY_SHARE * len(links)):
        return [
            Finding(
                kind="slow-link",
                nodes=link.ends,
                text=(
                    f"the link {link.name} is {word}: {library} has {_value(link, what)}, where "
                    f"the median link has {usual}"
                ),
            )
            for link in slow
        ]
    worst = max(slow, key=lambda link: _badness(link, what))
    ends = tuple(sorted({end for link in slow for end in link.ends}))
    text = (
        f"{len(slow)} of {len(links)} links are {word} beside the best ones: {library} has "
        f"{_value(worst, what)} on {worst.name}, the worst; are the nodes in different parts of "
        f"the network? ({listed(ends)})"
    )
    return [Finding(kind="slow-link", nodes=ends, text=text)]


def _one_way(link: Link) -> Finding | None:
    (there, one), (_, other) = link.ways.items()
    fast, low = sorted((one, other), key=lambda way: -way.bytes_per_s)
    noise = SPREADS * math.hypot(error(one.transfer_s), error(other.transfer_s))
    if math.log(fast.bytes_per_s / low.bytes_per_s) <= max(math.log(ONE_WAY), noise):
        return None
    text = (
        f"the link {link.name} is slow one way: {link.library} has {rate_text(low.bytes_per_s)} "
        f"from {low.source} to {low.target}, and {rate_text(fast.bytes_per_s)} back"
    )
    return Finding(kind="one-way", nodes=there, text=text)


def _below_nominal(
    links: Sequence[Link], nominal_bits_per_s: Mapping[str, float | None]
) -> list[Finding]:
    below = []
    for link in links:
        known = [speed for end in link.ends if (speed := nominal_bits_per_s.get(end))]
        if known and 8 * link.bytes_per_s < OF_NOMINAL * min(known):
            below.append((link, min(known)))
    if len(below) > _MANY:
        worst, nominal = min(below, key=lambda item: item[0].bytes_per_s)
        ends = tuple(sorted({end for link, _ in below for end in link.ends}))
        text = (
            f"{len(below)} of {len(links)} links move under {OF_NOMINAL:.0%} of what their "
            f"interfaces can: {worst.library} has {rate_text(worst.bytes_per_s)} on {worst.name}, "
            f"whose interface has {rate_text(nominal / 8)}"
        )
        return [Finding(kind="slow-link", nodes=ends, text=text)]
    return [
        Finding(
            kind="slow-link",
            nodes=link.ends,
            text=(
                f"the link {link.name} is slow: {link.library} has {rate_text(link.bytes_per_s)}, "
                f"and its interface says that it can do {rate_text(nominal / 8)}"
            ),
        )
        for link, nominal in below
    ]


def _dead(library: str, ways: Sequence[Way], whole: Sequence[Link]) -> list[Finding]:
    """Return links without a measurement in any look; a node that has none at all by its name."""
    alive = {link.ends for link in whole}
    errors: dict[tuple[str, str], str] = {}
    for way in ways:
        ends = (min(way.source, way.target), max(way.source, way.target))
        if ends not in alive:
            errors[ends] = errors.get(ends) or way.error or "it did not come to an end"
    linked = {end for ends in alive for end in ends}
    lost = sorted({end for ends in errors for end in ends if end not in linked}) if linked else []
    found = [
        Finding(
            kind="dead-link",
            nodes=(node,),
            text=(
                f"{node} reaches none of the others: {library} says "
                f"{next(text for ends, text in errors.items() if node in ends)}"
            ),
        )
        for node in lost
    ]
    return found + [
        Finding(
            kind="dead-link",
            nodes=ends,
            text=f"the link {'–'.join(ends)} does not work: {library} says {text}",
        )
        for ends, text in errors.items()
        if not set(ends) & set(lost)
    ]


def rate_text(bytes_per_s: float) -> str:
    """Return a bandwidth in bits, as networks are sold."""
    bits = 8 * bytes_per_s
    if bits >= 0.9995e9:
        return f"{_three_digits(bits / 1e9)} Gbit/s"
    return f"{_three_digits(bits / 1e6)} Mbit/s"


def latency_text(latency_s: float) -> str:
    """Return a latency in microseconds."""
    return f"{_three_digits(1e6 * latency_s)} µs"


def _three_digits(value: float) -> str:
    """Return a number with three digits that count, and never as a power of ten."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
