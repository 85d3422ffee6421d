"""Taking the masks off a sum, in one process or in several, each of which owns a range of coordinates.

The key streams are most of the work, and `cryptography` holds the interpreter's lock while it encrypts, so threads do
not help and processes do. Every process has all seeds, computes no word that another one does, and sends back four
bytes for each of its coordinates: nothing beside the thousands of words that each of them took to compute.
"""

from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from coterie.privacy.secagg.masks import MaskSeed, add_masks
from coterie.privacy.secagg.ring import RingVector

_GRAIN = 16  # coordinates: ranges end where blocks of the cipher, and lines of the processor's cache, do


def remove(total: RingVector, masks: Sequence[MaskSeed], executor: Executor | None = None, shards: int = 1) -> None:
    """Subtract the masks from `total`, in place, modulo 2**32; bit for bit the same whatever the number of `shards`.

    masks: as they were added, with their signs.
    executor: one whose workers are processes; `shards` of its tasks take a range of coordinates each, and `total` is as
        it was if one of them fails. None does everything here.
    """
    removed = [mask.opposite for mask in masks]
    ranges = split(total.size, shards)
    if executor is None or len(ranges) <= 1:
        add_masks(total, removed)
        return
    # As two strings of bytes, which reach the workers sooner than thousands of objects.
    seeds, signs = b"".join(mask.seed for mask in removed), bytes(mask.sign == 1 for mask in removed)
    tasks = [executor.submit(_words_of, seeds, signs, low, high) for low, high in ranges]
    for (low, high), words in zip(ranges, [task.result() for task in tasks], strict=True):
        total[low:high] += words


def split(length: int, shards: int) -> list[tuple[int, int]]:
    """At most `shards` ranges [start, stop) of about one size that cover `length` coordinates; none is empty."""
    step = -(-length // max(1, shards) // _GRAIN) * _GRAIN
    return [(low, min(low + step, length)) for low in range(0, length, step)] if length else []


def _words_of(seeds: bytes, signs: bytes, low: int, high: int) -> RingVector:
    """The sum of all masks over [low, high).

    seeds: 32 bytes each.
    signs: 1 where a mask is added.
    """
    words = np.zeros(high - low, np.uint32)
    masks = [MaskSeed(seeds[32 * i : 32 * i + 32], 1 if sign else -1) for i, sign in enumerate(signs)]
    add_masks(words, masks, low)
    return words
