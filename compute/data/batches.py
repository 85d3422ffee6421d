"""Batches of one fixed shape, in an order that depends on a seed alone."""

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np

from coterie.compute.ir import NDArray
from coterie.compute.source import user_source
from coterie.draws import batch_order
from coterie.errors import InputError

WEIGHT = "sample_weight"
# Weights are whole numbers or fractions of one, so a sum of weights below this is zero; dividing by it keeps 0/0 away.
SMALLEST_WEIGHT = 1e-12


class Batches:
    """An iterator over batches of rows.

    arrays: by name, each ``[N, ...]`` with the same N of at least one. batch_size: B, the rows of every batch. seed:
    any integer; fixes the order (`coterie.draws.batch_order`). epochs: how often all rows are gone through; None for no
    end. shuffle: a new order every epoch; without it the rows' own order. sample_weight: [N], how much each row counts;
    all 1 without.

    Each item holds every array's rows ``[B, ...]`` in its own dtype, and ``sample_weight`` float32[B]: 1 for a row, or
    what was given for it, and 0 for padding. Only the last batch of an epoch is padded, with copies of its first row,
    so that padding is always a row that the model can digest.

    Guarantees: the same arrays, seed and position give the same bytes on every machine and NumPy version (no library's
    shuffle is used). ``restore(state())`` continues where ``state`` was taken, bit for
    bit. Within an epoch every row occurs exactly once with its weight. Raises InputError for arrays of unequal length,
    no rows, the reserved name, a size below one, or weights that are negative, not finite or all 0.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray],
        *,
        batch_size: int,
        seed: int = 0,
        epochs: int | None = 1,
        shuffle: bool = True,
        sample_weight: NDArray | None = None,
    ) -> None:
        self.rows = _count_rows(arrays)
        self._weights = np.ones(self.rows, np.float32) if sample_weight is None else _weights(sample_weight, self.rows)
        for what, value in (("batch_size", batch_size), ("epochs", 1 if epochs is None else epochs)):
            if not isinstance(cast(object, value), int | np.integer) or value < 1:
                raise InputError(f"Batches: {what} must be a whole number of at least 1, got {value!r}.")
        if not isinstance(cast(object, seed), int | np.integer):
            raise InputError(f"Batches: seed must be a whole number, got {seed!r}.")
        self.arrays = dict(arrays)
        self.batch_size = batch_size
        self.seed = seed
        self.epochs = epochs
        self.shuffle = shuffle
        self._epoch = 0
        self._batch = 0
        self._order = self._order_of(0)

    @property
    def per_epoch(self) -> int:
        """Batches in one epoch."""
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, NDArray]]:
        return self

    def __next__(self) -> dict[str, NDArray]:
        if self._batch == self.per_epoch:
            self._go_to(self._epoch + 1, 0)
        if self.epochs is not None and self._epoch >= self.epochs:
            raise StopIteration
        first = self._batch * self.batch_size
        chosen = self._order[first : first + self.batch_size]
        real = len(chosen)
        if real < self.batch_size:
            chosen = np.concatenate([chosen, np.repeat(chosen[:1], self.batch_size - real)])
        weight = self._weights[chosen]
        weight[real:] = 0
        self._batch += 1
        return {name: array[chosen] for name, array in self.arrays.items()} | {WEIGHT: weight}

    def state(self) -> dict[str, int]:
        """The position, as JSON values: epoch and batch to come next, and what the order depends on."""
        return {
            "epoch": self._epoch,
            "batch": self._batch,
            "rows": self.rows,
            "batch_size": self.batch_size,
            "seed": self.seed,
        }

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a state. Raises InputError when it was taken over other rows, another batch size or another
        seed.
        """
        here = self.state()
        for name in ("rows", "batch_size", "seed"):
            if state.get(name) != here[name]:
                raise InputError(
                    f"Batches: the saved position has {name} {state.get(name)}, these batches have {here[name]}; "
                    "start from the beginning."
                )
        epoch, batch = state.get("epoch", -1), state.get("batch", -1)
        if epoch < 0 or not 0 <= batch <= self.per_epoch:
            raise InputError(
                f"Batches: epoch {epoch}, batch {batch} is no position; an epoch has {self.per_epoch} batches."
            )
        self._go_to(epoch, batch)

    def _go_to(self, epoch: int, batch: int) -> None:
        if epoch != self._epoch:
            self._order = self._order_of(epoch)
        self._epoch, self._batch = epoch, batch

    def _order_of(self, epoch: int) -> NDArray:
        return batch_order(self.rows, self.seed, epoch) if self.shuffle else np.arange(self.rows)


def _weights(given: object, rows: int) -> NDArray:
    """The weights as float32. Raises InputError for what is not one number a row that can count."""
    if not isinstance(given, np.ndarray) or cast(NDArray, given).dtype.kind not in "fiub":
        raise InputError(
            f"{WEIGHT} must be a NumPy array of numbers, got a {type(cast(object, given)).__name__}.",
            hint="Convert it with np.asarray(weights, np.float32).",
        )
    array = cast(NDArray, given)
    if array.shape != (rows,):
        raise InputError(f"{WEIGHT} must have one number for each of {rows} rows, got {list(array.shape)}.")
    # What float32 cannot hold becomes infinite, and is told below.
    with np.errstate(over="ignore"):
        weights = array.astype(np.float32)
    counts = np.isfinite(weights) & ((array == 0) | (weights >= SMALLEST_WEIGHT))
    if not counts.all():
        row = int(np.argmin(counts))
        raise InputError(
            f"{WEIGHT} of row {row} is {array[row]}; a weight must be 0 or a finite number of at least "
            f"{SMALLEST_WEIGHT}.",
        )
    if not weights.any():
        raise InputError(f"{WEIGHT} is 0 for every row.", hint="Give a weight above 0 to the rows that count.")
    return weights


def _count_rows(arrays: Mapping[str, NDArray]) -> int:
    if not isinstance(cast(object, arrays), Mapping):
        raise InputError(
            f"Batches: needs arrays by name, got a {type(arrays).__name__}.", hint='Give {"x": x, "y": y}.'
        )
    for name, array in cast("Mapping[str, object]", arrays).items():
        if not isinstance(array, np.ndarray):
            raise InputError(
                f"Batches: {name!r} must be a NumPy array, got a {type(array).__name__}.",
                hint="Convert it with np.asarray(x, dtype).",
            )
    if WEIGHT in arrays:
        raise InputError(f"Batches: the name {WEIGHT!r} is reserved for the weights of rows.")
    lengths = {name: array.shape[0] if array.ndim else -1 for name, array in arrays.items()}
    if not lengths or min(lengths.values()) < 1 or len(set(lengths.values())) > 1:
        raise InputError(
            f"{user_source()}: Batches: needs arrays of one common number of rows, at least one; got "
            f"{lengths or 'no array'}."
        )
    return next(iter(lengths.values()))
