"""Horovod's rendezvous for one rank on each of two hosts: tell its port, serve until stdin ends."""

from __future__ import annotations

import sys

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer


def main() -> None:
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(sys.argv[1]), 2))
    print(port, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
