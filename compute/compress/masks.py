"""Which weights a pruned model keeps: masks of ones and zeros, by name."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

import numpy as np

from coterie.compute.ir import NDArray
from coterie.errors import InputError

Masks: TypeAlias = dict[str, NDArray]
"""Name of a weight → float32 of its shape: 1 where it is kept, 0 where it is pruned."""
Scope: TypeAlias = Literal["all", "each"]

_WEIGHTS = ("*weight",)


def by_magnitude(
    params: Mapping[str, NDArray], sparsity: float, *, scope: Scope = "all", select: Sequence[str] = _WEIGHTS
) -> Masks:
    """Masks that prune the weights of least magnitude (Han et al. 2015).

    sparsity: the share to prune, 0 ≤ sparsity < 1; it is reached to the nearest weight, rounded down. scope: ``all``
    compares the weights of all tensors with each other, ``each`` prunes every tensor by that share. select: patterns of
    names; only tensors of two axes and more are pruned, so biases and scales of normalisation stay. Of equal weights
    the first stay.

    Raises InputError for patterns that select nothing, another share, and weights that are not finite.
    """
    _check_share(sparsity)
    if scope not in get_args(Scope):
        raise InputError(f"by_magnitude: scope must be one of {', '.join(get_args(Scope))}, got {scope!r}.")
    chosen = _chosen(params, select)
    if scope == "each":
        return {name: _without_smallest(value, sparsity) for name, value in chosen.items()}
    joined = _without_smallest(np.concatenate([value.reshape(-1) for value in chosen.values()]), sparsity)
    parts = np.split(joined, np.cumsum([value.size for value in chosen.values()])[:-1])
    return {name: part.reshape(chosen[name].shape) for name, part in zip(chosen, parts, strict=True)}


def n_of_m(params: Mapping[str, NDArray], n: int, m: int, *, select: Sequence[str] = _WEIGHTS) -> Masks:
    """Masks that keep the n largest of every m neighbours along the axis of inputs (2 of 4 is what sparse tensor cores
    compute with: Mishra et al. 2021, arXiv 2104.08378).

    For a linear layer's weight [outputs, inputs] neighbours are inputs; for a convolution's they are the numbers of one
    output in the order of memory. A rest of fewer than m keeps all. Raises InputError unless 0 < n ≤ m.
    """
    if not 0 < n <= m:
        raise InputError(f"n_of_m: n must be in 1 .. m, got {n} of {m}.")
    return {name: _n_of_m(value, n, m) for name, value in _chosen(params, select).items()}


def by_outputs(params: Mapping[str, NDArray], sparsity: float, *, select: Sequence[str] = _WEIGHTS) -> Masks:
    """Masks that prune whole outputs (rows of a linear layer, filters of a convolution) of least L1 norm in each tensor
    (Li et al. 2017, arXiv 1608.08710). One output at least stays. Otherwise as :func:`by_magnitude`.
    """
    _check_share(sparsity)
    found: Masks = {}
    for name, value in _chosen(params, select).items():
        norms = np.abs(value).sum(axis=tuple(range(1, value.ndim)))
        kept = _without_smallest(norms, sparsity)
        if not kept.any():
            kept[int(norms.argmax())] = 1
        rows = kept.reshape(-1, *(1,) * (value.ndim - 1))
        found[name] = np.ascontiguousarray(np.broadcast_to(rows, value.shape))
    return found


def masked(params: Mapping[str, NDArray], masks: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The parameters with pruned weights 0. Raises InputError for a mask of another name or shape."""
    for name, mask in masks.items():
        if name not in params or params[name].shape != mask.shape:
            found = list(params[name].shape) if name in params else "no parameter of that name"
            raise InputError(f"The mask {name!r} is {list(mask.shape)}, and there is {found}.")
    # Where the mask is 0 the weight becomes +0, whatever it was.
    return {
        name: np.where(masks[name] > 0, value, np.zeros((), value.dtype)) if name in masks else value
        for name, value in params.items()
    }


def sparsity(arrays: Mapping[str, NDArray]) -> float:
    """The share of zeros in masks, or in those weights that are given; 0 for none."""
    total = sum(value.size for value in arrays.values())
    return 1 - sum(int(np.count_nonzero(value)) for value in arrays.values()) / total if total else 0.0


def cubic_sparsity(step: int, steps: int, final: float, first: float = 0.0) -> float:
    """The share to prune after ``step`` of ``steps`` when pruning little by little: quickly at first, slowly at the end
    (Zhu and Gupta 2017, arXiv 1710.01878). Raises InputError for shares outside 0 .. 1 and no steps.
    """
    _check_share(final)
    _check_share(first)
    if steps < 1 or step < 0:
        raise InputError(f"cubic_sparsity: step {step} of {steps} is no position.")
    return final + (first - final) * (1 - min(step / steps, 1.0)) ** 3


def _chosen(params: Mapping[str, NDArray], select: Sequence[str]) -> dict[str, NDArray]:
    chosen = {
        name: value
        for name, value in params.items()
        if value.ndim > 1 and any(fnmatchcase(name, pattern) for pattern in select)
    }
    if not chosen:
        raise InputError(
            f"No weight of two axes or more is called {' or '.join(select)}; there are {', '.join(params)}.",
            hint='Name the weights: select=("encoder.*weight",).',
        )
    for name, value in chosen.items():
        if not np.isfinite(value).all():
            raise InputError(f"The weight {name!r} is not finite.", hint="Find where training went wrong.")
    return chosen


def _without_smallest(values: NDArray, share: float) -> NDArray:
    """1 for all but this share of smallest magnitudes; ties fall by position, so the share is exact."""
    flat = np.abs(values.reshape(-1))
    order = np.argsort(flat[::-1], kind="stable")  # of equal ones the last are pruned first
    mask: NDArray = np.ones(flat.size, np.float32)
    mask[flat.size - 1 - order[: int(share * flat.size)]] = 0
    return mask.reshape(values.shape)


def _n_of_m(value: NDArray, n: int, m: int) -> NDArray:
    rows = np.abs(value.reshape(value.shape[0], -1))
    whole = rows.shape[1] // m * m
    mask: NDArray = np.ones(rows.shape, np.float32)
    groups = rows[:, :whole].reshape(-1, m)
    kept = np.zeros(groups.shape, np.float32)
    np.put_along_axis(kept, np.argsort(-groups, axis=1, kind="stable")[:, :n], 1, axis=1)
    mask[:, :whole] = kept.reshape(rows.shape[0], whole)
    return mask.reshape(value.shape)


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise InputError(f"The share to prune must be at least 0 and below 1, got {share!r}.")
