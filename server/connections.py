"""Connections of strangers: how many there may be, and how long one may take to say what it wants.

A connection that has not sent the headers of a request is **silent**. It may be for a few seconds only; and where there
is room for no more connections, the oldest one that is silent, or waits for its next request, gives its place to the
next. So nobody can shut others out by connections that ask for nothing.
"""

import asyncio
import ipaddress
from collections import Counter, OrderedDict
from typing import Any, Final

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coterie.errors import RequestRefused

HEADER_BYTES: Final = 1 << 16
"""All bytes of a request before its body."""
RESERVED_FILES: Final = 192
"""Descriptors for everything that is no connection: the database, blobs, the worker, sockets that listen."""
WANTED_FILES: Final = 1 << 16
_END: Final = b"\r\n\r\n"
"""The end of a request's headers."""
log = structlog.get_logger("coterie.server")


class Connections:
    """All connections of one coordinator.

    most, most_of_one: in all, and from one address (for IPv6 of one /64).
    header_s: how long one may be silent.
    """

    def __init__(self, most: int, most_of_one: int, header_s: float) -> None:
        self.most, self.most_of_one, self.header_s = most, most_of_one, header_s
        self._addresses = Counter[str]()
        self._silent: OrderedDict[GuardedProtocol, None] = OrderedDict()

    @property
    def count(self) -> int:
        """How many there are."""
        return self._addresses.total()

    def admit(self, connection: "GuardedProtocol") -> bool:
        """Count a new connection, if there is room for it or a silent one makes some."""
        address = connection.address
        if self._addresses[address] >= self.most_of_one and not self._make_room(address):
            return False
        if self.count >= self.most and not self._make_room(None):
            return False
        self._addresses[address] += 1
        self._silent[connection] = None
        return True

    def leave(self, connection: "GuardedProtocol") -> None:
        """Forget a connection that was admitted."""
        self.headers_complete(connection)
        self._addresses[connection.address] -= 1
        if not self._addresses[connection.address]:
            del self._addresses[connection.address]

    def waits(self, connection: "GuardedProtocol") -> None:
        """Nothing is asked on this connection, or not all of it: it may make room for another one."""
        self._silent[connection] = None

    def headers_complete(self, connection: "GuardedProtocol") -> None:
        """All headers of a request are there."""
        self._silent.pop(connection, None)

    def _make_room(self, address: str | None) -> bool:
        """Close the oldest silent connection, of this address if one is given."""
        oldest = next((each for each in self._silent if address in (None, each.address)), None)
        if oldest is None:
            return False
        oldest.give_up()
        return True


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol on llhttp, which refuses what two readers could understand differently (two lengths, folded
    headers, bare line feeds), with bounds on silence, on headers and on the number of connections.
    """

    guard: Connections
    address: str = ""
    _admitted = False
    _head_end = b""
    _head_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection came."""
        super().connection_made(transport)
        self.address = network_of(self.client[0] if self.client else "")
        self._admitted = self.guard.admit(self)
        if not self._admitted:
            log.warning("a connection was refused", why="there are as many as may be", connections=self.guard.count)
            transport.abort()
            return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self._deadline is not None and self._head_with(data) > HEADER_BYTES:
            self.send_400_response("The headers are too long.")
            return
        if self.parser is not None:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._deadline is None:
            self.guard.waits(self)
            self._expect_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. Raises RequestRefused for a second Host: a proxy may have read the other."""
        super().on_header(name, value)
        if [known for known, _ in self.headers].count(b"host") > 1:
            raise RequestRefused("A request has one Host header.")

    def on_headers_complete(self) -> None:
        """The request may be answered."""
        self._stop_waiting()
        self.guard.headers_complete(self)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """The request is answered. Until the next one the connection may make room."""
        super().on_response_complete()
        if self._admitted and self.cycle.response_complete and not self.transport.is_closing():
            self.guard.waits(self)

    def give_up(self) -> None:
        """Close the connection at once."""
        self.transport.abort()
        # Its place is free now, not when the loop comes to it.
        self._leave()

    def _head_with(self, data: bytes) -> int:
        """How many bytes of the request come before its body, this chunk included, which may hold more than its end."""
        before = self._head_end
        end = (before + data).find(_END)
        self._head_bytes += len(data) if end < 0 else end + len(_END) - len(before)
        self._head_end = (before + data)[1 - len(_END) :]
        return self._head_bytes

    def _leave(self) -> None:
        self._stop_waiting()
        if self._admitted:
            self._admitted = False
            self.guard.leave(self)

    def _expect_headers(self) -> None:
        self._head_end, self._head_bytes = b"", 0
        self._deadline = asyncio.get_running_loop().call_later(self.guard.header_s, self.give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def guarded(connections: Connections) -> type[GuardedProtocol]:
    """The protocol of one server."""
    return type("Guarded", (GuardedProtocol,), {"guard": connections})


def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, or the first half of an IPv6 one, of which everybody has many."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


def room_for(most: int) -> int:
    """So many connections at most, or fewer where the system gives the process too few descriptors even after they are
    raised as far as it may.
    """
    try:
        import resource
    except ImportError:  # a system without such limits
        return most
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return most if soft == resource.RLIM_INFINITY else max(min(most, soft - RESERVED_FILES), 16)


def tell_briefly(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A line for what no task answers for, such as a connection that cannot be accepted; no traceback of ours helps
    there.
    """
    error = context.get("exception")
    if isinstance(error, OSError):
        log.error("a connection failed", why=f"{context.get('message')}: {error.strerror or error}")
    else:
        log.error("event loop", why=str(context.get("message")), exc_info=error)
