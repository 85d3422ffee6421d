"""One role's coefficients, and how a step changes them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.linear.columns import Standard
from coterie.aggregation.vertical.linear.terms import LinearTerms
from coterie.errors import InputError


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Of standardised columns; the label owner's first is the intercept.

    values, velocity: ``[columns]``. steps: that were taken.
    """

    values: NDArray[np.float64]
    velocity: NDArray[np.float64]
    steps: int = 0


@dataclass(frozen=True)
class RoleModel:
    """One role's part of a fitted model, of columns as they are.

    columns: their names. slopes: of each. offset: added to every score; the label owner's has the intercept.
    """

    columns: tuple[str, ...]
    slopes: tuple[float, ...]
    offset: float

    def scores(self, columns: Mapping[str, NDArray[np.float64]], rows: int) -> NDArray[np.float64]:
        """This role's part of each row's score, ``[rows]``."""
        parts = (slope * columns[name] for name, slope in zip(self.columns, self.slopes, strict=True))
        return sum(parts, np.full(rows, self.offset))


def role_model(standard: Standard, values: NDArray[np.float64], first: float = 0.0) -> RoleModel:
    """values: of standardised columns. first: the intercept."""
    slopes = np.divide(values, standard.deviations, out=np.zeros_like(values), where=standard.deviations > 0)
    return RoleModel(standard.names, tuple(slopes.tolist()), first - float(slopes @ standard.means))


@dataclass(frozen=True, eq=False)
class Curvature:
    """The second derivative of the loss by a role's own coefficients, about, with the penalty.

    inverse: ``[columns, columns]``. penalty: ``[columns]``.
    """

    inverse: NDArray[np.float64]
    penalty: NDArray[np.float64]


def curvature_of(
    rows: NDArray[np.float64], weights: NDArray[np.float64], second: float, penalty: NDArray[np.float64]
) -> Curvature:
    """rows: ``[rows, columns]``. weights: ``[rows]``, with mean 1. second: derivative of the loss by a score."""
    product = second * (rows.T * weights) @ rows / len(rows) + np.diag(penalty)
    # A column that never changes has no curvature, and gets no coefficient.
    return Curvature(np.linalg.pinv(product, hermitian=True).astype(np.float64), penalty)


def start(columns: int, first: float | None = None) -> Coefficients:
    """No effect of any column. first: the intercept."""
    values = np.zeros(columns)
    if first is not None:
        values[0] = first
    return Coefficients(values, np.zeros(columns))


def step(
    terms: LinearTerms, curvature: Curvature, now: Coefficients, gradient: NDArray[np.float64], role: str
) -> Coefficients:
    """The coefficients after a step.

    gradient: ``[columns]``, of the mean loss without the penalty.
    Raises InputError (``training_diverged``).
    """
    slope = gradient + curvature.penalty * now.values
    velocity = terms.momentum * now.velocity - terms.learning_rate * curvature.inverse @ slope
    values = now.values + velocity
    if not np.isfinite(values).all() or np.abs(values).max(initial=0.0) > 1e6:
        raise InputError(
            f"The coefficients of {role} grew beyond bounds in step {now.steps + 1}.",
            hint="Take a smaller learning_rate or momentum, or a larger l2.",
            code="training_diverged",
        )
    return replace(now, values=values, velocity=velocity, steps=now.steps + 1)
