"""A line between two processes of a step: messages while they get ready, one byte each while they step."""

import socket
import struct
from typing import Final

# What is told by one byte.
GO: Final = b"g"
MET: Final = b"m"
FAILED: Final = b"f"
READY: Final = b"r"

_LENGTH = struct.Struct("<Q")


class Gone(Exception):
    """The other process has ended."""


class Channel:
    """One end of the line. Raises Gone, whatever is asked of it, once the other end is closed."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def tell(self, byte: bytes) -> None:
        """Send one byte."""
        try:
            self._line.sendall(byte)
        except OSError as error:
            raise Gone from error

    def hear(self) -> bytes:
        """The next byte."""
        return self._read(1)

    def send(self, message: bytes) -> None:
        """Send a message of any length."""
        self.tell(_LENGTH.pack(len(message)))
        self.tell(message)

    def receive(self) -> bytes:
        """The next message."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(int(length))

    def close(self) -> None:
        """Hang up."""
        self._line.close()

    def _read(self, count: int) -> bytes:
        if count == 1:
            return self._some(1)
        parts: list[bytes] = []
        while count:
            parts.append(self._some(min(count, 1 << 20)))
            count -= len(parts[-1])
        return b"".join(parts)

    def _some(self, count: int) -> bytes:
        try:
            found = self._line.recv(count)
        except OSError as error:
            raise Gone from error
        if not found:
            raise Gone
        return found
