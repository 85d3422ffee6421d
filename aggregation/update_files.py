"""Update files: each read once and held to its digest, or in blocks as often as a rule needs them, so that memory does
not grow with their number.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.accumulator import EITHER
from coterie.aggregation.plan.manifest import Manifest
from coterie.protocol.canonical import sha256_hex
from coterie.protocol.files import storage_error
from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import Update, read_update

# Elements of a block over all updates: 64 MiB of float32.
BLOCK = 1 << 24
NARROWEST = 1 << 12


@dataclass(frozen=True)
class UpdateFile:
    """An update that a host has kept.

    task: whose it is, as far as the host knows.
    sha256: of its bytes as they came in, which they are held to; None where nobody has hashed them.
    """

    task: str
    path: Path
    sha256: str | None = None

    def read(self, manifest: Manifest, *, keep: bool) -> Update:
        """The update, its header checked.

        keep: whether its bytes are read once and stay in memory until they are added; else they are read from the file,
            block by block, as often as a rule needs them.

        Raises errors.StorageError (``blob_damaged``) for bytes that have changed since they were hashed, and
        errors.UpdateRefused as `read_update` does.
        """
        data = bytes_of(self.path) if keep else None
        if self.sha256 is not None:
            found = sha256_of(self.path) if data is None else sha256_hex(data)
            if found != self.sha256:
                raise errors.StorageError(
                    f"The file {self.path} of an update has changed since it was stored.",
                    hint="Restore it from a backup of the coordinator's folder, and check the disk.",
                    code="blob_damaged",
                )
        return read_update(self.path if data is None else data, manifest.sections, plan=manifest.id, limits=EITHER)


def in_order(updates: Sequence[Path | UpdateFile]) -> list[UpdateFile]:
    """The files in an order that does not depend on how they were given: by task, or by name where no task is known."""
    files = [UpdateFile(one.name, one) if isinstance(one, Path) else one for one in updates]
    return sorted(files, key=lambda file: (file.task, file.path))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, read in blocks. Raises errors.StorageError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise storage_error(path, error) from error


def bytes_of(source: Path | bytes) -> bytes:
    """The bytes of a file; what is bytes already stays as it is. Raises errors.StorageError."""
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except OSError as error:
        raise storage_error(source, error) from error


@dataclass(frozen=True)
class UpdateFiles:
    """Checked updates of one plan, in files.

    chosen: the sections that are seen as one vector.
    """

    updates: tuple[Update, ...]
    chosen: tuple[SectionSpec, ...]

    @property
    def count(self) -> int:
        """How many updates."""
        return len(self.updates)

    @property
    def length(self) -> int:
        """Elements of one."""
        return sum(spec.length for spec in self.chosen)

    @property
    def order(self) -> None:
        """They are given in their order."""
        return None

    def blocks(self) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """(first element, ``[count, width]``) over all elements; the payloads are decoded range by range."""
        width = max(BLOCK // self.count, NARROWEST)
        for start in range(0, self.length, width):
            block = np.empty((self.count, min(width, self.length - start)), np.float32)
            for row, update in zip(block, self.updates, strict=True):
                _fill(row, update, self.chosen, start)
            yield start, block


def _fill(row: npt.NDArray[np.float32], update: Update, specs: Sequence[SectionSpec], start: int) -> None:
    """Elements from ``start`` on of the sections, seen as one vector."""
    at = 0
    for spec in specs:
        low, high = max(start, at), min(start + row.size, at + spec.length)
        if low < high:
            row[low - start : high - start] = update.decode(spec.name, low - at, high - at)
        at += spec.length
