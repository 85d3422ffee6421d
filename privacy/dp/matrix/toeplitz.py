"""Lower-triangular Toeplitz matrices by their first column, and how good they are as strategies.

The mechanism: with X the clipped sums of all rounds, C a matrix and Z independent noise, C X + Z is released, and the
coordinator sees C⁻¹ (C X + Z) = X + C⁻¹ Z. What training follows are prefix sums A X, A the triangle of ones, whose
error is A C⁻¹ Z =: B Z. A good C has little error for its sensitivity.

Sources: Denisov, McMahan, Rush, Smith, Thakurta, "Improved Differential Privacy for SGD via Optimal Private Linear
Operators on Adaptive Streams" (NeurIPS 2022); Fichtenberger, Henzinger, Upadhyay, "Constant Matters" (ICML 2023) for
the square root; Kalinin and Lampert, "Banded Square Root Matrix Factorization" (NeurIPS 2024) for the bands and for
what repeated participation costs (theorem 2).
"""

import math

import numpy as np
import numpy.typing as npt

from coterie import errors

Column = npt.NDArray[np.float64]
"""The first column of a lower-triangular Toeplitz matrix, ``[rounds]``."""


def square_root(rounds: int) -> Column:
    """C with C² = A: 1, 1/2, 3/8, 5/16, …, (2t)! / (4^t t!²). The best Toeplitz matrix for one participation."""
    steps = np.arange(1, rounds, dtype=np.float64)
    column = np.ones(rounds)
    column[1:] = np.cumprod((2 * steps - 1) / (2 * steps))
    return column


def inverse(column: Column) -> Column:
    """The first column of C⁻¹, for a column that begins with 1."""
    last = int(np.flatnonzero(column)[-1])
    found = np.zeros_like(column)
    found[0] = 1.0
    for t in range(1, len(column)):
        reach = min(t, last)
        # Σ_{i=1..reach} c_i · found_{t − i}
        found[t] = -column[1 : reach + 1] @ found[t - reach : t][::-1]
    return found


def participation(column: Column, *, min_separation: int, participations: int | None) -> Column:
    """What one device adds to C X, at the worst: ``[rounds]``, for a contribution of norm 1 in each of its rounds.

    Its rounds lie at least `min_separation` apart and are at most `participations`. For coefficients that are
    non-negative and do not rise, no pattern adds up to more than rounds 0, b, 2b, … (Kalinin and Lampert, theorem 2),
    whatever the directions of the contributions; and the first t entries are the worst of the first t rounds.
    Raises errors.ArgumentValueError for a column to which that does not apply.
    """
    if column[0] != 1 or np.any(column < 0) or np.any(np.diff(column) > 0):
        raise errors.ArgumentValueError(
            "The sensitivity of a column is known only if it starts with 1, is never negative and never increases."
        )
    rounds = len(column)
    most = math.ceil(rounds / min_separation)
    starts = min_separation * np.arange(min(most, participations or most))
    added = np.zeros(rounds)
    for start in starts.tolist():
        added[start:] += column[: rounds - start]
    return added


def sensitivity(column: Column, *, min_separation: int, participations: int | None) -> float:
    """The L2 norm of `participation`."""
    added = participation(column, min_separation=min_separation, participations=participations)
    return float(np.linalg.norm(added))


def mean_error(inverse_column: Column) -> float:
    """Root mean square error over all prefix sums."""
    rounds = len(inverse_column)
    shares = np.arange(rounds, 0, -1) / rounds
    return math.sqrt(float(shares @ np.cumsum(inverse_column) ** 2))
