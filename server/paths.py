"""Parameters that the paths of several routes have."""

from typing import Annotated

from fastapi import Path

TaskPath = Annotated[str, Path(max_length=64)]
BlobPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
