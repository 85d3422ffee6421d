"""From what was observed of an activation to the range that its levels cover."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.quant.histogram import Histogram, Range
from coterie.compute.quant.settings import Method, QuantSettings

# How many widths the search by divergence tries.
_TRIED = 128


def chosen_range(seen: Histogram, settings: QuantSettings) -> Range:
    """The range by the method of the settings.

    ``minmax``: all of it. ``percentile``: as much as leaves (100 - percentile) / 2 per cent of the numbers outside on
    either side, to the nearest edge of a part. ``kl``: the part around 0 whose levels tell least wrongly how the
    numbers are distributed (Migacz 2017, 8-bit inference with TensorRT). A histogram of extremes alone has its extremes
    as its range, whatever the method.
    """
    counts = np.maximum(seen.counts, 0)  # sums under noise can be below nothing
    if not counts.any():
        return seen.low, seen.high
    return _METHODS[settings.calibration](replace(seen, counts=counts), settings)


def _minmax(seen: Histogram, settings: QuantSettings) -> Range:
    return seen.low, seen.high


def _percentile(seen: Histogram, settings: QuantSettings) -> Range:
    outside = (100 - settings.percentile) / 200
    share = np.cumsum(seen.counts) / seen.counts.sum()
    edges = seen.edges
    first = int(np.searchsorted(share, outside, side="right"))
    last = int(np.searchsorted(share, 1 - outside - 1e-12, side="left"))
    return max(float(edges[first]), seen.low), min(float(edges[min(last, len(share) - 1) + 1]), seen.high)


def _kl(seen: Histogram, settings: QuantSettings) -> Range:
    counts, edges = seen.counts.copy(), seen.edges
    # Parts below and above the one that holds 0, which stays inside however narrow the range becomes. What it counts
    # is left out: 0 is a level of every range, and after ReLU it would outweigh all the rest.
    middle = int(np.clip(np.searchsorted(edges, 0.0, side="right") - 1, 0, len(counts) - 1))
    counts[middle] = 0
    below, above = middle, len(counts) - 1 - middle
    levels = 1 << settings.activation_bits
    best = (np.inf, 0, len(counts))
    # From wide to narrow, so that the wider of two equally good ones is taken. One with fewer parts in use than there
    # are levels would be told perfectly, whatever lies outside.
    for part in np.linspace(1.0, min(1.0, levels / len(counts)), _TRIED):
        start, stop = middle - round(part * below), middle + 1 + round(part * above)
        if np.count_nonzero(counts[start:stop]) > levels:
            best = min(best, (_divergence(counts, start, stop, levels), start, stop), key=lambda found: found[0])
    return max(float(edges[best[1]]), seen.low), min(float(edges[best[2]]), seen.high)


def _divergence(counts: NDArray, start: int, stop: int, levels: int) -> float:
    """KL(p ‖ q): p what is counted inside, with all that lies outside in its outermost parts; q the same inside, with
    the parts of one level made alike, without what lies outside.
    """
    inside = counts[start:stop]
    told = inside.astype(np.float64).copy()
    told[0] += counts[:start].sum()
    told[-1] += counts[stop:].sum()
    firsts = np.unique(np.linspace(0, len(inside), levels, endpoint=False).astype(np.int64))
    there = inside > 0
    sums, sizes = np.add.reduceat(inside, firsts), np.add.reduceat(there, firsts, dtype=np.int64)
    alike = np.repeat(sums / np.maximum(sizes, 1), np.diff([*firsts, len(inside)])) * there
    if not alike.sum() > 0:
        return float("inf")
    # A part that only the outside fills would make the divergence infinite; it gets a little of q's weight instead.
    p, q = told / told.sum(), (alike + 1e-4) / (alike + 1e-4).sum()
    held = p > 0
    return float((p[held] * np.log(p[held] / q[held])).sum())


_METHODS: Mapping[Method, Callable[[Histogram, QuantSettings], Range]] = MappingProxyType(
    {"minmax": _minmax, "percentile": _percentile, "kl": _kl}
)
