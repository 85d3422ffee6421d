"""Planners: pure functions from blocks to places in one arena, so that no two blocks that are live together overlap.

To place blocks in the least memory is NP-complete (Garey and Johnson 1979, problem SR2, dynamic storage allocation), so
these are greedy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.compute.memory.lifetimes import Block

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each block begins, in bytes from the beginning of the arena, and how large the arena is."""

    offsets: Mapping[Block, int]
    bytes: int


Planner = Callable[[Sequence[Block], int], Plan]


def without_reuse(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> Plan:
    """Every block in a place of its own."""
    offsets: dict[Block, int] = {}
    end = 0
    for block in blocks:
        offsets[block] = end
        end += _aligned(block.bytes, alignment)
    return Plan(offsets, end)


def two_cursors(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> Plan:
    """What is held grows from the head of the arena, what is temporary from its tail. The tail moves back when the
    block at it is free; a free block further in waits for those after it, as on a stack.
    """
    offsets: dict[Block, int] = {}
    head = 0
    for block in blocks:
        if block.kind == "held":
            offsets[block] = head
            head += _aligned(block.bytes, alignment)
    stack: list[tuple[Block, int]] = []  # a temporary block and its distance from the tail
    deepest = 0
    distances: dict[Block, int] = {}
    for block in sorted((b for b in blocks if b.kind == "temporary"), key=lambda b: b.start):
        while stack and stack[-1][0].end < block.start:
            stack.pop()
        distance = (stack[-1][1] if stack else 0) + _aligned(block.bytes, alignment)
        stack.append((block, distance))
        distances[block] = distance
        deepest = max(deepest, distance)
    size = head + deepest
    offsets.update({block: size - distance for block, distance in distances.items()})
    return Plan(offsets, size)


def best_fit(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> Plan:
    """From the largest block to the smallest, each into the smallest gap that takes it between the blocks which are
    live with it (Pisarchyk and Lee, arXiv 2001.03288, greedy by size).
    """
    ordered = sorted(blocks, key=lambda b: (-b.bytes, b.start))
    # In arrays, since each block is held against all that are placed.
    starts, ends = (np.asarray([getattr(block, side) for block in ordered], np.int64) for side in ("start", "end"))
    begins, tops = np.zeros(len(ordered), np.int64), np.zeros(len(ordered), np.int64)
    offsets: dict[Block, int] = {}
    size = 0
    for index, block in enumerate(ordered):
        needed = _aligned(block.bytes, alignment)
        around = np.flatnonzero((starts[:index] <= block.end) & (ends[:index] >= block.start))
        around = around[np.lexsort((tops[around], begins[around]))]
        offset = _smallest_gap(list(zip(begins[around].tolist(), tops[around].tolist(), strict=True)), needed)
        offsets[block] = begins[index] = offset
        tops[index] = offset + needed
        size = max(size, offset + needed)
    return Plan(offsets, size)


def _smallest_gap(taken: Sequence[tuple[int, int]], needed: int) -> int:
    """Where the smallest gap begins that has room; behind everything when there is none."""
    best, found, free = 0, -1, 0
    for start, end in taken:
        room = start - free
        if room >= needed and (found < 0 or room < best):
            best, found = room, free
        free = max(free, end)
    return free if found < 0 else found


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


PLANNERS: Mapping[str, Planner] = {
    "no reuse": without_reuse,
    "two cursors": two_cursors,
    "best fit": best_fit,
}
