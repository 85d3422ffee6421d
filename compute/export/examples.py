"""Rows to measure a model on, cut into the batches that its static graph takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np

from coterie.compute.ir import NDArray, Type
from coterie.errors import DataError

Metric: TypeAlias = Literal["accuracy", "mean_squared_error"]


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Rows of data. inputs: by the model's input name, each [N, ...] with the same N. labels: [N, ...], for a score
    (see :func:`score`); None for no score. Raises DataError for what is no NumPy array of numbers.
    """

    inputs: Mapping[str, NDArray]
    labels: NDArray | None = None

    def __post_init__(self) -> None:
        labels = {} if self.labels is None else {"labels": self.labels}
        for name, array in {**self.inputs, **labels}.items():
            dtype = getattr(cast(object, array), "dtype", None)  # what is given may be anything
            if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
                told = type(array).__name__ + (f" of {dtype}" if dtype else "")
                raise DataError(
                    f"Examples: {name} is {told}, and must be a NumPy array of numbers.",
                    hint="Give each class as a number from 0.",
                    code="data_dtype",
                )

    @property
    def rows(self) -> int:
        """N."""
        return len(next(iter(self.inputs.values()), ()))

    def batches(self, types: Mapping[str, Type], *, most: int | None = None) -> list[dict[str, NDArray]]:
        """The rows, at most ``most`` of them, in batches of the types' sizes; the last one is filled up with its last
        row. Fewer than all are taken at even distances, since files are often sorted by class. Raises DataError for
        inputs that are missing, of another dtype kind or of another shape.
        """
        self._check(types)
        size = next(iter(types.values())).shape[0]
        count = self.rows if most is None else min(most, self.rows)
        made: list[dict[str, NDArray]] = []
        for start in range(0, count, size):
            taken = np.minimum(np.arange(start, start + size), count - 1) * self.rows // max(count, 1)
            made.append({name: self.inputs[name][taken].astype(type_.dtype) for name, type_ in types.items()})
        return made

    def _check(self, types: Mapping[str, Type]) -> None:
        if missing := [name for name in types if name not in self.inputs]:
            raise DataError(
                f"The examples have no {', '.join(missing)}; the model's inputs are {', '.join(types)}.",
                hint="Name the arrays as the model names its inputs.",
                code="data_missing",
            )
        sizes = {type_.shape[:1] for type_ in types.values()}
        counts = {len(self.inputs[name]) for name in types}
        counts.update(() if self.labels is None else (len(self.labels),))
        if len(sizes) != 1 or sizes == {()} or len(counts) != 1 or counts == {0}:
            raise DataError(
                f"Inputs and labels must have the same number of rows, at least one; they have {sorted(counts)}.",
                hint="The first axis of every input is the batch.",
                code="data_shape",
            )
        for name, type_ in types.items():
            given = self.inputs[name]
            if given.shape[1:] != type_.shape[1:] or not _held(given, type_):
                raise DataError(
                    f"{name} is {given.dtype}{list(given.shape)}; the model takes {type_} with any number of rows.",
                    hint="Give numbers of that shape, whole ones for ids. A column of labels is named by --label.",
                    code="data_shape",
                )


def _held(given: NDArray, type_: Type) -> bool:
    """Whether numbers stay what they are in the model's dtype, but for the digits of floats."""
    with np.errstate(invalid="ignore"):
        return type_.is_float or np.array_equal(given.astype(type_.dtype), given)


def synthetic(types: Mapping[str, Type], *, batches: int = 4, seed: int = 0) -> list[dict[str, NDArray]]:
    """Batches without meaning: normal numbers for floats, 0 and 1 for everything else, which are ids of any table."""
    rng = np.random.default_rng(seed)
    return [
        {
            name: (rng.standard_normal(type_.shape) if type_.is_float else rng.integers(0, 2, type_.shape)).astype(
                type_.dtype
            )
            for name, type_ in types.items()
        }
        for _ in range(batches)
    ]


def joined(batches: NDArray, rows: int) -> NDArray:
    """[batches, B, ...] as the [rows, ...] that were not filled up."""
    return batches.reshape(-1, *batches.shape[2:])[:rows]


def answers(outputs: NDArray) -> NDArray:
    """The class of every row of outputs [..., C]: the greatest; of one number a row, whether it is above 0; whole
    numbers are classes already.
    """
    if outputs.dtype.kind != "f":
        return outputs
    return (outputs[..., 0] > 0).astype(np.int64) if outputs.shape[-1] == 1 else np.argmax(outputs, axis=-1)


def score(outputs: NDArray, labels: NDArray, *, halfway: float = 0.0) -> tuple[Metric, float]:
    """How well the outputs [N, ...] answer, by what they are.

    Of several numbers a row the greatest is the class, and the score is the share of right ones; whole numbers are
    classes themselves. One number a row says class 1 where it is above ``halfway`` (0 for a logit, 0.5 for a
    probability) if labels are 0 and 1; else it is a value, and the score is the mean squared error.
    Raises DataError for labels of another shape, and for classes that are no whole numbers.
    """
    several = outputs.dtype.kind == "f" and outputs.ndim == labels.ndim + 1 and outputs.shape[-1] > 1
    if several or outputs.dtype.kind != "f":
        found = answers(outputs)
        _check_labels(found.shape, labels.shape)
        if not np.array_equal(labels, np.round(labels)):
            raise DataError(
                "The labels are no whole numbers, and the model answers with classes.",
                hint="Give each row's class as a number from 0.",
                code="data_invalid",
            )
        return "accuracy", float(np.mean(np.equal(found, labels)))
    values = outputs.reshape(labels.shape) if outputs.size == labels.size else outputs
    _check_labels(values.shape, labels.shape)
    if np.isin(labels, (0, 1)).all():
        return "accuracy", float(np.mean(np.equal(values > halfway, labels > 0)))
    return "mean_squared_error", float(np.mean((values.astype(np.float64) - labels) ** 2))


def _check_labels(found: Sequence[int], labels: Sequence[int]) -> None:
    if tuple(found) != tuple(labels):
        raise DataError(
            f"The labels are {list(labels)}; the model's first output has answers {list(found)}.",
            hint="Give one label for each row of the first output.",
            code="data_shape",
        )
