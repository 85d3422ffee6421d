"""How rows become batches of one fixed shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from coterie.compute.data.batches import WEIGHT
from coterie.compute.data.block import Values, described, taken
from coterie.compute.data.random_stream import RandomStream
from coterie.compute.data.source import Rows
from coterie.compute.data.transform import Context, Transform
from coterie.compute.ir import NDArray
from coterie.errors import CoterieError, DataError

# Beyond the steps of any pipeline, whose numbers are the other keys of random streams.
_STEP = 1 << 32

Batch = dict[str, Any]
"""Columns [B, ...] by name: arrays, or lists of text and bytes; and ``sample_weight`` float32 [B]."""


@dataclass(frozen=True)
class Batching:
    """size: B, the rows of every batch. drop_remainder: whether the rows behind the last full batch of a pass are left
    out instead of padded. operation: applied to every whole batch, and may change everything but its weights' length.
    seed: of the operation's random numbers.
    """

    size: int
    drop_remainder: bool = False
    operation: Transform | None = None
    seed: int = 0

    def batch(self, rows: Rows, epoch: int, number: int, signals: Mapping[str, Any]) -> Batch:
        """At most ``size`` rows as a batch: filled up with copies of its first, which weigh nothing.

        Raises DataError naming the column whose values have not all one shape and dtype.
        """
        if WEIGHT in rows:
            raise DataError(
                f"The name {WEIGHT!r} is reserved for the weights of rows.",
                hint=f"Rename the column: rename({WEIGHT}='weight').",
                code="data_columns",
            )
        count = len(next(iter(rows.values())))
        weight = np.ones(self.size, np.float32)
        batch: Batch = {name: _uniform(name, values) for name, values in rows.items()}
        if count < self.size:
            weight[count:] = 0
            chosen = np.concatenate([np.arange(count), np.zeros(self.size - count, np.int64)])
            batch = {name: taken(values, chosen) for name, values in batch.items()}
        batch[WEIGHT] = weight
        return batch if self.operation is None else self._mapped(self.operation, batch, epoch, number, signals)

    def _mapped(self, operation: Transform, batch: Batch, epoch: int, number: int, signals: Mapping[str, Any]) -> Batch:
        context = Context(RandomStream(self.seed, _STEP, epoch, number), epoch, signals)
        try:
            mapped: object = operation.apply(batch, context)
        except Exception as error:
            said = error.message if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
            raise DataError(
                f"{operation} failed at batch {number} of pass {epoch}: {said}", code="data_step"
            ) from error
        weight: object = cast("Mapping[str, object]", mapped).get(WEIGHT) if isinstance(mapped, Mapping) else None
        if not isinstance(weight, np.ndarray) or cast(NDArray, weight).shape != (self.size,):
            raise DataError(
                f"{operation} must give a batch, arrays by column with {WEIGHT!r} [{self.size}].",
                hint="Return {**batch, ...}: what is not changed stays.",
                code="data_columns",
            )
        return dict(cast("Mapping[str, Any]", mapped))


def _uniform(name: str, values: Values) -> Values:
    """A column that a batch can have."""
    if isinstance(values, np.ndarray) or all(isinstance(value, str) for value in values):
        return values
    if all(isinstance(value, bytes) for value in values):
        return values
    raise DataError(
        f"The rows of a batch differ in {described({name: values})}.",
        hint=(
            "Bring them to one shape and dtype by a step: map(Resize(32, 32), 'image'), map(Pad(64), 'ids'), "
            "map(Cast('float32'), 'x')."
        ),
        code="data_shape",
        column=name,
    )
