"""Text files as sources, a row a line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.data.sources.lines import Lines, OpenedLines
from coterie.compute.ir import NDArray
from coterie.errors import DataError


@final
@dataclass(frozen=True, eq=False)
class TextSource(Source):
    """The lines of a text file in UTF-8, plain or gzipped (``*.gz``), as one column of text.

    path: the file. column: the name of the column. Empty lines are no rows; a line's end is no part of it. Only where
    the lines are is kept in memory, and an unpacked file. Raises DataError naming file and line.
    """

    path: str | Path
    column: str = "text"
    _opened: OpenedLines = field(default_factory=OpenedLines, init=False, repr=False)

    @property
    def columns(self) -> Mapping[str, Column]:
        """One column of text."""
        return {self.column: Column("str")}

    def __len__(self) -> int:
        return len(self._lines().starts)

    def rows(self, indices: NDArray) -> Rows:
        """These lines."""
        lines = self._lines()
        return {self.column: [self._decoded(lines, row) for row in indices.tolist()]}

    def _lines(self) -> Lines:
        return self._opened.of(Path(self.path))

    def _decoded(self, lines: Lines, row: int) -> str:
        try:
            return lines.at(row).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{Path(self.path).name}: line {lines.numbers[row]} is not UTF-8.",
                hint="Save the file as UTF-8.",
                code="data_unreadable",
                row=row + 1,
            ) from error
