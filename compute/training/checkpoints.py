"""Checkpoints: arrays by name and a few facts, as one file without anything executable."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import InputError

_FACTS = "facts.json"


def write_checkpoint(path: str | Path, arrays: Mapping[str, NDArray], facts: Mapping[str, int]) -> None:
    """Write arrays and facts (whole numbers) as an ``.npz`` file; the old file stays until the new one is complete.

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


def read_checkpoint(path: str | Path) -> tuple[dict[str, NDArray], dict[str, int]]:
    """The arrays and facts of a checkpoint. Raises InputError for a file that cannot be read or is none."""
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            arrays = {name: cast(NDArray, file[name]) for name in file.files}
        facts = json.loads(arrays.pop(_FACTS).tobytes())
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no checkpoint of a trainer: {error}", hint="Give a file that Trainer.save wrote."
        ) from error
    table: dict[str, Any] = cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}
    if not table or not all(type(fact) is int for fact in table.values()):
        raise InputError(f"{path} is no checkpoint of a trainer: its facts are not a table of whole numbers.")
    return arrays, table
