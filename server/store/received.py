"""What has come in, in a file of this machine that is promised to nobody."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHUNK: Final = 1024 * 1024


@dataclass(frozen=True)
class Received:
    """Bytes that came in.

    path: a scratch file, which whoever received it deletes.
    sha256, size: counted while they came.
    """

    path: Path
    sha256: str
    size: int

    def chunks(self) -> AsyncIterator[bytes]:
        """The bytes, in chunks."""
        return chunks_of(self.path)


async def chunks_of(path: Path) -> AsyncIterator[bytes]:
    """The bytes of a file of this machine, in chunks."""
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk
