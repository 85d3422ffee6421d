"""Rows of one role's table, for methods whose roles share columns: which columns are read, and what is read of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.aggregation.vertical.tables import TableSource, read_columns
from coterie.errors import ArgumentTypeError, ConfigurationError
from coterie.protocol.arrays import ArraysByName


@dataclass(frozen=True)
class TableRows:
    """The rows of a call.

    columns: ``[rows]`` each. labels, weights, held_out: empty where there are none.
    """

    columns: dict[str, NDArray[np.float64]]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    count: int

    def arrays(self) -> ArraysByName:
        """All of it, for a digest. In another order columns are other rows: what a training keeps is by place."""
        held = self.held_out if len(self.held_out) else np.zeros(self.count, np.bool_)
        weights = {"weights": self.weights} if len(self.weights) else {}
        columns = {f"column {name}": values for name, values in self.columns.items()}
        order = np.frombuffer(json.dumps(list(self.columns)).encode(), np.uint8)
        return {"held_out": held, "labels": self.labels, **weights, **columns, "order": order}


@dataclass(frozen=True)
class RoleColumns:
    """What one role reads of its tables.

    columns: in their order.
    is_owner: whether it has the labels. label, weight: columns of the label owner alone.
    """

    role: str
    is_owner: bool
    columns: tuple[str, ...]
    label: str | None = None
    weight: str | None = None

    def read(self, source: TableSource, *, with_label: bool, held_out: NDArray[np.bool_] | None = None) -> TableRows:
        """The rows of a table. Raises DataError, ConfigurationError (``party_columns``)."""
        also = [name for name in (self.label, self.weight) if with_label and name is not None]
        # A label owner without columns predicts on as many rows as its labels' column has.
        wanted = [*self.columns, *also] or [str(self.label)]
        found = read_columns(source, wanted, self.role)
        count, nothing = len(found[wanted[0]]), np.empty(0)
        label, weight = (found[name] if name in also else nothing for name in (self.label, self.weight))
        columns = {name: found[name] for name in self.columns}
        return TableRows(columns, label, weight, self._held_out(held_out, count, with_label), count)

    def _held_out(self, held_out: NDArray[np.bool_] | None, count: int, with_label: bool) -> NDArray[np.bool_]:
        has_labels = with_label and self.label is not None
        if held_out is None:
            return np.zeros(count if has_labels else 0, np.bool_)
        given = np.asarray(held_out)
        if not has_labels or given.shape != (count,) or given.dtype != np.bool_ or given.all():
            raise ConfigurationError(
                f"held_out is one truth value for each of {count} rows, not all true, and of the label owner alone.",
                hint="As in held_out=rng.random(rows) < 0.3.",
                code="party_columns",
            )
        return given


def role_columns(
    role: str,
    *,
    is_owner: bool,
    columns: Sequence[str],
    label: str | None,
    weight: str | None = None,
    rules: Sequence[tuple[bool, str]] = (),
) -> RoleColumns:
    """What a role reads, checked.

    rules: what else must hold, and what is said where it does not.
    Raises ConfigurationError (``party_columns``), ArgumentTypeError.
    """
    if isinstance(columns, str):
        raise ArgumentTypeError(f"columns are names, as in columns=({columns!r},).")
    special = [name for name in (label, weight) if name is not None]
    every = [
        ((label is not None) == is_owner, "the label owner names label=, and no other role does"),
        (weight is None or is_owner, "weight= is of the label owner alone"),
        (is_owner or bool(columns), "a feature owner needs columns"),
        (len({*columns, *special}) == len(columns) + len(special), "columns, label and weight must differ"),
        *rules,
    ]
    for good, why in every:
        if not good:
            raise ConfigurationError(
                f"In the columns of role {role!r}: {why}.",
                hint="columns= are what is learned from, label= what is predicted.",
                code="party_columns",
            )
    return RoleColumns(role, is_owner, tuple(columns), label, weight)


def require_columns(role: str, given: RoleColumns, fitted: Sequence[str]) -> None:
    """Refuse to predict from other columns than a model was fitted on.

    fitted: the model's.
    Raises ConfigurationError (``party_columns``).
    """
    if not set(fitted) <= set(given.columns):
        raise ConfigurationError(
            f"The model of role {role!r} takes the columns {', '.join(map(repr, fitted))}.",
            hint="Name them in columns=.",
            code="party_columns",
        )
