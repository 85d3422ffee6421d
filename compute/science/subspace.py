"""Training in few dimensions: the directions in which a training has moved, and quasi-Newton steps among them.

Stage one is any training that keeps checkpoints. Stage two moves only along their principal components, some tens of
directions instead of millions, where full quasi-Newton matrices and line searches cost nothing (Li, Tan, Huang, Lin and
Tao 2022, Low dimensional trajectory hypothesis is true).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.compute import tree
from coterie.compute.array import as_array
from coterie.compute.science.flat import Flat
from coterie.compute.science.line_search import Objective, Vector
from coterie.errors import InputError

Matrix = npt.NDArray[np.float64]
# A direction that tells of less than this part of the greatest movement is rounding.
_RANK = 1e-10
# A step must lower the value by this part of what the slope promises.
_DECREASE = 1e-4
_HALVINGS = 6


@dataclass(frozen=True)
class Subspace:
    """Orthonormal directions [k, d], float64, by falling importance. spread: how far the checkpoints lie along each,
    [k]. flat: how a tree of parameters lies in a vector [d].
    """

    directions: Matrix
    spread: Vector
    flat: Flat

    @property
    def size(self) -> int:
        """The number of directions."""
        return len(self.directions)


def principal_subspace(checkpoints: Sequence[Any], size: int = 32) -> Subspace:
    """The principal components of checkpoints, trees of float arrays of one structure.

    size: how many; fewer where the checkpoints span fewer. Raises InputError unless there are more checkpoints than
    that, and for checkpoints that differ in structure or do not differ at all.
    """
    if not 1 <= size < len(checkpoints):
        raise InputError(
            f"principal_subspace: {size} directions need more than {size} checkpoints, got {len(checkpoints)}.",
            hint="Keep a checkpoint more often, or ask for fewer directions.",
        )
    flat = Flat.of(checkpoints[0])
    rows = np.stack([flat.vector(checkpoint) for checkpoint in checkpoints])
    if not np.isfinite(rows).all() or (rows == rows[0]).all():
        raise InputError("principal_subspace: the checkpoints are all the same, or hold numbers that are not finite.")
    _, lengths, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    kept = min(size, int(np.sum(lengths > _RANK * lengths[0])))
    return Subspace(directions[:kept], lengths[:kept] / np.sqrt(len(rows) - 1), flat)


@dataclass(frozen=True, kw_only=True)
class ReducedState:
    """Where a training in a subspace stands. params: the tree. value: of the last evaluation there. inverse: the
    inverse of the approximate Hessian along the directions, [k, k]. gradient: the largest component along them at the
    start of the last step. steps, rejected: how many were tried, and how many of those undone. accepted: whether the
    last one stands.
    """

    params: Any
    inverse: Matrix
    value: float = float("nan")
    gradient: float = float("inf")
    steps: int = 0
    rejected: int = 0
    accepted: bool = True


@dataclass(frozen=True)
class DimensionReduction:
    """A pair of pure functions: init(params), the state before any step; update(state, *batch), that after one more."""

    init: Callable[[Any], ReducedState]
    update: Callable[..., ReducedState]


def dimension_reduction(fn: Callable[..., Any], subspace: Subspace) -> DimensionReduction:
    """Steps of BFGS for ``fn(params, *batch)``, a scalar, along the directions of a subspace, from any parameters. A
    step evaluates value and gradient three times, and more often where it has to turn back.

    Guarantees: parameters move along the subspace only; the value on the step's own batch never rises; a step for which
    no lower value is found is rejected, and then the parameters come back bit for bit and the curvature is forgotten;
    the line search takes the exact minimum of a parabola, so on a quadratic the minimum within the subspace is reached
    in at most as many steps as it has directions, to rounding. ``init`` raises InputError for a tree unlike the
    checkpoints.
    """
    flat, directions = subspace.flat, subspace.directions
    objective = flat.objective(fn)

    def init(params: Any) -> ReducedState:
        flat.vector(params)
        return ReducedState(params=tree.map_tree(as_array, params), inverse=np.eye(subspace.size))

    def update(state: ReducedState, *batch: Any) -> ReducedState:
        x = flat.vector(state.params)

        def along(step: Vector) -> tuple[float, Vector]:
            value, gradient = objective(x + step @ directions, *batch)
            return value, directions @ gradient

        value, gradient = along(np.zeros(subspace.size))
        told = replace(
            state, value=value, gradient=float(np.max(np.abs(gradient))), steps=state.steps + 1, accepted=True
        )
        found = _search(along, -state.inverse @ gradient, value, gradient)
        if found is None:
            return replace(told, inverse=np.eye(subspace.size), rejected=state.rejected + 1, accepted=False)
        step, lower, after = found
        inverse = _bfgs(state.inverse, step, after - gradient)
        return replace(told, params=flat.tree(x + step @ directions), value=lower, inverse=inverse)

    return DimensionReduction(init, update)


def _search(along: Objective, way: Vector, value: float, gradient: Vector) -> tuple[Vector, float, Vector] | None:
    """The step to the minimum of the parabola through the slopes at 0 and at 1, and value and gradient there; where
    that is not low enough a shorter one; None where none is.
    """
    slope = float(gradient @ way)
    if not slope < 0:
        return None
    best: tuple[Vector, float, Vector] | None = None
    distance = 1.0
    for attempt in range(2 + _HALVINGS):
        there, after = along(distance * way)
        low_enough = isfinite(there) and there <= value + _DECREASE * distance * slope
        if low_enough and (best is None or there < best[1]):
            best = distance * way, there, after
        if attempt == 0:
            steeper = float(after @ way) - slope
            exact = -slope / steeper if isfinite(steeper) and steeper > 0 else 2.0
            if best is not None and abs(exact - 1) < 1e-9:
                return best
            distance = exact
        elif best is not None:
            return best
        else:
            distance = min(distance, 1.0) / 4
    return best


def _bfgs(inverse: Matrix, step: Vector, change: Vector) -> Matrix:
    """The next inverse Hessian; the same where the curvature is not positive."""
    curvature = float(step @ change)
    if curvature <= 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
        return inverse
    if np.array_equal(inverse, np.eye(len(step))):
        inverse = inverse * (curvature / float(change @ change))
    left = np.eye(len(step)) - np.outer(step, change) / curvature
    return left @ inverse @ left.T + np.outer(step, step) / curvature
