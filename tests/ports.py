"""Ports for servers of tests that must come back where they were."""

import secrets
import socket
from pathlib import Path

_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def steady_port() -> int:
    """A port of the loopback interface that nobody listens at, and that stays free while its server is away.

    It lies below those that the system gives to outgoing connections, and to tests beside this one that ask for any
    port: such a one could be taken between two lives of a server.
    """
    given = int(_RANGE.read_text(encoding="ascii").split()[0]) if _RANGE.exists() else 32_768
    while True:
        port = _LOWEST + secrets.randbelow(max(given, 2 * _LOWEST) - _LOWEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
