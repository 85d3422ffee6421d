"""What training draws, on a device and in a `Trainer`, the same in every language: streams of `coterie.randomness`.

Nothing here is secret: whoever knows a task knows its seed. What must be secret (noise, the draws of private rows,
keys) comes from the system.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from coterie.randomness import long_words, seed_of, uniforms

LABEL = "coterie-train-1"
HELD_OUT = seed_of("coterie-holdout-1")


def batch_order(rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which a pass takes the rows, int64 [rows]: the stable order of the first `rows` 64-bit words of the
    stream of ``("coterie-train-1", "order", seed, epoch)``, numbers in decimal.

    epoch: from 0.
    """
    words = long_words(seed_of(LABEL, "order", str(seed), str(epoch)), 0, rows)
    # A word's high bits with the row's number below them: sorting these values alone is several times as fast as an
    # argsort, and gives the same unless two words agree in all high bits.
    low = np.uint64(2 ** max(rows - 1, 1).bit_length() - 1)
    packed = (words & ~low) | np.arange(rows, dtype=np.uint64)
    packed.sort()
    if ((packed[1:] ^ packed[:-1]) <= low).any():
        return np.argsort(words, kind="stable")
    return (packed & low).astype(np.int64)


def row_salt(seed: int, epoch: int) -> int:
    """What an epoch of a training adds to the seeds of a pipeline whose rows are made for it, so that it augments them
    anew: the first 64-bit word of the stream of ``("coterie-train-1", "rows", seed, epoch)``.

    epoch: from 0.
    """
    return int(long_words(seed_of(LABEL, "rows", str(seed), str(epoch)), 0, 1)[0])


def random_inputs(seed: int, step: int, count: int) -> npt.NDArray[np.float32]:
    """The numbers in [0, 1) that one step's random inputs take together, float32 [count]: numbers [step · count, (step
    + 1) · count) of the stream of ``("coterie-train-1", "random", seed)``, 24 bits of each 32-bit word.

    step: from 0. The inputs take them in the order in which the manifest names them.
    """
    return uniforms(seed_of(LABEL, "random", str(seed)), step * count, (step + 1) * count)


def random_arrays(seed: int, step: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, npt.NDArray[np.float32]]:
    """The random inputs of one step by name, float32 of these shapes: they share out `random_inputs`, in this order."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    parts = np.split(random_inputs(seed, step, sum(sizes)), np.cumsum(sizes)[:-1]) if sizes else []
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def held_out(count: int, share: float) -> npt.NDArray[np.bool_]:
    """For each of `count` rows whether it is held out: never trained on, and kept for evaluation.

    Row i is, when the i-th 64-bit word of the stream of ``("coterie-holdout-1",)`` is below ⌊share · 2**64⌋. So the
    choice depends on a row's place in the data and on nothing else: it is the same in every round and experiment, and
    rows appended later change nothing for those before them. About `share` of many rows are held out; of few rows it
    may be none. One row at least is always left to train on: the first, where all would be held out.
    """
    chosen = long_words(HELD_OUT, 0, count) < int(share * 2**64)
    if count and chosen.all():
        chosen[0] = False
    return chosen
