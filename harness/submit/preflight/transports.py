"""What moved the bytes between the nodes, by each library's own words; pure.

Gloo: the interface of each node. NCCL: its log (``engines.nccl_log``). Open MPI: what it says of
the components that it has chosen, with ``VERBOSE`` in its environment; UCX of its transports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.engines.nccl_log import parse_nccl_log
from harness.submit.preflight.answers import Linked

#: In the environment of the programs that measure, by stage.
VERBOSE: Mapping[str, Mapping[str, str]] = {
    "speed": {},
    "gloo": {},
    "nccl": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"},
    "mpi": {
        "OMPI_MCA_pml_base_verbose": "10",
        "OMPI_MCA_mtl_base_verbose": "10",
        "OMPI_MCA_btl_base_verbose": "40",  # from there on it says which one sends to whom
        "UCX_LOG_LEVEL": "info",
    },
}
_PML = re.compile(r"select: component (\w+) selected")
_MTL = re.compile(r"\(\s*mtl\) Selected component \[(\w+)\]")
_BTL = re.compile(r"bml: Using (\w+) btl for send to \S+ on node (\S+)")
_TCP = re.compile(r"btl:tcp: \S+: if (\S+) kidx \d+ cnt \d+ addr (\S+)")
_UCX = re.compile(r"UCX\s+INFO\s+.*?\b(?:tag|rma|am)\(([^)]+)\)")


def of_mpi(text: str) -> dict[str, str]:
    """Return pml, and btl or mtl or UCX's transports, from the log of an MPI rank.

    An mtl is in use only under the pml "cm"; btl "self" sends to nobody else.
    """
    pml = sorted(set(_PML.findall(text)))
    found = {"pml": ", ".join(pml)} if pml else {}
    if "cm" in pml:
        found |= _joined("mtl", _MTL.findall(text))
    found |= _joined("btl", [name for name, _ in _BTL.findall(text) if name != "self"])
    if "tcp" in found.get("btl", ""):
        found |= _joined("tcp", [f"{name} {address}" for name, address in _TCP.findall(text)])
    if "ucx" in pml:
        found |= _joined("ucx", _UCX.findall(text))
    return found


def _joined(key: str, values: Sequence[str]) -> dict[str, str]:
    kept = sorted(set(values))
    return {key: ", ".join(kept)} if kept else {}


def of_stage(stage: str, answers: Sequence[Linked], logs: Sequence[str]) -> dict[str, str]:
    """Return what a stage's answers and logs say; those of several nodes joined."""
    found: dict[str, list[str]] = {}
    for answer, log in zip(answers, logs, strict=True):
        said = dict(answer.facts)
        if stage == "nccl":
            said |= parse_nccl_log(log)
        elif stage == "mpi":
            said |= of_mpi(log)
        if answer.interface:
            said["interface"] = f"{answer.interface} {answer.address} on {answer.node}"
        for key, value in said.items():
            found.setdefault(key, []).append(value)
    return {key: ", ".join(dict.fromkeys(values)) for key, values in sorted(found.items())}
