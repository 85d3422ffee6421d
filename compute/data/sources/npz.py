"""NPZ files as sources."""

import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast, final

import numpy as np
from numpy.lib.npyio import NpzFile

from coterie.compute.data.checks import check_named
from coterie.compute.data.sources.arrays import ArraySource
from coterie.compute.data.sources.loaded import LoadedSource
from coterie.compute.ir import NDArray
from coterie.errors import DataError

# Whatever NumPy and the archive raise for files that are damaged, encrypted, of another format, or made to deceive.
DAMAGE = (
    OSError, EOFError, ValueError, MemoryError, RuntimeError, SyntaxError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError,
)  # fmt: skip


@final
@dataclass(frozen=True, eq=False)
class NpzSource(LoadedSource):
    """A file of ``np.savez`` or ``np.savez_compressed``: an array a column.

    path: the file. select: what to read: name → the array's name in the file; None for every array by its own name. The
    file is read on first use and stays in memory. Arrays of Python objects are refused: they would be unpickled, and a
    pickle can run any code. Raises DataError naming the file.
    """

    path: str | Path
    select: Mapping[str, str] | None = None

    def load(self) -> ArraySource:
        """Read the arrays. Raises DataError."""
        check_named("NpzSource", select=self.select)
        path = Path(self.path)
        if not path.is_file():
            raise DataError(f"{path}: there is no such file.", hint="Check the path.", code="data_missing")
        with opened_npz(path) as archive:
            select = {name: name for name in archive} if self.select is None else self.select
            for name in select.values():
                if name not in archive:
                    raise _missing(path.name, name, [*archive])
            arrays = {column: archive[name] for column, name in select.items()}
        try:
            return ArraySource(arrays)
        except DataError as error:
            raise DataError(f"{path.name}: {error.message}", hint=error.hint, code=error.reason) from error


@contextmanager
def opened_npz(path: Path) -> Generator[Mapping[str, NDArray]]:
    """The arrays of a file, each read when it is asked for. Raises DataError for what cannot be read, in the block."""
    try:
        # NumPy leaves a file open that it opened itself and cannot read.
        with path.open("rb") as opened:
            file = cast(object, np.load(opened, allow_pickle=False))
            if not isinstance(file, NpzFile):
                raise ValueError("it holds one array without a name, as .npy files do")
            yield cast(Mapping[str, NDArray], file)
    except DAMAGE as error:
        raise unreadable(path.name, error) from error


def unreadable(name: str, error: Exception) -> DataError:
    """The error for a file of arrays of which NumPy says ``error``."""
    # NumPy takes whatever it does not know for a pickle, and advises to load it unsafely.
    why = "it holds other things than plain arrays" if "pickle" in str(error) else str(error).rstrip(".")
    return DataError(
        f"{name} cannot be read: {why}.",
        hint="Check that the file is whole; write it with NumPy, of arrays of numbers, booleans or text.",
        code="data_unreadable",
    )


def _missing(file: str, name: str, found: list[str]) -> DataError:
    return DataError(
        f"{file}: array {name!r} is missing; found {', '.join(found[:20]) or 'nothing'}.",
        hint="Correct the name.",
        code="data_missing",
        column=name,
    )
