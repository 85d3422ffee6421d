"""Checkpoints: arrays by name and a few facts, as one file without anything executable."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile

from coterie.compute.ir import NDArray
from coterie.errors import InputError

Fact: TypeAlias = int | str

_FACTS = "facts.json"
# What NumPy, zipfile, zlib and json raise for bytes that are not theirs: RuntimeError for compressions that they do not
# know, MemoryError for arrays of impossible sizes.
_UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, RuntimeError, MemoryError, OverflowError,
)  # fmt: skip


def write_checkpoint(path: str | Path, arrays: Mapping[str, NDArray], facts: Mapping[str, Fact]) -> None:
    """Write arrays and facts as an ``.npz`` file; the old file stays until the new one is complete.

    Raises InputError when the file cannot be written.
    """
    target = Path(path)
    told = np.frombuffer(json.dumps(dict(facts), sort_keys=True).encode(), np.uint8)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            np.savez(file, **{**arrays, _FACTS: told})  # pyright: ignore[reportArgumentType]  names are free
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise InputError(f"The checkpoint {target} cannot be written: {error}") from error


def read_checkpoint(path: str | Path) -> tuple[dict[str, NDArray], dict[str, Fact]]:
    """The arrays and facts of a checkpoint. Raises InputError for a file that cannot be read or is none."""
    try:
        # Opened here: NumPy leaves a file open that turns out to be damaged.
        with Path(path).open("rb") as file:
            loaded = cast(object, np.load(file, allow_pickle=False))
            if not isinstance(loaded, NpzFile):
                raise ValueError("it holds one array")
            arrays = {name: cast(NDArray, loaded[name]) for name in loaded.files}
        facts = json.loads(arrays.pop(_FACTS).tobytes())
    except _UNREADABLE as error:
        # NumPy's own words advise to load the file unsafely.
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged or of another kind"
        raise InputError(
            f"{path} is no checkpoint of a trainer: {why}.", hint="Give a file that Trainer.save wrote."
        ) from error
    table: dict[str, Any] = cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}
    if not table or not all(type(fact) in (int, str) for fact in table.values()):
        raise InputError(f"{path} is no checkpoint of a trainer: its facts are not a table of whole numbers and texts.")
    return arrays, table
