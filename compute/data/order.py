"""Orders of rows that depend on a seed alone, and are the same on every machine and NumPy version."""

import numpy as np

from coterie.compute.ir import NDArray


def permutation(rows: int, seed: int, epoch: int) -> NDArray:
    """All numbers below ``rows`` in an order of their own for each seed and epoch, int64 [rows].

    It is the stable order of the raw words of Philox under the key (seed mod 2**64, epoch): no library's shuffle, whose
    stream may change between versions, has a part in it.
    """
    words = np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64)).random_raw(rows)
    # A word's high bits with the row's number below them: sorting these values alone is several times as fast as an
    # argsort, and gives the same unless two words agree in all high bits.
    low = np.uint64(2 ** max(rows - 1, 1).bit_length() - 1)
    packed = (words & ~low) | np.arange(rows, dtype=np.uint64)
    packed.sort()
    if ((packed[1:] ^ packed[:-1]) <= low).any():
        return np.argsort(words, kind="stable")
    return (packed & low).astype(np.int64)
