"""Averaging over versions: the mean of the last ones is often better than the last, which the newest cohort pulled.

Izmailov, Podoprikhin, Garipov, Vetrov, Wilson: "Averaging Weights Leads to Wider Optima and Better Generalization"
(2018); FedExP (2023) evaluates the mean of the last two.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie import errors
from coterie.aggregation.history import History
from coterie.aggregation.number import is_number
from coterie.protocol.arrays import ArraysByName
from coterie.protocol.layout import Layout
from coterie.protocol.tensors import read_file


def average(
    versions: Sequence[ArraysByName], weights: Sequence[float] | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """The weighted mean of versions of one layout, tensor by tensor; equal weights when None.

    Sums are kept in float64. Running statistics are averaged like weights, which is what a round does with them.
    Raises errors.InputError: ``nothing_to_average`` for no version or weights that do not sum to a positive number,
    ``layout_mismatch`` naming a tensor that another version does not have.
    """
    counts = np.ones(len(versions)) if weights is None else np.asarray(weights, np.float64)
    if counts.shape != (len(versions),) or not (counts >= 0).all() or not 0 < counts.sum() < np.inf:
        raise errors.InputError(
            f"{len(versions)} versions cannot be averaged with the weights {counts.tolist()[:8]}.",
            hint="Give one version or more, and one weight of at least 0 for each, not all 0.",
            code="nothing_to_average",
        )
    layout = Layout.of({name: value.shape for name, value in versions[0].items()})
    total = np.zeros(layout.size, np.float64)
    for version, count in zip(versions, counts / counts.sum(), strict=True):
        total += count * layout.flatten(version).astype(np.float64)
    return layout.unflatten(total.astype(np.float32))


def average_last(history: History, folder: str | Path, count: int) -> dict[str, npt.NDArray[np.float32]]:
    """The mean of the versions that a simulation's last ``count`` rounds made, from the folder that it kept them in.

    Rounds that made none are passed over; there may be fewer. Raises as `average`, and errors.StorageError.
    """
    if not is_number(count) or not 1 <= count < np.inf or count != int(count):
        raise errors.InputError(
            f"The last {count!r} versions cannot be averaged; how many must be a whole number of at least 1.",
            code="nothing_to_average",
        )
    made = [record.model for record in history.rounds if record.model is not None]
    return average([read_file(Path(folder) / f"{version}.safetensors") for version in made[-int(count) :]])
