"""Two hosts on one machine: network namespaces with a link between them, and nothing else.

The namespace of the machine itself is not touched: the link's two ends are made in theirs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.requirements import require

INTERFACE = "eth0"
SUBNET = "10.213.77.0/24"
ADDRESSES = ("10.213.77.1", "10.213.77.2")
HOSTS = ("one", "two")  # their names, which both can resolve
# Arguments: name, hosts file, and the program with its own.
_INSIDE = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'


@dataclass(frozen=True)
class Pair:
    """Two namespaces by name, each with ``INTERFACE`` and its address of ``ADDRESSES``."""

    names: tuple[str, str]
    hosts_file: Path

    def start(
        self, place: int, argv: Sequence[str], environ: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        """Start a process in one of them, in a process session of its own; its output is text.

        It sees a host name of its own: Horovod's Gloo takes the address of that for its process
        sets, whatever HOROVOD_GLOO_IFACE says.
        """
        namespaces = ["unshare", "--uts", "--mount", "--propagation", "private"]
        inside = ["sh", "-ec", _INSIDE, HOSTS[place], str(self.hosts_file)]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[place], *namespaces, *inside, *argv],
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    """Make the namespaces; skip the test where this user or kernel cannot. Nothing stays.

    ``folder`` gets the hosts file that they see as /etc/hosts.
    """
    _require_tools()
    hosts_file = folder / "hosts"
    lines = [f"{address} {name}\n" for address, name in zip(ADDRESSES, HOSTS, strict=True)]
    hosts_file.write_text("".join(["127.0.0.1 localhost\n", *lines]))
    names = (f"hvdscale-{os.getpid()}-0", f"hvdscale-{os.getpid()}-1")
    made = Pair(names, hosts_file)
    try:
        _make(made)
        yield made
    finally:
        for name in made.names:  # its link and queues go with it
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _require_tools() -> None:
    absent = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    reason = (
        "two namespaces and a slow link take root, and ip, tc and unshare: apt-get install iproute2"
    )
    require("namespaces", not absent and os.geteuid() == 0, reason)


def _make(made: Pair) -> None:
    one, other = made.names
    commands = [f"ip netns add {name}" for name in made.names]
    commands.append(f"ip link add {INTERFACE} netns {one} type veth peer {INTERFACE} netns {other}")
    for name, address in zip(made.names, ADDRESSES, strict=True):
        commands += [
            f"ip -n {name} address add {address}/24 dev {INTERFACE}",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set {INTERFACE} up",
            # Not the machine's own way to fill a link: BBR's leaves a fifth of a shaped one free.
            f"ip -n {name} route replace {SUBNET} dev {INTERFACE} src {address} congctl reno",
            # The kernel has tbf, which not every container's has.
            f"tc -n {name} qdisc add dev {INTERFACE} root tbf rate 1gbit burst 16kb latency 50ms",
            f"tc -n {name} qdisc del dev {INTERFACE} root",
        ]
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        reason = f"no namespaces with a slow link here: '{command}': {done.stderr.strip()}"
        require("namespaces", done.returncode == 0, reason)
