"""Update files as a source that reducers read in blocks, so that memory does not grow with their number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.protocol.sections import SectionSpec
from coterie.protocol.update import Update, read_update

# Elements of a block over all updates: 64 MiB of float32.
BLOCK = 1 << 24
NARROWEST = 1 << 12


@dataclass(frozen=True)
class UpdateFiles:
    """Checked update files of one plan. specs: the plan's sections; of them, chosen are seen as one vector."""

    paths: tuple[Path, ...]
    specs: tuple[SectionSpec, ...]
    chosen: tuple[SectionSpec, ...]

    @property
    def count(self) -> int:
        """How many updates."""
        return len(self.paths)

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
        updates = [read_update(path, self.specs) for path in self.paths]
        width = max(BLOCK // self.count, NARROWEST)
        for start in range(0, self.length, width):
            block = np.empty((self.count, min(width, self.length - start)), np.float32)
            for row, update in zip(block, updates, strict=True):
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
