"""Stages that work on rows: mapping and filtering."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from coterie.compute.data.block import Block, Coming
from coterie.compute.data.random_stream import RandomStream
from coterie.compute.data.source import Column, Row
from coterie.compute.data.stage import Address, Job, Located, Memory, Stage
from coterie.compute.data.transform import Context, Transform
from coterie.errors import CoterieError, DataError


@dataclass(frozen=True, eq=False)
class Step(Stage):
    """Operations on every row, in turn; or, of a filter, the one that decides which rows stay.

    inputs: the columns whose values the operations take, or None for the whole row. outputs: the columns that the
    result becomes (of several, a sequence of values); None for a row that replaces the old one. seed: of the random
    numbers. written: the line of the user's code that made the step, for messages.
    """

    below: Stage
    operations: tuple[Transform, ...]
    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    seed: int
    decides: bool = False
    written: str = ""

    @property
    def length(self) -> int | None:
        return self.below.length

    @property
    def sparse(self) -> bool:
        return self.decides or self.below.sparse

    @property
    def depth(self) -> int:
        return self.below.depth + 1

    @property
    def columns(self) -> Mapping[str, Column] | None:
        return self.below.columns if self.decides else None

    def locate(self, address: Address, memory: Memory) -> Located:
        return Located(address, (self.below.locate(address, memory),))

    def make(self, located: Located, job: Job) -> Block:
        block = self.below.make(located.parts[0], job)
        if not self.decides:
            return Block(listed=Coming(len(block), self._made(block, located, job)), index=block.index)
        with job.timed("map"):
            block = block.here()
            return block.pick(np.flatnonzero(np.fromiter(self._made(block, located, job), bool, len(block))))

    def _made(self, block: Block, located: Located, job: Job) -> Iterator[Any]:
        places = range(len(block)) if block.index is None else block.index.tolist()
        depth = self.depth
        for row, place in zip(block.rows(), places, strict=True):
            yield self._worked(row, place, depth, located, job)

    def _worked(self, row: Row, place: int, depth: int, located: Located, job: Job) -> Any:
        address = located.address
        epoch, position = int(address.passes[place]), int(address.positions[place])
        stream = RandomStream(self.seed + job.salt, depth, epoch, position)
        context = Context(stream, epoch + job.epoch, job.signals)
        operation = self.operations[0]
        try:
            value = self._taken(row)
            for operation in self.operations:
                value = operation.apply(value, context)
            return self._decided(value) if self.decides else self._put(row, value)
        except Exception as error:
            raise self._failed(error, operation, row, place, located) from error

    def _taken(self, row: Row) -> Any:
        if self.inputs is None:
            return dict(row)
        if missing := [name for name in self.inputs if name not in row]:
            raise DataError(f"there is no column {missing[0]!r}; the row has {', '.join(row)}.", code="data_missing")
        return row[self.inputs[0]] if len(self.inputs) == 1 else tuple(row[name] for name in self.inputs)

    def _put(self, row: Row, value: Any) -> Row:
        if self.outputs is None:
            if not isinstance(value, Mapping):
                raise DataError(
                    f"it must give a row, values by column, and gave a {type(value).__name__}.",
                    hint="Name the column that it is for: map(f, 'x').",
                    code="data_columns",
                )
            return cast("Row", value)
        if len(self.outputs) == 1:
            return {**row, self.outputs[0]: value}
        values = cast("Sequence[Any]", value)
        if not isinstance(value, tuple | list) or len(values) != len(self.outputs):
            raise DataError(
                f"it must give {len(self.outputs)} values, for {', '.join(self.outputs)}.", code="data_columns"
            )
        return {**row, **dict(zip(self.outputs, values, strict=True))}

    def _decided(self, value: Any) -> bool:
        if np.ndim(value) or not isinstance(value, bool | np.bool_ | int | np.integer):
            raise DataError(f"a filter must give True or False, and gave {value!r}.", code="data_columns")
        return bool(cast(object, value))

    def _failed(self, error: Exception, operation: Transform, row: Row, place: int, located: Located) -> DataError:
        where = _origin(located, place)
        path = row.get("path")
        file = f" ({path})" if isinstance(path, str) else ""
        said = error.message if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
        failed = DataError(
            f"{operation} failed at row {where + 1}{file}: {said}",
            hint=error.hint if isinstance(error, CoterieError) else None,
            code=error.reason if isinstance(error, CoterieError) else "data_step",
            row=where + 1,
        )
        failed.add_note(f"The step is written at {self.written}.")
        return failed

    def describe(self) -> str:
        what = "filter" if self.decides else "map"
        names = ", ".join([*map(str, self.operations), *(self.inputs or ()), f"seed={self.seed}"])
        to = f" as {', '.join(self.outputs)}" if self.outputs and self.outputs != self.inputs else ""
        return f"{self.below.describe()} → {what}({names}){to}"


def written(stage: Stage) -> list[str]:
    """The lines of the user's code that made the steps of a pipeline, those of its sources first."""
    found: list[str] = []
    for field in fields(cast(Any, stage)):
        value: object = getattr(stage, field.name)
        for part in cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,):
            found += written(part) if isinstance(part, Stage) else ()
    return [*found, stage.written] if isinstance(stage, Step) else found


def emptied(stage: Stage, message: str, hint: str | None = None) -> DataError:
    """Of rows of which a pipeline leaves none, with the lines at which its steps are written."""
    return located(DataError(message, hint=hint, code="data_empty"), stage)


def located(error: DataError, stage: Stage) -> DataError:
    """The error with the lines at which the steps of a pipeline are written, where it does not name one yet."""
    lines = written(stage)
    if lines and not getattr(error, "__notes__", ()):
        error.add_note(f"Its steps are written at: {', '.join(lines)}.")
    return error


def _origin(located: Located, place: int) -> int:
    """The number of a row in its source, for messages."""
    while located.parts:
        if located.places:
            part = next(i for i, here in enumerate(located.places) if place in here)
            place = int(np.flatnonzero(located.places[part] == place)[0])
            located = located.parts[part]
        else:
            located = located.parts[0]
    return int(located.address.positions[place])
