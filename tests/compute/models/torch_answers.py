"""What PyTorch says of layers and networks, from torch_answers.npz, which make_torch_answers.py writes."""

from functools import cache
from pathlib import Path

import numpy as np

from coterie.compute.ir import NDArray


@cache
def _answers() -> dict[str, NDArray]:
    with np.load(Path(__file__).parent / "torch_answers.npz") as file:
        return {name: file[name] for name in file.files}


def answer(name: str) -> NDArray:
    """One answer, by its name in the file."""
    return _answers()[name]


def answers(folder: str) -> dict[str, NDArray]:
    """All answers whose names begin with a folder's, by what follows."""
    start = f"{folder}/"
    return {name.removeprefix(start): value for name, value in _answers().items() if name.startswith(start)}
