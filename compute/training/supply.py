"""What a trainer may be given as its data, as a supply of batches."""

from typing import TypeAlias

from coterie.compute.data.batched import Batched
from coterie.compute.data.batches import WEIGHT
from coterie.compute.data.dataset import Dataset
from coterie.compute.data.supply import Arrays, OfArrays, OfPipeline, PlacedSupply
from coterie.compute.ir import NDArray
from coterie.compute.training.checks import check_data
from coterie.errors import InputError

Data: TypeAlias = Arrays | Dataset | Batched


def trainer_supply(data: Data, label: str, batch_size: int, seed: int, weights: NDArray | None = None) -> PlacedSupply:
    """Arrays, or a pipeline whose batches have ``batch_size`` rows; a data set without batches is batched as it is.

    weights: of the rows of arrays. Raises InputError for what is neither, batches of another size, weights beside a
    pipeline, and sync points, which a trainer cannot update.
    """
    batched = data.batch(batch_size) if isinstance(data, Dataset) else data
    if not isinstance(batched, Batched):
        return OfArrays(check_data(batched, label), batch_size, seed, weights)
    if weights is not None:
        raise InputError(
            f"Trainer: {WEIGHT} goes with arrays; the data is a pipeline.",
            hint="Keep the weights in a column, and let batch(..., per_batch_map=...) multiply "
            f"the batch's {WEIGHT!r} by it and drop it.",
        )
    if batched.size != batch_size:
        raise InputError(
            f"Trainer: the data's batches have {batched.size} rows, the trainer's batch_size is {batch_size}.",
            hint=f"Give Trainer(..., batch_size={batched.size}).",
        )
    if batched.points:
        raise InputError(
            "Trainer: the data has sync points, which nobody would update.",
            hint="Take its stream() and train in a loop of your own, with a TrainStep.",
        )
    first = {name: values for name, values in batched.first().items() if name != WEIGHT}
    return OfPipeline(batched, check_data(first, label))
