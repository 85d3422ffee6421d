"""A dry run in files: the exact bytes that would leave this machine, for an owner to look at."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from coterie.errors import InputError
from coterie.protocol.files import create_durably
from coterie.protocol.private_files import make_private_folder

CHECK_IN: Final = "check-in.json"
TASK: Final = "task.json"
UPLOAD: Final = "upload.bin"
VECTOR: Final = "vector-before-masking.bin"
SUMMARY: Final = "dry-run.json"


def check_free(folder: Path) -> None:
    """Raise InputError (``folder_exists``) for a folder that holds something: nothing is ever replaced."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(
            f"{folder} exists already, and a dry run replaces nothing.",
            hint="Name a folder that is absent or empty.",
            code="folder_exists",
        )


def save(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files for this user alone. Raises StorageError."""
    make_private_folder(folder)
    for name, data in files.items():
        create_durably(folder / name, data, mode=0o600)
