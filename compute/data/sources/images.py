"""Folders of images as sources."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np

from coterie.compute.data.source import Column, Rows, Source
from coterie.compute.ir import NDArray
from coterie.errors import DataError

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a folder in the order of their names, and the class of each (None where there are no classes)."""

    files: tuple[Path, ...]
    classes: tuple[str, ...]
    labels: NDArray | None


class Listed:
    """A folder's listing, made once in a process. Sent to another process it arrives empty."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listing: Listing | None = None

    def __reduce__(self) -> tuple[type["Listed"], tuple[()]]:
        return Listed, ()


@final
@dataclass(frozen=True, eq=False)
class ImageFolder(Source):
    """Image files in folders named by their classes, ``path/<class>/…/<file>``; or in one folder, without classes.

    path: the folder. classes: the names of all classes in the order of their labels; None for those that are there, by
    name. Give them where several clients train together: one that lacks a class would number the others differently.

    Columns: ``image``, the bytes of the file as they are (decoding is a step of a pipeline, so that its workers do it);
    ``label`` int64, where there are classes; ``path``, relative to the folder, in which the order is that of names.
    Files with other endings than an image's, and those whose name begins with a dot, are left out. Raises DataError for
    a folder with no image, images beside folders of classes, a class that is not in ``classes``, and a file that cannot
    be read.
    """

    path: str | Path
    classes: Sequence[str] | None = None
    _listed: Listed = field(default_factory=Listed, init=False, repr=False)

    @property
    def columns(self) -> Mapping[str, Column]:
        """image, label where there are classes, and path."""
        label = {} if self._listing().labels is None else {"label": Column("int64")}
        return {"image": Column("bytes"), **label, "path": Column("str")}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, by label; empty where there are none."""
        return self._listing().classes

    def __len__(self) -> int:
        return len(self._listing().files)

    def rows(self, indices: NDArray) -> Rows:
        """The bytes of these files."""
        listing, root = self._listing(), Path(self.path)
        numbers: list[int] = indices.tolist()
        files = [listing.files[row] for row in numbers]
        rows: dict[str, Any] = {"image": [file_bytes(file) for file in files]}
        if listing.labels is not None:
            rows["label"] = listing.labels[indices]
        return rows | {"path": [file.relative_to(root).as_posix() for file in files]}

    def _listing(self) -> Listing:
        with self._listed.lock:
            if self._listed.listing is None:
                self._listed.listing = _list(Path(self.path), self.classes)
            return self._listed.listing


def _list(root: Path, classes: Sequence[str] | None) -> Listing:
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder.", hint="Check the path.", code="data_missing")
    # A class may be a link to a folder elsewhere; links further down are not followed, which may lead round in circles.
    folders = [path for path in root.iterdir() if path.is_dir()]
    found_files = [*root.iterdir(), *(path for folder in folders for path in folder.rglob("*"))]
    files = sorted(path for path in found_files if _is_image(path, root))
    if not files:
        raise DataError(
            f"{root}: there is no image in the folder.",
            hint=f"Files end in {', '.join(ENDINGS)}; those of a class lie in a folder of its name.",
            code="data_empty",
        )
    found = [path.relative_to(root).parts[0] if path.parent != root else None for path in files]
    names = sorted({name for name in found if name is not None})
    if not names and classes is None:
        return Listing(tuple(files), (), None)
    if None in found:
        raise DataError(
            f"{root}: {files[found.index(None)].name} lies beside the folders of classes.",
            hint="Move it into the folder of its class.",
            code="data_invalid",
        )
    order = tuple(names if classes is None else classes)
    unknown = [name for name in names if name not in order]
    if unknown:
        raise DataError(
            f"{root}: the folder {unknown[0]!r} is none of the classes {', '.join(order[:20])}.",
            hint="Add it to classes=, or move it away.",
            code="data_cell",
        )
    number = {name: label for label, name in enumerate(order)}
    return Listing(tuple(files), order, np.array([number[str(name)] for name in found], np.int64))


def _is_image(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.suffix.lower() in ENDINGS and not hidden and path.is_file()


def file_bytes(path: Path) -> bytes:
    """The bytes of a file. Raises DataError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}.", hint="Check the file.", code="data_unreadable"
        ) from error
