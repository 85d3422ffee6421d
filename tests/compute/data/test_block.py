"""Rows are brought together as they are made."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coterie.compute.data.block import Coming, stacked
from coterie.compute.data.source import Row
from coterie.errors import DataError
from tests.compute.data.pipelines import numbered

VALUES: list[Any] = [
    1, 2.5, True, "a", b"b", np.float32(3), np.array(4), np.ones(2, np.float32), np.zeros(2, np.float32),
    np.ones(2, ">f4"), np.ones((2, 0)), np.ones(3, np.float32), np.ones(2, np.int8), np.array(["x"]), (1, 2), [3, 4],
]  # fmt: skip


@example([9, 7])
@example([7, 9])
@given(st.lists(st.sampled_from(range(len(VALUES))), min_size=1, max_size=4))
def test_a_column_is_an_array_exactly_where_numbers_of_one_shape_and_dtype_come(chosen: list[int]) -> None:
    values = [VALUES[place] for place in chosen]
    found = stacked(Coming(len(values), ({"x": value} for value in values)))["x"]
    arrays = [np.asarray(value) for value in values]
    kinds = {(array.dtype.newbyteorder("="), array.shape) for array in arrays}
    alike = len(kinds) == 1 and arrays[0].dtype.kind in "biuf"
    assert isinstance(found, np.ndarray) == alike and len(found) == len(values)
    if alike:
        assert np.asarray(found).dtype == np.stack(arrays).dtype
    for value, there in zip(values, found, strict=True):
        assert np.array_equal(there, value)
        assert np.asarray(there).dtype.newbyteorder("=") == np.asarray(value).dtype.newbyteorder("=")


def test_rows_with_other_columns_are_refused() -> None:
    with pytest.raises(DataError, match="different columns: x and y"):
        stacked([{"x": 1}, {"y": 1}])


def test_a_row_is_gone_when_the_next_but_one_is_made() -> None:
    living: list[weakref.ref[Any]] = []

    def rows() -> Iterator[Row]:
        for _ in range(9):
            made = np.zeros((4, 4))
            living.append(weakref.ref(made))
            assert sum(row() is not None for row in living) <= 2
            yield {"x": made}

    assert np.shape(stacked(Coming(9, rows()))["x"]) == (9, 4, 4)


def test_steps_behind_each_other_make_a_row_before_the_next_is_begun() -> None:
    order: list[tuple[str, int]] = []

    def first(value: int) -> int:
        order.append(("first", int(value)))
        return value

    def second(value: int) -> int:
        order.append(("second", int(value)))
        return value

    next(iter(numbered(3).map(first, "id").map(second, "id").batch(3)))
    assert order == [(name, row) for row in range(3) for name in ("first", "second")]
