"""Which interface the ranks of a launch reach each other by."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from harness.collectives.api import Control
from harness.errors import LaunchError

#: What has said it already: the user for torch's Gloo, or horovodrun for Horovod's.
_SAID = ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")


@dataclass(frozen=True)
class Home:
    """This rank's interface and its IPv4 address."""

    interface: str
    address: str


def choose(control: Control) -> Home:
    """Return this rank's interface, and let torch's Gloo use it (``GLOO_SOCKET_IFNAME``).

    What the environment names; else loopback on one host, as Horovod's launcher takes it; else the
    one that the kernel routes to another host by. Left alone, Gloo resolves this host's own name,
    which some systems (Debian's /etc/hosts) answer with 127.0.1.1.
    """
    hosts = control.gather(socket.gethostname())
    home = _home(os.environ, socket.gethostname(), hosts)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", home.interface)
    return home


def _home(environ: Mapping[str, str], here: str, hosts: list[str]) -> Home:
    said = next((environ[name] for name in _SAID if environ.get(name)), None)
    if said is not None:
        first = said.split(",")[0]  # Gloo takes a list
        return Home(first, _address(first))
    other = next((host for host in hosts if host != here), None)
    if other is None:
        return Home("lo", _address("lo"))
    address = _route(other)
    for name in psutil.net_if_addrs():
        if address in _addresses(name):
            return Home(name, address)
    raise LaunchError(f"no interface here has {address}; name one in GLOO_SOCKET_IFNAME")


def _route(host: str) -> str:
    """Return the address that packets to ``host`` leave by; a datagram socket sends none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise LaunchError(
                f"host {host} cannot be reached by its name ({error}); name the interface in "
                "GLOO_SOCKET_IFNAME"
            ) from None
        return str(probe.getsockname()[0])


def _address(interface: str) -> str:
    found = _addresses(interface)
    if not found:
        raise LaunchError(
            f"interface {interface} has no IPv4 address on {socket.gethostname()}; name one that "
            "has in GLOO_SOCKET_IFNAME"
        )
    return found[0]


def _addresses(interface: str) -> list[str]:
    known = psutil.net_if_addrs().get(interface, [])
    return [str(one.address) for one in known if one.family == socket.AF_INET]
