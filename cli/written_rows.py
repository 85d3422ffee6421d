"""Rows as a CSV file."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def write_rows(place: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a whole file, which takes the place of what was there only when it is durable."""
    from coterie.protocol.files import sync_folder

    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.part")
    with part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
        file.flush()
        os.fsync(file.fileno())
    part.replace(place)
    sync_folder(place.absolute().parent)
