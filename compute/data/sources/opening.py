"""One way to whatever rows there are."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from coterie.compute.data.record.source import RecordSource
from coterie.compute.data.source import Source
from coterie.compute.data.sources.arrays import ArraySource
from coterie.compute.data.sources.csv.source import CsvSource
from coterie.compute.data.sources.images import ImageFolder
from coterie.compute.data.sources.jsonl import JsonlSource
from coterie.compute.data.sources.npz import NpzSource
from coterie.compute.data.sources.tables import ArrowSource, HuggingFaceSource
from coterie.compute.data.sources.text import TextSource
from coterie.errors import DataError

ENDINGS: Mapping[str, Callable[[Path], Source]] = {
    ".csv": CsvSource,
    ".csv.gz": CsvSource,
    ".npz": NpzSource,
    ".jsonl": JsonlSource,
    ".jsonl.gz": JsonlSource,
    ".txt": TextSource,
    ".txt.gz": TextSource,
    ".rec": RecordSource,
}


def open_source(given: object) -> Source:
    """The source of what is given, with the settings that it has without being told any.

    given: a source, which is returned; a mapping of arrays; a file with one of ENDINGS; a folder of images; a
    ``pyarrow.Table``; a ``datasets.Dataset``. Raises DataError for anything else. Nothing is read yet.
    """
    if isinstance(given, Source):
        return given
    if isinstance(given, Mapping):
        return ArraySource(cast(Mapping[str, Any], given))
    if isinstance(given, str | Path):
        path = Path(given)
        if path.is_dir():
            return ImageFolder(path)
        # The longest ending that fits.
        for ending in sorted(ENDINGS, key=len, reverse=True):
            if path.name.lower().endswith(ending):
                return ENDINGS[ending](path)
        if not path.suffix and not path.exists():
            raise DataError(f"{path}: there is no such file or folder.", hint="Check the path.", code="data_missing")
        raise DataError(
            f"{path}: no source reads this ending.",
            hint=f"Known are {', '.join(ENDINGS)}, and folders of images.",
            code="data_unknown_format",
        )
    if all(hasattr(given, name) for name in ("schema", "num_rows", "take")):
        return ArrowSource(cast(Any, given))
    if all(hasattr(given, name) for name in ("features", "with_format", "__len__")):
        return HuggingFaceSource(cast(Any, given))
    own = all(hasattr(given, name) for name in ("columns", "rows", "__len__"))
    raise DataError(
        f"A {type(given).__name__} is no source of rows.",
        hint="Derive its class from coterie.compute.data.Source."
        if own
        else "Give arrays by name, a path, a pyarrow.Table, a datasets.Dataset, or a Source.",
        code="data_unknown_format",
    )
