"""NPZ files as sources."""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import numpy as np
from numpy.lib.npyio import NpzFile

from coterie.compute.data.sources.arrays import ArraySource, Values
from coterie.compute.data.sources.loaded import LoadedSource
from coterie.errors import DataError

DAMAGE = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error)


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
        path = Path(self.path)
        if not path.is_file():
            raise DataError(f"{path}: there is no such file.", hint="Check the path.", code="data_missing")
        arrays: dict[str, Values] = {}
        try:
            # NumPy leaves a file open that it opened itself and cannot read.
            with path.open("rb") as opened:
                file = cast(object, np.load(opened, allow_pickle=False))
                if not isinstance(file, NpzFile):
                    raise ValueError("it holds one array without a name, as .npy files do")
                archive = cast(Mapping[str, Any], file)
                select = {name: name for name in file.files} if self.select is None else self.select
                for column, name in select.items():
                    if name not in file.files:
                        raise _missing(path.name, name, file.files)
                    arrays[column] = archive[name]
        except DAMAGE as error:
            # NumPy takes whatever it does not know for a pickle, and advises to load it unsafely.
            why = "it holds other things than plain arrays" if "pickle" in str(error) else str(error).rstrip(".")
            raise DataError(
                f"{path.name} cannot be read: {why}.",
                hint="Write it with np.savez, of arrays of numbers, booleans or text.",
                code="data_unreadable",
            ) from error
        return ArraySource(arrays)


def _missing(file: str, name: str, found: list[str]) -> DataError:
    return DataError(
        f"{file}: array {name!r} is missing; found {', '.join(found[:20]) or 'nothing'}.",
        hint="Correct the name.",
        code="data_missing",
        column=name,
    )
