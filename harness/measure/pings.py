"""The clocks of two processes compared over a TCP connection of their own.

One process reads its clock whenever it is asked; the other notes when it asked and when the answer
came. The answer was read somewhere between the two, so the difference of the clocks is known to
half of the round trip, however unlike the two ways are; the shortest round trip knows it best.
"""

from __future__ import annotations

import fcntl
import hmac
import ipaddress
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import LaunchError

PINGS = 200
PATIENCE_S = 120.0  # until all have called, or one has its turn
_CONNECT_S = 3.0  # for one address: packets to a wrong one may vanish
_HELLO_S = 10.0  # from being connected to having said who calls

_HELLO = struct.Struct(">I32s")  # the caller's rank, and its proof that it knows the token
_READING = struct.Struct(">d")
_DIGEST_BYTES = 32
_ASKED, _ENOUGH = b"?", b"."  # what a caller says, once it has been let in
_SIOCGIFADDR = 0x8915  # of <linux/sockios.h>: an interface's IPv4 address
_GLOBAL_SCOPE = "00"  # in /proc/net/if_inet6

Clock = Callable[[], float]


@dataclass(frozen=True)
class Door:
    """Where a process answers, as it tells the callers beforehand."""

    host: str  # its name, for messages and as the last address to try
    addresses: tuple[str, ...]
    port: int
    token: bytes  # never sent over the connection


@dataclass(frozen=True)
class Reading:
    """What a caller found."""

    at_s: float  # the middle of the round trip, on the caller's clock
    offset_s: float  # the caller's clock − the answering one
    error_s: float  # half of the round trip: the true offset is not further away


def listen() -> socket.socket:
    """Return a listening socket on every address of this host, at a port that was free."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", 0))


def door_of(listener: socket.socket, host: str) -> Door:
    """Return what callers must know of a listener of this process."""
    port = int(listener.getsockname()[1])
    return Door(host, own_addresses(), port, secrets.token_bytes(_DIGEST_BYTES))


def own_addresses() -> tuple[str, ...]:
    """Return this host's IP addresses that others may reach; loopback only where it is all."""
    found = [*_ipv4_addresses(), *_ipv6_addresses()]
    outside = [text for text in found if not ipaddress.ip_address(text).is_loopback]
    return tuple(outside or found)


def answer(
    listener: socket.socket,
    door: Door,
    callers: Mapping[int, str],
    clock: Clock,
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Answer each of ``callers`` (rank → host), one after the other, with readings of ``clock``.

    Raises LaunchError where one of them does not come within ``patience_s``, or hangs up.
    """
    waited_for = dict(callers)
    deadline = time.monotonic() + patience_s
    while waited_for:
        listener.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            who = ", ".join(f"rank {rank} on {host}" for rank, host in waited_for.items())
            raise LaunchError(
                f"clocks: {who} did not reach rank 0 on {door.host} at TCP port {door.port} of "
                f"{', '.join(door.addresses)} in {patience_s:g} s: open the ports between the "
                "hosts, or leave clocks out of measure.instruments"
            ) from None
        with connection:
            rank = _greet(connection, door)
            if rank in waited_for:  # anyone else is a stranger, and gets nothing
                _answer_one(connection, door, rank, waited_for.pop(rank), clock)


def ask(
    door: Door, rank: int, clock: Clock, *, pings: int = PINGS, patience_s: float = PATIENCE_S
) -> NDArray[np.float64]:
    """Return (pings, 3): asked on this clock, the answer of the other clock, answered on this one.

    Raises LaunchError where ``door`` cannot be reached at any of its addresses.
    """
    tried = []
    for address in (*door.addresses, door.host):
        try:
            with socket.create_connection((address, door.port), timeout=_CONNECT_S) as connection:
                connection.settimeout(patience_s)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(_HELLO.pack(rank, _proof(door, rank)))
                if _receive(connection, _DIGEST_BYTES) == _proof(door, None):
                    return _ping(connection, clock, pings)
                tried.append(f"{address}: somebody else answers there")
        except OSError as error:
            tried.append(f"{address}: {error.strerror or error}")
    raise LaunchError(
        f"clocks: rank {rank} on {socket.gethostname()} does not reach rank 0 on {door.host} at "
        f"TCP port {door.port} ({'; '.join(tried)}): open the ports between the hosts, or leave "
        "clocks out of measure.instruments"
    )


def least(pings: NDArray[np.float64]) -> Reading:
    """Return what the shortest round trip of ``pings`` (see ``ask``) says."""
    asked_s, theirs_s, answered_s = pings[np.argmin(pings[:, 2] - pings[:, 0])]
    # Halves first: a sum of two large readings would round away what their difference tells.
    at_s = asked_s + (answered_s - asked_s) / 2
    return Reading(float(at_s), float(at_s - theirs_s), float((answered_s - asked_s) / 2))


def _greet(connection: socket.socket, door: Door) -> int | None:
    """Return the rank of who calls, None where it is nobody who knows the token."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        rank, proof = _HELLO.unpack(_receive(connection, _HELLO.size, _HELLO_S))
    except OSError:  # whoever it was, it is gone: a port scan, or a caller that gave up
        return None
    return int(rank) if hmac.compare_digest(proof, _proof(door, rank)) else None


def _answer_one(connection: socket.socket, door: Door, rank: int, host: str, clock: Clock) -> None:
    try:
        connection.sendall(_proof(door, None))
        while (said := connection.recv(1)) == _ASKED:
            connection.sendall(_READING.pack(clock()))
        if said != _ENOUGH:
            raise ConnectionError("it hung up")
    except OSError as error:
        raise LaunchError(
            f"clocks: rank {rank} on {host} stopped while its clock was compared with rank 0's "
            f"({error.strerror or error}): see its log"
        ) from None


def _ping(connection: socket.socket, clock: Clock, pings: int) -> NDArray[np.float64]:
    rows = np.empty((pings, 3))
    for row in rows:
        row[0] = clock()
        connection.sendall(_ASKED)
        answered = _receive(connection, _READING.size)
        row[2] = clock()
        (row[1],) = _READING.unpack(answered)
    connection.sendall(_ENOUGH)
    return rows


def _receive(connection: socket.socket, count: int, within_s: float | None = None) -> bytes:
    """Return exactly ``count`` bytes; ConnectionError where the other side hangs up before.

    TimeoutError where they do not all come ``within_s``, however many come in between.
    """
    got = b""
    deadline = None if within_s is None else time.monotonic() + within_s
    while len(got) < count:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        more = connection.recv(count - len(got))
        if not more:
            raise ConnectionError("the other side hung up")
        got += more
    return got


def _proof(door: Door, rank: int | None) -> bytes:
    """Return what only those who know the token can say: a caller's rank, or None who answers."""
    who = b"rank 0 answers" if rank is None else b"rank %d calls" % rank
    return hmac.digest(door.token, who, "sha256")


def _ipv4_addresses() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                reply = fcntl.ioctl(control, _SIOCGIFADDR, request)
            except OSError:  # an interface without an address
                continue
            found.append(socket.inet_ntoa(reply[20:24]))
    return found


def _ipv6_addresses() -> list[str]:
    table = Path("/proc/net/if_inet6")
    if not socket.has_dualstack_ipv6() or not table.exists():
        return []
    lines = [line.split() for line in table.read_text().splitlines()]
    # Link-local ones would need the caller's own interface named with them.
    return [
        str(ipaddress.IPv6Address(bytes.fromhex(line[0])))
        for line in lines
        if line[3] == _GLOBAL_SCOPE
    ]
